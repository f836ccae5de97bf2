"""The engine's front door: blocking calls for the command line. Ray's variables are set before Ray is imported."""

import asyncio
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
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
    adapter: Path | None,
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
            driver.evaluate(
                job, plan, adapter=adapter, logs=Path(logs), num_samples=num_samples, max_rows=max_rows, split=split
            )
        )
    return reward_summary(rollouts)


def _until_done[T](main: Coroutine[Any, Any, T]) -> T:
    """Run to the end; the first Ctrl-C or SIGTERM cancels, and everything is cleaned up before this returns.

    Raises:
        KeyboardInterrupt: after the clean-up, when it was interrupted.
    """

    async def cancellable() -> T:
        task = asyncio.ensure_future(main)
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            if not interrupted:  # a second one would cut the clean-up short
                task.cancel()
            interrupted = True

        # Set here rather than left to Python, which ignores SIGINT in what a script starts with "&".
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
        try:
            return await task
        except asyncio.CancelledError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise

    return asyncio.run(cancellable())
