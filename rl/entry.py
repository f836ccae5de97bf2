"""The engine's front door: blocking calls for the command line. Ray's variables are set before Ray is imported."""

import asyncio
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from launcher.run_directory import RunDirectory
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from rl.cluster import prepare_ray
from rl.summary import run_summary

if TYPE_CHECKING:
    from rl.reward_summary import RewardSummary


def train(job: JobConfig, plan: RunPlan, run: RunDirectory) -> str:
    """Train a checked job into its run directory; gives a summary for a person.

    Raises:
        RunFailed: a part could not start, or died.
        KeyboardInterrupt: after everything was ended.
    """
    if job.engine.name == "nemo_rl":
        from rl.nemo_rl.run import train as train_on_nemo_rl  # needs no torch

        _until_done(train_on_nemo_rl(job, plan, run))
    else:
        prepare_ray(address=job.cluster.address)
        from rl import driver  # imports Ray

        _until_done(driver.train(job, plan, run))
    return run_summary(run, plan)


def evaluate(
    job: JobConfig,
    plan: RunPlan,
    *,
    num_samples: int,
    max_rows: int | None,
    split: Literal["validation", "training"] | None,
) -> "RewardSummary":
    """Rewards of a job's model on its rows, without training; arguments as for ``rl.driver.evaluate``."""
    prepare_ray(address=job.cluster.address)
    from rl import driver  # imports Ray
    from rl.reward_summary import reward_summary

    with tempfile.TemporaryDirectory(prefix="grpo-eval-") as logs:
        rollouts = _until_done(
            driver.evaluate(job, plan, logs=Path(logs), num_samples=num_samples, max_rows=max_rows, split=split)
        )
    return reward_summary(rollouts)


def _until_done[T](main: Coroutine[Any, Any, T]) -> T:
    """Run to the end; Ctrl-C and SIGTERM cancel, and everything is cleaned up before this returns."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        return asyncio.run(main)
    finally:
        signal.signal(signal.SIGTERM, previous)
