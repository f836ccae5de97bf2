"""From the environment's rewards to those that the advantages are made of.

rollouts  ->  raw rewards [N]  --scaling-->  --shaping-->  training rewards [N]

A failed rollout is NaN throughout. Validation and dynamic sampling use raw rewards.

    scaling           t0 + (clamp(r, s0, s1) - s0) / (s1 - s0) * (t1 - t0)
    stop properly     r * coefficient where truncated
    overlong          r - penalty * clamp((length - (max_response_length - buffer)) / buffer, 0, 1)
                      (Yu et al. 2025, arXiv:2503.14476, equation 13)

Deviations from NeMo RL in the overlong penalty: length counts the tokens of all turns, not of the first alone, and the
penalty stops at its full value, as in the paper, where NeMo RL lets it grow beyond max_response_length.
"""

from collections.abc import Sequence

import numpy as np

from gym_bridge.types import Rollout
from launcher.schema.training import RewardScalingConfig, RewardShapingConfig
from rl.advantages import FloatArray


def raw_rewards(rollouts: Sequence[Rollout]) -> FloatArray:
    """The environment's rewards, NaN where a rollout failed, [N]."""
    return np.array([np.nan if rollout.reward is None else rollout.reward for rollout in rollouts], dtype=np.float64)


def training_rewards(
    rollouts: Sequence[Rollout], *, scaling: RewardScalingConfig | None, shaping: RewardShapingConfig | None
) -> FloatArray:
    """Rewards after scaling, then shaping, [N]; see the top of this file."""
    rewards_N = raw_rewards(rollouts)
    if scaling is not None:
        rewards_N = scaled_rewards(rewards_N, scaling)
    if shaping is not None:
        rewards_N = shaped_rewards(rewards_N, rollouts, shaping)
    return rewards_N


def scaled_rewards(rewards_N: FloatArray, scaling: RewardScalingConfig) -> FloatArray:
    """Rewards clamped to the source range and mapped linearly to the target range."""
    share_N = (np.clip(rewards_N, scaling.source_min, scaling.source_max) - scaling.source_min) / (
        scaling.source_max - scaling.source_min
    )
    return scaling.target_min + share_N * (scaling.target_max - scaling.target_min)


def shaped_rewards(rewards_N: FloatArray, rollouts: Sequence[Rollout], shaping: RewardShapingConfig) -> FloatArray:
    """Rewards less the penalty for length; the schema admits exactly one of the two kinds."""
    if shaping.stop_properly_penalty_coef is not None:
        truncated_N = np.array([rollout.truncated for rollout in rollouts], dtype=np.bool_)
        return np.where(truncated_N, rewards_N * shaping.stop_properly_penalty_coef, rewards_N)
    assert shaping.overlong_buffer_length is not None, "rule R16 admits no partial overlong trio"
    assert shaping.overlong_buffer_penalty is not None
    assert shaping.max_response_length is not None
    lengths_N = np.array([num_generated_tokens(rollout) for rollout in rollouts], dtype=np.float64)
    free = shaping.max_response_length - shaping.overlong_buffer_length
    overlong_N = np.clip((lengths_N - free) / shaping.overlong_buffer_length, 0.0, 1.0)
    return rewards_N - overlong_N * shaping.overlong_buffer_penalty


def num_generated_tokens(rollout: Rollout) -> int:
    """Tokens that the policy sampled, over all turns."""
    return sum(len(turn.token_ids) for turn in rollout.turns)
