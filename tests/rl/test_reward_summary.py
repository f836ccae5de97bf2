import pytest

from gym_bridge.types import Rollout
from rl.reward_summary import pass_at_k, reward_summary


def rollout(row: int, rollout_id: int, reward: float | None) -> Rollout:
    return Rollout(
        group_id=row, rollout_id=rollout_id, row_index=row, agent="a", turns=(), reward=reward,
        failure="timeout" if reward is None else None, truncated=False, policy_version=0, prompt=f"p{row}", response="",
    )  # fmt: skip


def test_failed_rollouts_count_as_failed_and_not_as_zero() -> None:
    summary = reward_summary([rollout(0, 0, 1.0), rollout(0, 1, None), rollout(1, 0, 0.5), rollout(1, 1, 0.5)])
    assert summary.mean == pytest.approx(2 / 3)
    assert (summary.num_rows, summary.num_rollouts, summary.num_failed) == (2, 4, 1)
    assert summary.failures == {"timeout": 1}
    assert summary.mixed_share == 0.0  # one valid rollout is no spread, two equal ones neither
    assert [row.mean for row in summary.rows] == [1.0, 0.5]
    assert summary.rows[0].pass_at_k == {1: 1.0}
    assert summary.rows[1].pass_at_k == {1: 0.0, 2: 0.0}


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == pytest.approx(1 - 3 / 6)  # of the 6 pairs 3 leave the passing sample out
    assert pass_at_k(4, 4, 2) == 1.0


def test_quartiles_and_mixed_groups() -> None:
    summary = reward_summary([rollout(0, 0, 0.0), rollout(0, 1, 1.0), rollout(1, 0, 1.0), rollout(1, 1, 1.0)])
    assert (summary.p25, summary.p75) == (0.75, 1.0)
    assert summary.mixed_share == 0.5
    assert summary.pass_at_k == {1: 0.75, 2: 1.0}


def test_no_rollout_at_all_and_nothing_but_failures() -> None:
    assert reward_summary([]).mean is None
    assert reward_summary([rollout(0, 0, None)]).mean is None
