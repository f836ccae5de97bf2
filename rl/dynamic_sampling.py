"""Which groups a step trains when it samples until enough of them disagree, and which of its rollouts give a loss.

batches of rollouts  ->  GroupSelection: groups with spread, in the order sampled, until the step is full

A group is kept or dropped whole, by its raw rewards: shaping cannot rescue a group that the environment scored alike
(Yu et al. 2025, arXiv:2503.14476, section 3.2). Deviation from NeMo RL: it keeps and drops single rollouts, so a lone
success is dropped while its group stays and then trains on advantages of 0, and groups of two never qualify.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gym_bridge.types import Rollout
from rl.advantages import group_statistics
from rl.rewards import raw_rewards

CAUSES = {
    "all rewards 0": "the task is too hard for the model: start from easier rows, give partial credit, sample more "
    "responses (training.num_generations_per_prompt)",
    "all rewards 1": "the task is too easy for the model: leave out rows it already solves, or ask for more",
    "all rewards alike": "the reward has no spread: grade finer, or raise training.temperature",
    "fewer than two valid rollouts": "rollouts fail: see the failures of the run, and its environment's log",
}
"""Why a group was dropped -> what to do about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSelection:
    """What was kept of the batches sampled so far for one step.

    Example:
        GroupSelection(rollouts=(...), num_wanted=8, num_kept=6, num_surplus=0, num_surplus_rollouts=0, num_batches=1,
                       dropped={"all rewards 0": 2}, most_frequent_failure=None)
    """

    rollouts: tuple[Rollout, ...]
    """All rollouts of the kept groups, failed ones included, group by group."""
    num_wanted: int
    """Groups that a step trains."""
    num_kept: int
    """Groups kept, at most ``num_wanted``."""
    num_surplus: int
    """Groups with spread beyond those wanted; they are not trained."""
    num_surplus_rollouts: int
    """Valid rollouts of the surplus groups."""
    num_batches: int
    """Batches sampled."""
    dropped: dict[str, int]
    """Cause (a key of ``CAUSES``) -> number of groups dropped for it."""
    most_frequent_failure: str | None
    """Of the rollouts that failed."""

    @property
    def complete(self) -> bool:
        """True when the step has all the groups it wants."""
        return self.num_kept == self.num_wanted

    def explanation(self) -> str:
        """Why the step is not complete, most frequent cause first, with what to do about each."""
        num_sampled = self.num_kept + self.num_surplus + sum(self.dropped.values())
        lines = [
            f"dynamic sampling found {self.num_kept} of {self.num_wanted} groups whose rewards differ in "
            f"{self.num_batches} batches (training.dynamic_sampling_max_gen_batches); of {num_sampled} groups sampled:"
        ]
        for cause, count in Counter(self.dropped).most_common():
            lines.append(f"  {count} dropped, {cause}: {CAUSES[cause]}")
        if self.most_frequent_failure is not None:
            lines.append(f"  most frequent failure: {self.most_frequent_failure}")
        return "\n".join(lines)


def selected_groups(batches: Sequence[Sequence[Rollout]], *, num_wanted: int) -> GroupSelection:
    """Keep the first ``num_wanted`` groups whose raw rewards differ.

    Args:
        batches: the rollouts of each batch sampled for this step; a group lies in one batch, and its id is unique
            within the step.
        num_wanted: groups that the step trains.
    """
    by_group: dict[int, list[Rollout]] = {}
    for batch in batches:
        assert not by_group.keys() & {rollout.group_id for rollout in batch}, "a group id is used in two batches"
        for rollout in batch:
            by_group.setdefault(rollout.group_id, []).append(rollout)
    causes = {group_id: _cause_to_drop(rollouts) for group_id, rollouts in by_group.items()}
    usable = [group_id for group_id, cause in causes.items() if cause is None]
    failures = Counter(r.failure for batch in batches for r in batch if r.failure is not None)
    return GroupSelection(
        rollouts=tuple(rollout for group_id in usable[:num_wanted] for rollout in by_group[group_id]),
        num_wanted=num_wanted,
        num_kept=len(usable[:num_wanted]),
        num_surplus=len(usable[num_wanted:]),
        num_surplus_rollouts=sum(r.failure is None for group_id in usable[num_wanted:] for r in by_group[group_id]),
        num_batches=len(batches),
        dropped=dict(Counter(cause for cause in causes.values() if cause is not None)),
        most_frequent_failure=failures.most_common(1)[0][0] if failures else None,
    )


def gives_loss(rollout: Rollout, *, overlong_filtering: bool) -> bool:
    """True when the rollout's tokens are trained: it was scored and, under overlong filtering, not truncated.

    A truncated rollout still counts in its group's baseline and deviation. Deviation from NeMo RL: truncated means that
    the sampler hit a length cap, there that the tokens fill the model's whole context.
    """
    return rollout.failure is None and not (overlong_filtering and rollout.truncated)


def _cause_to_drop(group: Sequence[Rollout]) -> str | None:
    rewards = raw_rewards(group)
    statistics = group_statistics(rewards, np.zeros(len(group), dtype=np.int64))
    if statistics.mixed[0]:
        return None
    if statistics.counts[0] < 2:
        return "fewer than two valid rollouts"
    match float(statistics.means[0]):
        case 0.0:
            return "all rewards 0"
        case 1.0:
            return "all rewards 1"
        case _:
            return "all rewards alike"
