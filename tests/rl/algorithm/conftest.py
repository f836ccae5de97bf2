"""A rollout with the few values that the algorithm reads."""

from collections.abc import Callable, Mapping

import pytest

from gym_bridge.types import Rollout, Turn


@pytest.fixture
def rollout() -> Callable[..., Rollout]:
    """Build a rollout: a reward (None: failed) and the tokens sampled in each turn, after 10 prompt tokens."""

    def build(
        reward: float | None,
        *turn_lengths: int,
        group_id: int = 0,
        truncated: bool = False,
        agent: str = "agent",
        failure: str = "timeout after 60 s",
        metrics: Mapping[str, float] | None = None,
    ) -> Rollout:
        turns = []
        prompt = (1,) * 10
        for length in turn_lengths:
            tokens = (5,) * length
            turns.append(
                Turn(prompt_token_ids=prompt, token_ids=tokens, logprobs=(-1.0,) * length, finish_reason="stop")
            )
            prompt = prompt + tokens
        return Rollout(
            group_id=group_id,
            rollout_id=0,
            row_index=0,
            agent=agent,
            turns=tuple(turns),
            reward=reward,
            failure=failure if reward is None else None,
            truncated=truncated,
            policy_version=0,
            prompt="",
            response="",
            metrics=metrics or {},
        )

    return build
