"""What rewards say about a model: mean, spread, share of mixed groups, pass@k. Pure."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gym_bridge.types import Rollout

PASSING_REWARD = 1.0
SAME_REWARD = 1e-6
"""Rewards that differ by less are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRewards:
    """The responses to one row."""

    row_index: int
    prompt: str
    rewards: tuple[float | None, ...]
    """None where the rollout failed."""
    mean: float | None
    """Over the rollouts that did not fail."""
    pass_at_k: Mapping[int, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardSummary:
    """All rows together."""

    num_rows: int
    num_rollouts: int
    num_failed: int
    mean: float | None
    """None when every rollout failed; so are the three below."""
    deviation: float
    p25: float
    p75: float
    mixed_share: float
    """Share of rows whose responses scored differently: those that training can learn from."""
    pass_at_k: Mapping[int, float]
    """k -> mean over rows."""
    rows: tuple[RowRewards, ...]
    failures: Mapping[str, int]
    """Reason -> how often, most frequent first."""

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return asdict(self)


def reward_summary(rollouts: Sequence[Rollout]) -> RewardSummary:
    """Summarise the rollouts of an evaluation; those of one row form its group."""
    groups: dict[int, list[Rollout]] = defaultdict(list)
    for rollout in sorted(rollouts, key=lambda r: (r.row_index, r.rollout_id)):
        groups[rollout.row_index].append(rollout)
    rows = tuple(_row(index, group) for index, group in groups.items())
    scored = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    usable = [row for row in rows if row.mean is not None]
    quartiles = statistics.quantiles(scored, n=4, method="inclusive") if len(scored) > 1 else scored * 3 or [0.0] * 3
    sizes = _sizes(max((len(row.rewards) for row in rows), default=0))
    return RewardSummary(
        num_rows=len(rows),
        num_rollouts=len(rollouts),
        num_failed=len(rollouts) - len(scored),
        mean=statistics.fmean(scored) if scored else None,
        deviation=statistics.stdev(scored) if len(scored) > 1 else 0.0,
        p25=quartiles[0],
        p75=quartiles[2],
        mixed_share=sum(map(_mixed, usable)) / len(usable) if usable else 0.0,
        pass_at_k={k: _mean(row.pass_at_k[k] for row in rows if k in row.pass_at_k) for k in sizes},
        rows=rows,
        failures=dict(Counter(r.failure for r in rollouts if r.failure is not None).most_common()),
    )


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Chance that at least one of k of these samples passes, unbiased: 1 - C(n - c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def _row(row_index: int, group: Sequence[Rollout]) -> RowRewards:
    scored = [rollout.reward for rollout in group if rollout.reward is not None]
    passed = sum(reward >= PASSING_REWARD for reward in scored)
    return RowRewards(
        row_index=row_index,
        prompt=group[0].prompt,
        rewards=tuple(rollout.reward for rollout in group),
        mean=statistics.fmean(scored) if scored else None,
        pass_at_k={k: pass_at_k(len(scored), passed, k) for k in _sizes(len(scored))},
    )


def _sizes(num_samples: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples, which is always included."""
    return sorted(
        {*(2**power for power in range(num_samples.bit_length()) if 2**power <= num_samples), num_samples} - {0}
    )


def _mixed(row: RowRewards) -> bool:
    scored = [reward for reward in row.rewards if reward is not None]
    return max(scored) - min(scored) > SAME_REWARD


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.fmean(known) if known else 0.0
