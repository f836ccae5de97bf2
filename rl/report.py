"""What a run tells while it goes on: lines for a person, and the files of its run directory. Both engines use it.

engine --> Report --> Display (stderr)
                  --> metrics.jsonl, rollouts/, status.json, trackers
                  --> health: a warning, or the end of the run
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal, Self

from gym_bridge.types import Rollout
from launcher.run_directory import RunDirectory
from launcher.schema.groups import HealthConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import RunFailed
from rl.display import Display
from rl.health import new_verdicts
from rl.trackers import Trackers

Status = Literal["running", "completed", "failed", "cancelled"]

SHOWN = {
    "train_reward": "reward {:.3f}",
    "val_accuracy": "val {:.3f}",
    "train_truncation_rate": "truncated {:.0%}",
    "train_baseline_reward/pct_mixed": "mixed {:.0f}%",
    "train_timing/generation": "gen {:.1f}s",
    "train_timing/policy_training": "train {:.1f}s",
    "train_timing/weight_sync": "sync {:.1f}s",
    "train_timing/validation": "val {:.1f}s",
    "train_timing/total_step_time": "step {:.1f}s",
}
"""Metrics that the line of a step shows, in order, when the step has them."""
RECENT_STEPS = 5
"""Steps whose duration the ETA is made of."""


class Report:
    """Writes everything that a run leaves behind while it goes on; as a context, also how it ended."""

    def __init__(
        self,
        run: RunDirectory,
        plan: RunPlan,
        display: Display,
        *,
        backend: Literal["local", "nemo_rl"],
        health: HealthConfig,
        trackers: Trackers | None = None,
    ):
        self._run = run
        self._plan = plan
        self._display = display
        self._backend = backend
        self._health = health
        self._trackers = trackers
        self._history: list[Mapping[str, float]] = []
        self._metrics: dict[str, float] = {}
        self._step = 0

    def __enter__(self) -> Self:
        self._write_status("running", phase="starting")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        match error:
            case None:
                self._write_status("completed", phase="ended")
            case asyncio.CancelledError() | KeyboardInterrupt():
                self._write_status("cancelled", phase="ended")
            case _:
                self._write_status("failed", phase="ended", error=str(error) or repr(error))
        if self._trackers is not None:
            self._trackers.close()

    def doing(self, activity: str) -> None:
        """Say what the run does now."""
        self._display.steps(self._step, self._plan.num_steps, activity)
        self._write_status("running", phase=activity)

    def rollouts(self, step: int, rollouts: Sequence[Rollout], *, advantages: Sequence[float | None]) -> None:
        """Keep everything that was sampled for a step; the advantage is None where a group was not trained."""
        pairs = zip(rollouts, advantages, strict=True)
        self._run.write_rollouts(step, [asdict(rollout) | {"advantage": advantage} for rollout, advantage in pairs])

    def validation_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Keep the rollouts of a validation pass after ``step`` steps (0 is before the first)."""
        self._run.write_rollouts(step, [asdict(rollout) for rollout in rollouts], validation=True)

    def step(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step; step 0 is the validation before the first.

        Raises:
            RunFailed: a verdict holds for which the job says ``stop``.
        """
        self._run.append_metrics(metrics)
        self.show(metrics)

    def show(self, metrics: Mapping[str, float]) -> None:
        """``step`` for metrics that stand in metrics.jsonl already."""
        self._step = int(metrics["step"])
        self._metrics |= metrics
        self._history.append(metrics)
        self._display.line(step_line(metrics, num_steps=self._plan.num_steps, eta_s=self._eta()))
        self._display.steps(self._step, self._plan.num_steps, "")
        self._write_status("running", phase="training")
        if self._trackers is not None:
            self._trackers.log(metrics)
        for verdict, reaction in new_verdicts(self._history, self._health):
            if reaction == "stop":
                raise RunFailed(f"the run was stopped by its health: {verdict.line()}")
            self._display.line(f"warning: {verdict.line()}", style="yellow")

    def _eta(self) -> float | None:
        """Seconds that the steps to come will take; None before the first and after the last."""
        seconds = [
            line["train_timing/total_step_time"] for line in self._history if "train_timing/total_step_time" in line
        ]
        recent = seconds[-RECENT_STEPS:]
        left = self._plan.num_steps - self._step
        return left * sum(recent) / len(recent) if recent and left else None

    def _write_status(self, status: Status, *, phase: str, error: str | None = None) -> None:
        details = {
            "training_type": "grpo",
            "rollouts_per_step": self._plan.rollouts_per_step,
            "backend": self._backend,
            "phase": phase,
            "step": self._step,
            "num_steps": self._plan.num_steps,
            "metrics": self._metrics,
        }
        updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._run.write_json(
            "status.json", {"status": status, "updated_at": updated, "status_details": details, "error": error}
        )


def step_line(metrics: Mapping[str, float], *, num_steps: int, eta_s: float | None = None) -> str:
    """One line of a step.

    Example:
        step  3/16  reward 0.412  truncated 12%  mixed 88%  gen 4.1s  train 6.2s  sync 0.4s  step 10.9s  eta 2m22s
    """
    parts = [text.format(metrics[name]) for name, text in SHOWN.items() if name in metrics]
    if failed := metrics.get("train_failed_share"):
        parts.append(f"failed {failed:.0%}")
    if eta_s is not None:
        parts.append(f"eta {duration(eta_s)}")
    step = int(metrics["step"])
    where = "before training" if step == 0 else f"step {step:>{len(str(num_steps))}}/{num_steps}"
    return "  ".join([where, *parts])


def duration(seconds: float) -> str:
    """``95`` -> ``1m35s``, ``4000`` -> ``1h06m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
