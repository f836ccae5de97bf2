"""Ending a process with all that it started."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from rl.process_group import end_process_group, group_members, is_alive, wait_for_end

PARENT = """
import multiprocessing, time
if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    lock = spawn.Lock()  # starts a resource tracker, and leaves a name in shared memory until that removes it
    children = [spawn.Process(target=time.sleep, args=(60,)) for _ in range(2)]
    [child.start() for child in children]
    print(lock._semlock.name, flush=True)
    time.sleep(60)
"""


def test_children_go_along_and_shared_memory_is_cleaned(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        name = parent.stdout.readline().strip()
        assert Path(f"/dev/shm/sem.{name.lstrip('/')}").exists()
        assert len(group_members(parent.pid)) == 4  # itself, its tracker, its children
        started = time.monotonic()
        asyncio.run(end_process_group(parent.pid, timeout_s=60))
        assert time.monotonic() - started < 45, "the tracker ends by itself"
    assert group_members(parent.pid) == []
    assert not Path(f"/dev/shm/sem.{name.lstrip('/')}").exists()


def test_a_group_that_is_gone_costs_nothing():
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait()
    asyncio.run(end_process_group(process.pid, timeout_s=10))
    assert not is_alive(process.pid)


def test_a_process_nobody_has_waited_for_is_not_alive():
    process = subprocess.Popen(["true"])
    asyncio.run(wait_for_end(process.pid, timeout_s=10))
    assert Path(f"/proc/{process.pid}").exists()
    assert not is_alive(process.pid)
    process.wait()


def test_waiting_for_an_end_that_does_not_come_is_bounded():
    with subprocess.Popen(["sleep", "60"]) as process:
        asyncio.run(wait_for_end(process.pid, timeout_s=0.2))
        assert is_alive(process.pid)
        process.kill()
