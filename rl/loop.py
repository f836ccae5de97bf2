"""The training loop. One step:

prompts -> collect -> advantages -> lay out -> train -> sync weights -> (validate) -> (save) -> report
              ^                                              |
              +------------- the next step samples from the new weights
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gym_bridge.samples import train_samples
from gym_bridge.types import Rollout, RolloutRequest, TrainSample
from launcher.schema.plan import RunPlan
from launcher.schema.problems import RunFailed
from launcher.schema.training import RewardScalingConfig, RewardShapingConfig
from rl.advantages import AdvantageSettings, group_advantages
from rl.data import PromptOrder, group_requests
from rl.dynamic_sampling import GroupSelection, gives_loss, selected_groups
from rl.layout import LayoutSettings, rank_batches
from rl.metrics import step_metrics, validation_metrics
from rl.report import Report
from rl.rewards import training_rewards
from rl.schedule import ScheduleSettings, learning_rate
from rl.types import Policy, RolloutSource
from rl.workers.batch import RankBatch
from rl.workers.step import StepResult


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSettings:
    """What the loop itself decides by."""

    plan: RunPlan
    advantages: AdvantageSettings
    layout: LayoutSettings
    schedule: ScheduleSettings
    reward_scaling: RewardScalingConfig | None
    reward_shaping: RewardShapingConfig | None
    overlong_filtering: bool
    """Truncated responses count in their group's baseline and are not trained."""
    max_gen_batches: int | None
    """Batches that dynamic sampling may draw for one step; None trains every group as it comes."""
    shuffle: bool
    val_at_start: bool
    val_at_end: bool
    max_failed_share: float
    """The run stops when more than this share of a batch's rollouts failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The dataset, in memory."""

    training: Sequence[Mapping[str, Any]]
    validation: Sequence[Mapping[str, Any]]


@dataclass(kw_only=True, slots=True)
class Stopwatch:
    """Seconds per phase of one step."""

    started: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to ``name``."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    def with_total(self) -> dict[str, float]:
        """Seconds of all phases, and ``total_step_time`` up to now."""
        return self.seconds | {"total_step_time": time.monotonic() - self.started}


class TrainingLoop:
    """Runs all steps of a plan."""

    def __init__(
        self,
        settings: LoopSettings,
        *,
        rows: Rows,
        source: RolloutSource,
        policy: Policy,
        report: Report,
        weights_folder: Path,
    ):
        """
        Args:
            settings: what the loop decides by.
            rows: the dataset.
            source: gives rollouts, takes weights.
            policy: the model under training.
            report: told everything.
            weights_folder: memory-backed; weights travel through it to the sampler.
        """
        self._settings = settings
        self._plan = settings.plan
        self._rows = rows
        self._source = source
        self._policy = policy
        self._report = report
        self._weights_folder = weights_folder
        self._order = PromptOrder(num_rows=len(rows.training), seed=settings.plan.seed, shuffle=settings.shuffle)
        self._cursor = 0
        self._policy_version = 0

    async def run(self) -> None:
        """Train all steps, with a validation pass before and after as the settings say."""
        if self._settings.val_at_start and self._rows.validation:
            self._report.doing("validating")
            watch = Stopwatch()
            metrics = await self._validate(0, watch)
            self._report.step({"step": 0, **metrics, "val_timing/total_validation_time": watch.seconds["validation"]})
        for step in range(1, self._plan.num_steps + 1):
            await self._step(step)

    async def _step(self, step: int) -> None:
        watch = Stopwatch()
        # 1. Collect a group of rollouts for each prompt.
        self._report.doing("generating")
        with watch.phase("generation"):
            sampled, rollouts, selection = await self._collect_groups()
        # 2. Score each rollout against its group.
        with watch.phase("advantage_calculation"):
            advantages = self._advantages(rollouts)
        # 3. Lay the samples out for the ranks.
        with watch.phase("training_prep"):
            batches = self._lay_out(rollouts, advantages)
            await self._source.rest()
        # 4. Train.
        self._report.doing("training")
        with watch.phase("policy_training"):
            results = await self._train(batches, step)
        # 5. Hand the new weights to the sampler.
        self._report.doing("syncing weights")
        with watch.phase("weight_sync"):
            await self._sync_weights()
        # 6. Validate.
        validation = await self._validate(step, watch) if self._validates_after(step) else {}
        # 7. Report.
        metrics = step_metrics(
            sampled=sampled,
            trained=rollouts,
            advantages=advantages,
            scaling=self._settings.reward_scaling,
            shaping=self._settings.reward_shaping,
            selection=selection,
            results=results,
            learning_rate=learning_rate(step, self._settings.schedule),
            micro_batches=[batch for ranks in batches for rank in ranks for batch in rank.micro_batches],
            seconds=watch.with_total(),
        )
        self._report.rollouts(step, sampled, advantages=_where_trained(sampled, rollouts, advantages))
        self._report.step({"step": step, **metrics, **validation})

    async def _collect_groups(self) -> tuple[list[Rollout], list[Rollout], GroupSelection | None]:
        """Rollouts of one step: (all that were sampled, those whose groups are trained, how they were chosen)."""
        most = self._settings.max_gen_batches
        first = await self._collect(self._next_requests(first_group=0))
        if most is None:
            return first, first, None
        batches = [first]
        while not (selection := selected_groups(batches, num_wanted=self._plan.num_prompts_per_step)).complete:
            if len(batches) == most:
                raise RunFailed(selection.explanation())
            first_group = len(batches) * self._plan.num_prompts_per_batch
            batches.append(await self._collect(self._next_requests(first_group=first_group)))
        return [rollout for batch in batches for rollout in batch], list(selection.rollouts), selection

    def _advantages(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Of each rollout; 0 for failed ones and for groups without spread."""
        settings = self._settings
        rewards = training_rewards(rollouts, scaling=settings.reward_scaling, shaping=settings.reward_shaping)
        groups = np.array([rollout.group_id for rollout in rollouts])
        return [float(advantage) for advantage in group_advantages(rewards, groups, settings.advantages)]

    def _next_requests(self, *, first_group: int) -> list[RolloutRequest]:
        rows, self._cursor = self._order.take(self._cursor, self._plan.num_prompts_per_batch)
        num_generations = self._plan.num_generations_per_prompt
        return group_requests(self._rows.training, rows, num_generations=num_generations, first_group=first_group)

    async def _collect(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """All rollouts, in the order of their requests.

        Raises:
            RunFailed: too many failed; the message counts the reasons.
        """
        rollouts = [rollout async for rollout in self._source.collect(requests)]
        failures = Counter(rollout.failure for rollout in rollouts if rollout.failure is not None)
        share = failures.total() / len(rollouts)
        if share > self._settings.max_failed_share:
            reasons = "\n".join(f"  {count}x {reason}" for reason, count in failures.most_common(5))
            raise RunFailed(
                f"{failures.total()} of {len(rollouts)} rollouts failed, more than engine.max_failed_share"
                f" ({self._settings.max_failed_share:g}) allows:\n{reasons}"
            )
        return sorted(rollouts, key=lambda rollout: (rollout.group_id, rollout.rollout_id))

    def _lay_out(self, rollouts: Sequence[Rollout], advantages: Sequence[float]) -> list[list[RankBatch]]:
        samples: list[TrainSample] = []
        sample_advantages: list[float] = []
        for rollout, advantage in zip(rollouts, advantages, strict=True):
            if gives_loss(rollout, overlong_filtering=self._settings.overlong_filtering):
                made = train_samples(rollout)
                samples.extend(made)
                sample_advantages.extend([advantage] * len(made))
        return rank_batches(samples, np.array(sample_advantages, np.float32), self._settings.layout)

    async def _train(self, batches: Sequence[Sequence[RankBatch]], step: int) -> list[StepResult]:
        """One optimizer step per entry of ``batches``, all against the policy that sampled the rollouts."""
        rate = learning_rate(step, self._settings.schedule)
        if len(batches) > 1:  # after the first update the current weights no longer say what the policy was
            batches = [
                [replace(batch, previous_logprobs=values) for batch, values in zip(ranks, scores, strict=True)]
                for ranks in batches
                for scores in [await self._policy.logprobs(ranks)]
            ]
        return [await self._policy.train(ranks, learning_rate=rate) for ranks in batches]

    async def _sync_weights(self) -> None:
        self._policy_version += 1
        folder = self._weights_folder / str(self._policy_version)
        folder.mkdir()
        try:
            await self._policy.write_weights(folder)
            await self._source.update_weights(folder, policy_version=self._policy_version)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _validates_after(self, step: int) -> bool:
        if not self._rows.validation:
            return False
        if step == self._plan.num_steps:
            return self._settings.val_at_end
        interval = self._plan.validation_interval
        return interval is not None and step % interval == 0

    async def _validate(self, step: int, watch: Stopwatch) -> dict[str, float]:
        """One rollout per validation row; a row that is repeated in the file is sampled that often."""
        with watch.phase("validation"):
            requests = group_requests(self._rows.validation, range(len(self._rows.validation)), num_generations=1)
            rollouts = await self._collect(requests)
        self._report.validation_rollouts(step, rollouts)
        return validation_metrics(rollouts)


def _where_trained(
    sampled: Sequence[Rollout], trained: Sequence[Rollout], advantages: Sequence[float]
) -> list[float | None]:
    """The advantage of each sampled rollout; None where dynamic sampling left its group out."""
    of_trained = {(r.group_id, r.rollout_id): value for r, value in zip(trained, advantages, strict=True)}
    return [of_trained.get((rollout.group_id, rollout.rollout_id)) for rollout in sampled]
