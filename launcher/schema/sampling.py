"""The sampling distribution of a run: one object read by the sampler, the rows, the gateway and the loss."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn. The loss divides logits by the same temperature and applies the same top-k.

    Example:
        Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64)
    """

    temperature: float
    """> 0."""
    top_p: float
    """Always 1.0: nucleus sampling would change the distribution in a way the loss does not model."""
    top_k: int | None
    """None samples from the whole vocabulary."""
    max_new_tokens: int
    """Cap on generated tokens of one model call."""
