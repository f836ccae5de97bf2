"""``grpo train``: compose, check and run a job."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.checking import check_job
from launcher.cli import print_problems
from launcher.commands.check import add_job_arguments
from launcher.run_directory import RunDirectory, create_run_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo train``."""
    add_job_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Train one job."""
    checked = check_job(options.overrides, job_json=options.job)
    plan = checked.require_valid()
    print_problems(checked.problems, as_json=False)
    job = checked.resolved.job
    directory = create_run_directory(Path(job.engine.runs_dir), plan.run_name)
    directory.write_text("config.yaml", checked.resolved.to_yaml())
    directory.write_text("origins.json", checked.resolved.origins_json())
    directory.write_json("plan.json", asdict(plan))
    print(f"run directory: {directory.path}", file=sys.stderr)

    from rl.driver import train  # needs the engine's packages, which a machine that only checks lacks

    run_until_done(train(job, plan, directory))
    return 0


def run_until_done[T](main: Coroutine[Any, Any, T]) -> T:
    """Run an engine coroutine; Ctrl-C and SIGTERM cancel it, and it cleans up before this returns.

    Raises:
        KeyboardInterrupt: after the clean-up, when it was interrupted.
    """

    def terminate(signum: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        return asyncio.run(main)
    finally:
        signal.signal(signal.SIGTERM, previous)
