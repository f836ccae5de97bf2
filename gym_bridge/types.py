"""Run-time types that cross the border to NeMo Gym: what is asked for, what comes back, what is trained.

RolloutRequest --(Gym + vLLM)--> Rollout --(samples)--> TrainSample
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutRequest:
    """One response to sample for one dataset row."""

    group_id: int
    """Identity of (row, repeat) within the step: rollouts of one group compete with each other."""
    rollout_id: int
    """Index inside the group, 0 .. num_generations_per_prompt - 1."""
    row_index: int
    """0-based line of the row in its dataset file."""
    row: Mapping[str, Any]
    """The row as it stands in the file, extra keys included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call inside a rollout.

    Example:
        Turn(prompt_token_ids=(1, 120, 118), token_ids=(76, 35), logprobs=(-0.86, -0.79), finish_reason="stop")
    """

    prompt_token_ids: tuple[int, ...]
    """What the model saw, as vLLM tokenised it, [P]."""
    token_ids: tuple[int, ...]
    """What the model sampled, [T]."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled token under the sampling distribution, [T]."""
    finish_reason: FinishReason | None
    """Why sampling ended; None when nobody recorded it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """What the gateway in front of vLLM saw of one model call, found again by its sampled tokens.

    Example:
        CallRecord(finish_reason="length", policy_version=3, num_prompt_tokens=104)
    """

    finish_reason: FinishReason
    policy_version: int
    """Number of optimizer updates the weights had when sampling began."""
    num_prompt_tokens: int | None
    """``usage.prompt_tokens`` of the call; None when the response had no usage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A scored or failed response. Exactly one of ``reward`` and ``failure`` is set."""

    group_id: int
    rollout_id: int
    row_index: int
    agent: str
    """Gym agent instance that ran it."""
    turns: tuple[Turn, ...]
    """Model calls in order; may be empty when the rollout failed."""
    reward: float | None
    """Raw environment reward, finite; None when the rollout failed."""
    failure: str | None
    """Why there is no reward ("timeout after 60 s", "500 from numbered_list: ..."); None when there is one."""
    truncated: bool
    """True when any turn ended at a length cap."""
    policy_version: int
    """Number of optimizer updates the weights had that sampled it."""
    prompt: str
    """The prompt as a person reads it (last user message)."""
    response: str
    """The response as a person reads it: texts, tool calls and tool outputs of all turns."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numeric keys of the environment's verify result other than reward."""
    duration_s: float = 0.0
    """Wall clock from request to result."""

    def __post_init__(self) -> None:
        assert (self.reward is None) != (self.failure is None), "a rollout is either scored or failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSample:
    """One token sequence of a rollout, with the tokens that are trained marked.

    Position t of every array refers to token t. A rollout of several turns gives one sample when each turn's prompt
    continues the tokens before it, several when it does not (see ``gym_bridge.samples``).

    Example:
        TrainSample(group_id=0, rollout_id=2, token_ids=(1, 120, 118, 76, 35), loss_mask=(0, 0, 0, 1, 1),
                    logprobs=(0.0, 0.0, 0.0, -0.86, -0.79), truncated=False)
    """

    group_id: int
    rollout_id: int
    token_ids: tuple[int, ...]
    """[L]."""
    loss_mask: tuple[int, ...]
    """1 where the policy sampled the token, 0 for prompts, observations and tool outputs, [L]."""
    logprobs: tuple[float, ...]
    """The sampler's log-probabilities where ``loss_mask`` is 1, else 0.0, [L]."""
    truncated: bool
