"""Ending a process with all that it started, when they share a process group."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

TRACKER = b"multiprocessing.resource_tracker"
PAUSE_S = 0.05


async def end_process_group(leader: int, *, timeout_s: float) -> None:
    """Kill every process of a group and wait until they are gone.

    Python's resource trackers are spared: they remove what the others left in shared memory, then end by themselves.

    Args:
        leader: process id of the group's first process.
        timeout_s: after this, trackers are killed as well.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while (members := group_members(leader)) and loop.time() < end:
        for pid in members:
            if not _is_tracker(pid):
                _kill(pid)
        await asyncio.sleep(PAUSE_S)
    for pid in members:
        _kill(pid)


async def wait_for_end(pid: int, *, timeout_s: float) -> None:
    """Wait until a process that was told to end is gone, or for as long as it may take."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while is_alive(pid) and loop.time() < end:
        await asyncio.sleep(PAUSE_S)


def group_members(leader: int) -> list[int]:
    """Living processes of a group, newest first."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        state, _, group, *_ = _fields(stat)
        if state not in "ZX" and group == str(leader):
            members.append(int(stat.parent.name))
    return sorted(members, reverse=True)


def is_alive(pid: int) -> bool:
    """False also for a process that has ended and waits for its parent to notice."""
    return _fields(Path(f"/proc/{pid}/stat"))[0] not in "ZX"


def _fields(stat: Path) -> list[str]:
    """State, parent, group, ... of a process; those of a dead one when it is gone."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0", "0"]


def _is_tracker(pid: int) -> bool:
    try:
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
