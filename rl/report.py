"""What a run tells: lines for a person, and the files of its run directory.

loop --> Report --> Display (stderr)
                --> metrics.jsonl, rollouts/, status.json
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, Self

from gym_bridge.types import Rollout
from launcher.run_directory import RunDirectory
from launcher.schema.plan import RunPlan
from rl.display import Display

Status = Literal["running", "completed", "failed", "cancelled"]

SECONDS_SHOWN = {"generation": "gen", "policy_training": "train", "weight_sync": "sync", "validation": "val"}
"""Phases that the step line shows -> how it calls them."""


class Report:
    """Writes everything that a run leaves behind while it goes on."""

    def __init__(self, run: RunDirectory, plan: RunPlan, display: Display):
        self._run = run
        self._plan = plan
        self._display = display
        self._step_started = time.monotonic()
        self._step_seconds: list[float] = []
        self._step = 0
        self._metrics: dict[str, float | int] = {}

    def __enter__(self) -> Self:
        self._status("running", phase="starting")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Record how the run ended."""
        match error:
            case None:
                self._status("completed", phase="ended")
            case asyncio.CancelledError() | KeyboardInterrupt():
                self._status("cancelled", phase="ended")
            case _:
                self._status("failed", phase="ended", error=str(error) or repr(error))

    def doing(self, step: int, activity: str) -> None:
        """Say what the run does now."""
        self._step = step
        self._display.steps(step - 1 if step else 0, self._plan.num_steps, activity)
        self._status("running", phase=activity)

    def validation_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Keep the rollouts of a validation pass after ``step`` steps (0 is before the first)."""
        self._run.write_rollouts(step, [rollout_record(rollout) for rollout in rollouts], validation=True)

    def validated_at_start(self, metrics: Mapping[str, float]) -> None:
        """Record the validation pass before the first step."""
        self._append({"step": 0, **metrics})
        self._display.line(f"before training: reward {metrics['val_accuracy']:.3f} on unseen prompts")

    def step(
        self, step: int, metrics: Mapping[str, float | int], rollouts: Sequence[Rollout], advantages: Sequence[float]
    ) -> None:
        """Record a finished step."""
        records = [
            rollout_record(rollout) | {"advantage": advantage}
            for rollout, advantage in zip(rollouts, advantages, strict=True)
        ]
        self._run.write_rollouts(step, records)
        self._append({"step": step, **metrics})
        self._step_seconds.append(metrics["train_timing/total_step_time"])
        self._display.line(step_line(step, self._plan.num_steps, metrics, eta_s=self._eta(step)))
        self._display.steps(step, self._plan.num_steps, "")

    def warning(self, text: str) -> None:
        """Show something that needs attention."""
        self._display.line(f"warning: {text}", style="yellow")

    def _append(self, metrics: Mapping[str, float | int]) -> None:
        self._metrics |= metrics
        self._run.append_metrics(metrics)

    def _eta(self, step: int) -> float:
        recent = self._step_seconds[-5:]
        return (self._plan.num_steps - step) * sum(recent) / len(recent)

    def _status(self, status: Status, *, phase: str, error: str | None = None) -> None:
        details = {
            "training_type": "grpo",
            "rollouts_per_step": self._plan.rollouts_per_step,
            "backend": "local",
            "phase": phase,
            "step": self._step,
            "num_steps": self._plan.num_steps,
            "metrics": self._metrics,
        }
        updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._run.write_json(
            "status.json", {"status": status, "updated_at": updated, "status_details": details, "error": error}
        )


def step_line(step: int, num_steps: int, metrics: Mapping[str, float | int], *, eta_s: float) -> str:
    """One line of a step, with fixed keys.

    Example:
        step  3/16  reward 0.412  val 0.390  truncated 12%  mixed 88%  gen 4.1s train 6.2s sync 0.4s  10.9s  eta 2m22s
    """
    parts = [f"step {step:>{len(str(num_steps))}}/{num_steps}", f"reward {metrics['train_reward']:.3f}"]
    if "val_accuracy" in metrics:
        parts.append(f"val {metrics['val_accuracy']:.3f}")
    parts.append(f"truncated {metrics['train_truncation_rate']:.0%}")
    parts.append(f"mixed {metrics['train_baseline_reward/pct_mixed']:.0f}%")
    if failed := metrics["train_failed_share"]:
        parts.append(f"failed {failed:.0%}")
    phases = {short: metrics.get(f"train_timing/{name}") for name, short in SECONDS_SHOWN.items()}
    parts.append(" ".join(f"{short} {seconds:.1f}s" for short, seconds in phases.items() if seconds is not None))
    parts.append(f"{metrics['train_timing/total_step_time']:.1f}s")
    if step < num_steps:
        parts.append(f"eta {duration(eta_s)}")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """``95`` -> ``1m35s``, ``4000`` -> ``1h07m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def rollout_record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as the run directory keeps it."""
    return asdict(rollout)
