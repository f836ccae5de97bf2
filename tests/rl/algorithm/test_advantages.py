"""Advantages: groups worked by hand, and NeMo RL's own numbers wherever we mean to agree."""

import json
from pathlib import Path

import numpy as np
import pytest

from rl.advantages import AdvantageSettings, group_advantages, group_statistics

VECTORS = Path(__file__).parents[2] / "vectors"
NAN = float("nan")


def advantages(rewards, groups=None, *, leave_one_out=True, normalize=True, low=None, high=None):
    settings = AdvantageSettings(
        use_leave_one_out_baseline=leave_one_out,
        normalize_rewards=normalize,
        advantage_clip_low=low,
        advantage_clip_high=high,
    )
    groups = [0] * len(rewards) if groups is None else groups
    return group_advantages(np.array(rewards, dtype=float), np.array(groups), settings)


def test_a_lone_success():
    # baselines 0 and 1/7; deviation sqrt(1/8) = 0.353553
    values = advantages([1, 0, 0, 0, 0, 0, 0, 0])
    assert values == pytest.approx([2.828419] + [-0.404060] * 7, abs=1e-5)


def test_decision_3_a_lone_better_rollout_is_divided_by_the_deviation_of_the_whole_group():
    # NeMo RL: 3692.7. Baselines 0.35 and 0.435714; deviation sqrt((0.525^2 + 7 * 0.075^2) / 7) = 0.212132
    values = advantages([0.95] + [0.35] * 7)
    assert values == pytest.approx([0.6 / 0.212133] + [-0.085714 / 0.212133] * 7, abs=1e-4)


def test_decision_3_a_pair_has_a_deviation():
    # NeMo RL's deviation of the other rollout alone is 0, so it divides by nothing. Ours: sqrt(1/2).
    assert advantages([1, 0]) == pytest.approx([1 / 0.707108, -1 / 0.707108], abs=1e-5)


def test_decision_3_float_noise_is_a_constant_group():
    third = 1 / 3
    assert advantages([third, third + 1e-9, third, third]).tolist() == [0, 0, 0, 0]
    assert advantages([0.1 + 0.2, 0.3, 0.3], normalize=False).tolist() == [0, 0, 0]


def test_decision_4_equal_prompts_are_groups_of_their_own():
    # Two rows with one prompt and different answers: as one group of four, [1, 1, 0, 0] would train.
    assert advantages([1, 1, 0, 0], [4, 4, 9, 9]).tolist() == [0, 0, 0, 0]


def test_decision_6_a_failed_rollout_belongs_to_no_statistic():
    with_failure = advantages([1, NAN, 0, 0], normalize=False)
    assert with_failure == pytest.approx([1, 0, -0.5, -0.5])
    assert np.delete(with_failure, 1) == pytest.approx(advantages([1, 0, 0], normalize=False))


@pytest.mark.parametrize("rewards", [[1, NAN, NAN], [NAN, NAN], [0.5], [0.5, 0.5, 0.5]])
@pytest.mark.parametrize("leave_one_out", [True, False])
def test_groups_without_signal_have_no_advantage(rewards, leave_one_out):
    assert advantages(rewards, leave_one_out=leave_one_out).tolist() == [0] * len(rewards)


def test_no_rollouts():
    assert advantages([]).shape == (0,)


def test_group_baseline_without_normalisation():
    assert advantages([1, 0, 0, 0], leave_one_out=False, normalize=False) == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_interleaved_groups():
    assert advantages([1, 5, 0, 3], [2, 1, 2, 1], normalize=False) == pytest.approx([1, 2, -1, -2])


def test_statistics():
    statistics = group_statistics(np.array([1, 0, 0, NAN]), np.array([7, 7, 9, 9]))
    assert statistics.groups.tolist() == [7, 9]
    assert statistics.counts.tolist() == [2, 1]
    assert statistics.means.tolist() == [0.5, 0]
    assert statistics.deviations == pytest.approx([0.5**0.5, 0])
    assert statistics.mixed.tolist() == [True, False]


def cases():
    return json.loads((VECTORS / "advantage.json").read_text())["cases"]


def comparable(case):
    """Cases without one of our decisions: masks by rollout, and deviations of other rewards than the trained ones."""
    return not {"valid_mask", "std_rewards"} & case.keys() and case["name"] != "duplicate prompt merges groups"


def groups_of(case):
    return np.unique(np.array(case["prompt_ids"]), axis=0, return_inverse=True)[1].ravel()


@pytest.mark.parametrize("case", [case for case in cases() if comparable(case)], ids=lambda case: case["name"])
def test_advantages_without_normalisation_equal_nemo_rls(case):
    values = advantages(case["rewards"], groups_of(case), leave_one_out=case["leave_one_out"], normalize=False)
    assert values == pytest.approx(case["advantage_raw"], abs=1e-5)


@pytest.mark.parametrize(
    "case", [case for case in cases() if comparable(case) and not case["leave_one_out"]], ids=lambda case: case["name"]
)
def test_normalised_advantages_over_the_group_baseline_equal_nemo_rls(case):
    values = advantages(case["rewards"], groups_of(case), leave_one_out=False)
    assert values == pytest.approx(case["advantage_norm"], rel=1e-4, abs=1e-5)


def test_decision_6_a_masked_reward_leaves_baseline_and_deviation():
    masked = [case for case in cases() if "valid_mask" in case and not case["leave_one_out"]]
    assert len(masked) == 1
    for case in masked:
        rewards = np.where(np.array(case["valid_mask"]) == 1, case["rewards"], NAN)
        statistics = group_statistics(rewards, groups_of(case))
        valid = ~np.isnan(rewards)
        for ours, theirs in ((statistics.means, case["baseline"]), (statistics.deviations, case["std"])):
            assert ours[statistics.of_rollout][valid] == pytest.approx(np.array(theirs)[valid], abs=1e-6)


def test_decision_4_differs_from_the_vector_that_merges_duplicate_prompts():
    (case,) = [case for case in cases() if case["name"].startswith("duplicate") and case["leave_one_out"]]
    rewards = case["rewards"]
    by_row = advantages(rewards, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2], normalize=False)
    assert by_row[0] == pytest.approx(rewards[0] - sum(rewards[1:4]) / 3)
    assert case["baseline"][0] == pytest.approx(sum(rewards[1:4] + rewards[8:12]) / 7)


@pytest.mark.parametrize("case", json.loads((VECTORS / "advantage_clip.json").read_text())["cases"])
def test_clipping_equals_nemo_rls(case):
    # The vector's values are already advantages: a group mean of 0 and no division leave them as they are.
    for row, expected in zip(case["in"], case["out"], strict=True):
        balanced = [*row, -sum(row)]
        values = advantages(balanced, leave_one_out=False, normalize=False, low=case["low"], high=case["high"])
        assert values[:3] == pytest.approx(expected, abs=1e-6)
