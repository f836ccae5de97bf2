"""What the driver hands to each rank for one optimizer step. No torch, so that the driver can build it."""

from dataclasses import dataclass

from rl.micro_batch import FloatArray, MicroBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBatch:
    """The share of one rank in one optimizer step."""

    trained: tuple[MicroBatch, ...]
    """Forward and backward; as many on every rank, since the passes contain collectives."""
    scored: tuple[MicroBatch, ...]
    """Forward only, for the metrics: samples whose gradient is zero (their group has no spread)."""
    advantages: FloatArray
    """Of every sample of the step, indexed by ``MicroBatch.samples``."""
    num_tokens: int
    """Trained tokens of the optimizer step, over all its micro-batches and ranks."""
    previous_logprobs: tuple[FloatArray, ...] | None
    """Per micro-batch (trained, then scored), log-probabilities before the first optimizer step of the rollout batch;
    None when this is that first step, where they equal the current ones."""
    data_parallel_size: int

    @property
    def micro_batches(self) -> tuple[MicroBatch, ...]:
        """All of them, in the order of ``previous_logprobs``."""
        return self.trained + self.scored
