"""Reward scaling and shaping: NeMo RL's numbers where we agree, hand-worked ones where we differ on purpose."""

import json
from pathlib import Path

import numpy as np
import pytest

from launcher.schema.training import RewardScalingConfig, RewardShapingConfig
from rl.rewards import raw_rewards, scaled_rewards, training_rewards

VECTORS = Path(__file__).parents[2] / "vectors"
OVERLONG = RewardShapingConfig(overlong_buffer_length=4, overlong_buffer_penalty=1.0, max_response_length=10)


def shaped(shaping, *rollouts):
    return training_rewards(rollouts, scaling=None, shaping=shaping).tolist()


def test_failed_rollouts_stay_nan(rollout):
    rollouts = [rollout(0.5, 12), rollout(None)]
    rewards = training_rewards(rollouts, scaling=RewardScalingConfig(target_max=2.0), shaping=OVERLONG)
    assert rewards[0] == 0  # 0.5 -> 1.0 -> 1.0 - 1.0
    assert np.isnan(rewards[1])
    assert np.isnan(raw_rewards(rollouts)[1])


def test_no_transform(rollout):
    assert training_rewards([rollout(0.25, 3)], scaling=None, shaping=None).tolist() == [0.25]


def test_scaling_comes_before_shaping(rollout):
    scaling = RewardScalingConfig(source_max=10.0)
    halved = RewardShapingConfig(stop_properly_penalty_coef=0.5)
    assert training_rewards([rollout(5, 1, truncated=True)], scaling=scaling, shaping=halved).tolist() == [0.25]


def test_overlong_penalty_counts_the_tokens_of_all_turns(rollout):
    # NeMo RL counts the first turn alone and would take nothing. Ours: (8 - 6) / 4 of the penalty.
    assert shaped(OVERLONG, rollout(1.0, 5, 3)) == [0.5]


def test_overlong_penalty_stops_at_its_full_value(rollout):
    # NeMo RL lets it grow: (30 - 6) / 4 = 6 times the penalty.
    assert shaped(OVERLONG, rollout(1.0, 6), rollout(1.0, 10), rollout(1.0, 30)) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("case", json.loads((VECTORS / "reward_scaling.json").read_text())["cases"])
def test_scaling_equals_nemo_rls(case):
    config = {key: value for key, value in case["config"].items() if key != "enabled"}
    given = np.array(case["in"], dtype=float)
    if case["config"].get("enabled"):
        given = scaled_rewards(given, RewardScalingConfig(**config))
    assert given == pytest.approx(case["out"], abs=1e-6)


@pytest.mark.parametrize("case", json.loads((VECTORS / "reward_shaping.json").read_text())["cases"])
def test_shaping_equals_nemo_rls_up_to_the_maximum(case, rollout):
    config = {key: value for key, value in case["config"].items() if key != "enabled"}
    shaping = RewardShapingConfig(**config) if case["config"]["enabled"] else None
    lengths = case["first_assistant_turn_tokens"]
    rollouts = [
        rollout(reward, length, truncated=truncated)
        for reward, length, truncated in zip(case["in"], lengths, case["truncated"], strict=True)
    ]
    for length, before, ours, theirs in zip(lengths, case["in"], shaped(shaping, *rollouts), case["out"], strict=True):
        if shaping and shaping.max_response_length and length > shaping.max_response_length:
            assert ours == pytest.approx(before - shaping.overlong_buffer_penalty)
        else:
            assert ours == pytest.approx(theirs, abs=1e-6)
