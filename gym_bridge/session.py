"""Ending all processes of a session, however deep their tree, without a trace. Linux only: reads ``/proc``."""

import os
import signal
import time
from pathlib import Path


def session_processes(session: int, *, mark: str | None = None) -> list[int]:
    """Pids of the live processes of a session.

    Args:
        session: pid of the process that was started in a session of its own.
        mark: ``NAME=value`` in their environment; finds those, too, that went into yet another session.
    """
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if _belongs(pid, session, mark)]


def kill_session(session: int, *, mark: str | None = None, timeout_s: float = 5.0) -> list[int]:
    """Kill all processes of a session and wait until they are gone; the session's first process included.

    Returns:
        The pids that would not die in time; empty but for processes stuck in the kernel.
    """
    deadline = time.monotonic() + timeout_s
    while pids := session_processes(session, mark=mark):
        if time.monotonic() > deadline:
            return pids
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return []


def _belongs(pid: int, session: int, mark: str | None) -> bool:
    try:
        # "pid (name) state ppid pgrp session ...", where name may hold anything
        state, _, _, found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        if state in "ZX":
            return False
        if int(found) == session:
            return True
        return mark is not None and mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
