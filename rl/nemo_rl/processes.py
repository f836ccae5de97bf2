"""Processes of the checkout's environment: started in a session of their own, written to a file, ended for certain."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_POLL_S = 0.1
_GRACE_S = 15.0
"""Between asking a process to end and ending it."""


@asynccontextmanager
async def running(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, output: Path
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run ``command`` with both its outputs appended to ``output``; afterwards nothing of its session is left.

    Args:
        command: program and arguments.
        environment: all of its variables.
        folder: its working directory.
        output: file, made when absent.
    """
    with output.open("ab") as sink:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await _end_session(process)


async def ended(process: subprocess.Popen[bytes], *, timeout_s: float) -> int | None:
    """The exit status of a process, or None when it still runs after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
    return process.poll()


async def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Ask the leader, which ends its own children in good order (Ray needs 3 s), then end whatever is left."""
    try:
        if process.poll() is None:
            process.terminate()
            await ended(process, timeout_s=_GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our own variables without those that name our Python environment or another Ray cluster, and ``extra``."""
    ours = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"PYTHONUNBUFFERED": "1"} | dict(extra)
