"""A folder that is made once and then shared: safe against runs at the same time and against interruption.

A folder is finished when it holds ``MARKER``. One without is what an interrupted run left: the next run, which holds
the lock file beside the folder, removes it and starts over.
"""

import asyncio
import contextlib
import fcntl
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from launcher.schema.problems import RunFailed

MARKER = ".complete"
LOCK_POLL_S = 0.2

OnProgress = Callable[[str], None]


async def made_once(
    folder: Path,
    make: Callable[[], Awaitable[None]],
    *,
    is_intact: Callable[[], bool],
    what: str,
    timeout_s: float,
    on_progress: OnProgress,
) -> None:
    """Make ``folder``, unless it is there already; leave nothing of it when that fails or is cancelled.

    Args:
        folder: its name must say what it holds, so that other content gets another folder.
        make: fills the folder, which does not exist yet.
        is_intact: whether a finished folder can still be used.
        what: the thing that is made, for messages.
        timeout_s: bound on making it, waiting for another run that makes it included.
        on_progress: told when another run is at it.

    Raises:
        RunFailed: it took too long; and whatever ``make`` raises.
    """

    def is_there() -> bool:
        return (folder / MARKER).exists() and is_intact()

    if is_there():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    try:
        async with asyncio.timeout(timeout_s), _locked(lock, lambda: on_progress(f"waiting for another run: {what}")):
            if is_there():
                return
            shutil.rmtree(folder, ignore_errors=True)
            try:
                await make()
                (folder / MARKER).touch()
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except TimeoutError:
        raise RunFailed(
            f"{what}: not done after {timeout_s:g} s. Check that the package index can be reached, and that no other "
            f"run hangs while it holds {lock}"
        ) from None


@contextlib.asynccontextmanager
async def _locked(path: Path, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Hold an exclusive lock that the kernel drops when we die. The file stays: removing it would open a race."""
    with path.open("w") as file:
        waiting = False
        while not _try_lock(file.fileno()):
            if not waiting:
                on_wait()
                waiting = True
            await asyncio.sleep(LOCK_POLL_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
