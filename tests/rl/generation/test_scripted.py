"""The replaying rollout source."""

import asyncio

import pytest

from gym_bridge.types import Rollout, RolloutRequest
from rl.generation.scripted import ScriptedSource
from rl.types import RolloutSource


def scored(reward: float) -> Rollout:
    return Rollout(
        group_id=99, rollout_id=99, row_index=99, agent="a", turns=(), reward=reward, failure=None, truncated=False,
        policy_version=99, prompt="", response="",
    )  # fmt: skip


def ask(source: RolloutSource, *wanted: tuple[int, int]) -> list[tuple[int, int, int, float | None, int]]:
    """Requests as (row, generation); each row is a group of its own."""

    async def collect() -> list[Rollout]:
        requests = [RolloutRequest(group_id=10 + row, rollout_id=k, row_index=row, row={}) for row, k in wanted]
        return [rollout async for rollout in source.collect(requests)]

    return [(r.group_id, r.rollout_id, r.row_index, r.reward, r.policy_version) for r in asyncio.run(collect())]


def test_rollouts_come_in_order_under_the_identity_of_their_requests():
    source = ScriptedSource([scored(0.1), scored(0.2), scored(0.3)])
    assert ask(source, (1, 0), (0, 0)) == [(11, 0, 1, 0.1, 0), (10, 0, 0, 0.2, 0)]
    assert ask(source, (0, 1)) == [(10, 1, 0, 0.3, 0)]


def test_new_weights_name_later_rollouts_and_are_kept(tmp_path):
    weights = tmp_path / "new"
    weights.mkdir()
    (weights / "model.safetensors").write_text("w")
    source = ScriptedSource([scored(0.5)], keep_weights=tmp_path / "kept")
    asyncio.run(source.update_weights(weights, policy_version=3))
    assert ask(source, (0, 0)) == [(10, 0, 0, 0.5, 3)]
    assert (tmp_path / "kept" / "3" / "model.safetensors").read_text() == "w"


def test_a_script_that_is_too_short_is_our_own_fault():
    with pytest.raises(AssertionError, match="fewer rollouts"):
        ask(ScriptedSource([scored(1.0)]), (0, 0), (0, 1))
