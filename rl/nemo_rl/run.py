"""A checked job on NeMo RL, into its run directory: what ``grpo train engine=nemo_rl`` does after the check."""

import asyncio
import time
from collections.abc import Mapping
from typing import Literal

from launcher.run_directory import RunDirectory
from launcher.schema.groups import HealthConfig
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import LauncherError, RunFailed
from rl.display import Display, open_display
from rl.health import new_verdicts
from rl.nemo_rl.checkout import open_checkout
from rl.nemo_rl.inputs import run_files
from rl.nemo_rl.launch import Finished, train_on_nemo_rl

Status = Literal["running", "completed", "failed", "cancelled"]


async def train(job: JobConfig, plan: RunPlan, run: RunDirectory) -> Finished:
    """Train a checked job; ``status.json`` follows it, and a line per step goes to stderr.

    Raises:
        LauncherError: the checkout, the cluster or a file is not what the job needs.
        RunFailed: with the cause.
    """
    with open_display() as display:
        progress = Progress(run, plan, display, job.health)
        try:
            finished = await _train(job, plan, run, display, progress)
        except (LauncherError, RunFailed) as error:
            progress.ended("failed", error=str(error))
            raise
        except asyncio.CancelledError:
            progress.ended("cancelled")
            raise
        progress.ended("completed")
        return finished


async def _train(job: JobConfig, plan: RunPlan, run: RunDirectory, display: Display, progress: "Progress") -> Finished:
    checkout, warnings = open_checkout(job.engine.root)
    for warning in warnings:
        display.line(f"warning: {warning.message}. {warning.fix}", style="yellow")
    with display.phase("NeMo RL") as say:

        def doing(activity: str) -> None:
            say(activity)
            progress.doing(activity)

        files, package = run_files(job, output=run.path, on_progress=doing)
        return await train_on_nemo_rl(
            job, plan, files, checkout=checkout, package=package, run=run, on_progress=doing, on_step=progress.step
        )


class Progress:
    """What a run tells while it goes on: ``status.json``, and lines for a person."""

    def __init__(self, run: RunDirectory, plan: RunPlan, display: Display, health: HealthConfig):
        self._run = run
        self._plan = plan
        self._display = display
        self._health = health
        self._history: list[Mapping[str, float]] = []
        self._step = 0
        self._metrics: dict[str, float] = {}
        self.doing("starting")

    def doing(self, activity: str) -> None:
        """Record what the run does now."""
        self._status("running", phase=activity)

    def step(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step; step 0 is the validation before the first.

        Raises:
            RunFailed: a verdict holds for which the job says ``stop``.
        """
        self._step = int(metrics["step"])
        self._metrics |= metrics
        self._display.line(step_line(metrics, num_steps=self._plan.num_steps))
        self._display.steps(self._step, self._plan.num_steps, "")
        self._status("running", phase="training")
        self._history.append(metrics)
        for verdict, reaction in new_verdicts(self._history, self._health):
            if reaction == "stop":
                raise RunFailed(f"the run was stopped by its health: {verdict.line()}")
            self._display.line(f"warning: {verdict.line()}", style="yellow")

    def ended(self, status: Status, *, error: str | None = None) -> None:
        """Record how the run ended."""
        self._status(status, phase="ended", error=error)

    def _status(self, status: Status, *, phase: str, error: str | None = None) -> None:
        details = {
            "training_type": "grpo",
            "rollouts_per_step": self._plan.rollouts_per_step,
            "backend": "nemo_rl",
            "phase": phase,
            "step": self._step,
            "num_steps": self._plan.num_steps,
            "metrics": self._metrics,
        }
        updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._run.write_json(
            "status.json", {"status": status, "updated_at": updated, "status_details": details, "error": error}
        )


def step_line(metrics: Mapping[str, float], *, num_steps: int) -> str:
    """One line of a step, of what NeMo RL logged of it.

    Example:
        step 3/16  reward 0.412  val 0.390  truncated 12%  mixed 88%  10.9s
    """
    shown = {
        "train_reward": "reward {:.3f}",
        "val_accuracy": "val {:.3f}",
        "train_truncation_rate": "truncated {:.0%}",
        "train_baseline_reward/pct_mixed": "mixed {:.0f}%",
        "train_timing/total_step_time": "{:.1f}s",
    }
    parts = [text.format(metrics[name]) for name, text in shown.items() if name in metrics]
    step = int(metrics["step"])
    return "  ".join([f"step {step:>{len(str(num_steps))}}/{num_steps}", *parts])
