"""The replaying rollout source."""

import asyncio
from typing import Any

import pytest

from gym_bridge.types import Rollout, RolloutRequest
from launcher.schema.problems import RunFailed
from rl.generation.scripted import ScriptedSource
from rl.types import RolloutSource


def scored(reward: float) -> Rollout:
    return Rollout(
        group_id=99, rollout_id=99, row_index=99, agent="a", turns=(), reward=reward, failure=None, truncated=False,
        policy_version=99, prompt="", response="",
    )  # fmt: skip


def ask(source: RolloutSource, *wanted: tuple[int, int]) -> list[tuple[Any, ...]]:
    """Requests as (row, generation); each row is a group of its own."""

    async def collect() -> list[Rollout]:
        requests = [RolloutRequest(group_id=10 + row, rollout_id=k, row_index=row, row={}) for row, k in wanted]
        return [rollout async for rollout in source.collect(requests)]

    return [(r.group_id, r.rollout_id, r.row_index, r.reward, r.policy_version) for r in asyncio.run(collect())]


def test_rollouts_come_under_the_identity_of_their_requests():
    source = ScriptedSource({0: [scored(0.1), scored(0.2)], 1: [scored(0.3)]})
    assert ask(source, (1, 0), (0, 0), (0, 1)) == [(11, 0, 1, 0.3, 0), (10, 0, 0, 0.1, 0), (10, 1, 0, 0.2, 0)]


def test_a_script_starts_again_after_its_last_rollout():
    source = ScriptedSource({0: [scored(0.1), scored(0.2)]})
    assert [reward for *_, reward, _ in ask(source, (0, 0), (0, 1), (0, 2))] == [0.1, 0.2, 0.1]
    assert [reward for *_, reward, _ in ask(source, (0, 0))] == [0.2]


def test_updates_are_noted_and_name_later_rollouts(tmp_path):
    (tmp_path / "model.safetensors").touch()
    source = ScriptedSource({0: [scored(0.5)]})
    asyncio.run(source.update_weights(tmp_path, policy_version=3))
    assert source.updates == [(3, ("model.safetensors",))]
    assert ask(source, (0, 0)) == [(10, 0, 0, 0.5, 3)]


def test_a_row_outside_the_script_is_named():
    with pytest.raises(RunFailed, match="no rollout for dataset row 7; it has rows 0, 2"):
        ask(ScriptedSource({0: [scored(1)], 2: [scored(1)]}), (7, 0))
