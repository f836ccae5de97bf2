"""How much better each rollout did than its group: the number that weights its tokens in the loss.

rewards [N] + group of each rollout [N]  ->  GroupStatistics [G]  ->  advantages [N]

Shape suffixes: N rollouts of a step, G groups. A failed rollout is NaN among the rewards: it belongs to no statistic
and its advantage is 0.

With n valid rewards r in a group, mean m and unbiased standard deviation s:

    A_i = r_i - m                 b_i = m, the group baseline
    A_i = (r_i - m) n / (n - 1)   leave-one-out: b_i is the mean of the others (Kool et al. 2019, "Buy 4 REINFORCE
                                  samples, get a baseline for free")
    A_i / (s + 1e-6)              when rewards are normalised (Shao et al. 2024, arXiv:2402.03300)

then clipped to [low, high]. A group with s < 1e-6 or fewer than two valid rollouts has advantages 0.

Deviations from NeMo RL: s is that of the whole group also with leave-one-out (NeMo RL divides by the deviation of the
other rollouts: [0.95, 0.35 x 7] gives 3692.7 where we give 2.83, and a lone success is not divided at all); groups are
formed by identity, never by equal prompts; sums are in float64.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CONSTANT_BELOW = 1e-6
"""A group with a smaller standard deviation of rewards counts as constant."""
DIVISION_GUARD = 1e-6
"""Added to the standard deviation before dividing by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageSettings:
    """The settings of the advantages, under their published names.

    Example:
        AdvantageSettings(use_leave_one_out_baseline=True, normalize_rewards=True, advantage_clip_low=None,
                          advantage_clip_high=None)
    """

    use_leave_one_out_baseline: bool
    normalize_rewards: bool
    advantage_clip_low: float | None
    """At most 0."""
    advantage_clip_high: float | None
    """At least 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStatistics:
    """Valid rewards of each group.

    Example (rewards 1 and 0 in group 7; 0 and a failure in group 9):
        GroupStatistics(groups=[7, 9], of_rollout=[0, 0, 1, 1], counts=[2, 1], means=[0.5, 0.0], deviations=[0.71, 0.0])
    """

    groups: IntArray
    """Group ids in ascending order, [G]."""
    of_rollout: IntArray
    """Position in ``groups`` of each rollout's group, [N]."""
    counts: IntArray
    """Valid rollouts, [G]."""
    means: FloatArray
    """0 for a group without valid rollouts, [G]."""
    deviations: FloatArray
    """Unbiased standard deviations; 0 below two valid rollouts, [G]."""

    @property
    def mixed(self) -> NDArray[np.bool_]:
        """True for groups whose rewards differ: those that carry a learning signal, [G]."""
        return self.deviations >= CONSTANT_BELOW


def group_statistics(rewards_N: FloatArray, groups_N: IntArray) -> GroupStatistics:
    """Count, mean and deviation of the valid rewards of each group.

    Args:
        rewards_N: NaN where a rollout failed.
        groups_N: group id of each rollout.
    """
    groups_G, of_rollout_N = np.unique(groups_N, return_inverse=True)
    valid_N = ~np.isnan(rewards_N)
    filled_N = np.where(valid_N, rewards_N, 0.0)

    def sums_G(values_N: FloatArray) -> FloatArray:
        return np.bincount(of_rollout_N, weights=values_N, minlength=len(groups_G)).astype(np.float64)

    counts_G = sums_G(valid_N.astype(np.float64))
    means_G = sums_G(filled_N) / np.maximum(counts_G, 1)
    squares_G = sums_G(np.where(valid_N, (filled_N - means_G[of_rollout_N]) ** 2, 0.0))
    return GroupStatistics(
        groups=groups_G,
        of_rollout=of_rollout_N,
        counts=counts_G.astype(np.int64),
        means=means_G,
        deviations=np.sqrt(squares_G / np.maximum(counts_G - 1, 1)),
    )


def group_advantages(rewards_N: FloatArray, groups_N: IntArray, settings: AdvantageSettings) -> FloatArray:
    """The advantage of each rollout over its group, [N]; see the top of this file.

    Args:
        rewards_N: after scaling and shaping; NaN where a rollout failed.
        groups_N: group id of each rollout.
        settings: baseline, normalisation and clipping.
    """
    statistics = group_statistics(rewards_N, groups_N)
    per_rollout = statistics.of_rollout
    advantages_N = rewards_N - statistics.means[per_rollout]
    if settings.use_leave_one_out_baseline:
        counts_N = statistics.counts[per_rollout]
        advantages_N = advantages_N * counts_N / np.maximum(counts_N - 1, 1)
    if settings.normalize_rewards:
        advantages_N = advantages_N / (statistics.deviations[per_rollout] + DIVISION_GUARD)
    carries_signal_N = statistics.mixed[per_rollout] & ~np.isnan(rewards_N)
    return np.clip(
        np.where(carries_signal_N, advantages_N, 0.0), settings.advantage_clip_low, settings.advantage_clip_high
    )
