"""``grpo train`` as a user runs it, with the real model, vLLM and NeMo Gym: interrupted, and with parts killed.

Each test starts one run of the demo and looks at what is left of it: processes (found by a variable that they inherit,
or by writing into the run directory), temporary folders, shared memory.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GRPO = Path(sys.executable).with_name("grpo")
START_S = 400.0
MARK = "GRPO_TEST_RUN"


class Run:
    """A ``grpo train`` in a process of its own, and everything that belongs to it."""

    def __init__(self, folder: Path, *overrides: str):
        self.folder = folder
        self.mark = f"{MARK}={secrets.token_hex(8)}"
        self.output = folder / "output"
        self.before = temporary_folders()
        name, _, value = self.mark.partition("=")
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [GRPO, "train", "recipe=demo", "training.val_at_start=false", "training.val_at_end=false",
                 "training.max_steps=28", f"engine.runs_dir={folder / 'runs'}", *overrides],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, name: value},
                start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self.output.read_text()

    def directory(self) -> Path:
        (found,) = (self.folder / "runs").glob("*/*")
        return found

    def phase(self) -> str:
        try:
            status = json.loads((self.directory() / "status.json").read_text())
        except (ValueError, OSError):
            return ""
        return str(status["status_details"]["phase"])

    def wait_for(self, condition: Callable[[], bool], *, seconds: float = START_S) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the run ended too early:\n{self.text()}"
            assert time.monotonic() < end, f"waited {seconds:.0f} s:\n{self.text()}"
            time.sleep(0.05)

    def ended(self, *, within_s: float) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {within_s:.0f} s; left: {self.processes()}\n{self.text()}")

    def processes(self) -> dict[int, str]:
        """Every living process of the run: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and self._owns(entry):
                try:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
                except OSError:
                    continue
        return {pid: command for pid, command in found.items() if command}

    def _owns(self, entry: Path) -> bool:
        try:
            if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                return True
            return any(os.readlink(entry / "fd" / fd).startswith(str(self.folder / "runs")) for fd in ("1", "2"))
        except OSError:
            return False

    def left_behind(self) -> list[str]:
        """What outlived the run: its processes, and temporary folders that no other run on this machine uses."""
        others = b"\n".join(
            _readable(entry, name) for entry in Path("/proc").glob("[0-9]*") for name in ("cmdline", "environ")
        )
        folders = [folder for folder in temporary_folders() - self.before if str(folder).encode() not in others]
        return [f"process {pid} {command}" for pid, command in self.processes().items()] + sorted(map(str, folders))


def _readable(entry: Path, name: str) -> bytes:
    try:
        return (entry / name).read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended with one that was killed before
        os.kill(pid, signal.SIGKILL)


def temporary_folders() -> set[Path]:
    return {*Path("/tmp").glob("grpo-*"), *Path("/dev/shm").glob("grpo-*"), *Path("/tmp").glob("*wandb*")}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(*overrides: str) -> Run:
        runs.append(Run(tmp_path, *overrides))
        return runs[-1]

    yield make
    for pid in [pid for run in runs for pid in run.processes()]:
        kill(pid)


@pytest.mark.parametrize("moment", ["starting vLLM", "generating", "training"])
def test_ctrl_c_leaves_nothing(start: Callable[..., Run], moment: str) -> None:
    run = start()
    if moment == "starting vLLM":
        run.wait_for(lambda: "starting vLLM" in run.text())
        time.sleep(8)  # in the middle of it
    else:
        run.wait_for(lambda: run.phase() == moment)
        time.sleep(0.5)
    run.process.send_signal(signal.SIGINT)
    status = run.ended(within_s=15)
    assert status == 130, run.text()
    assert "Traceback" not in run.text()
    assert run.left_behind() == []
    assert json.loads((run.directory() / "status.json").read_text())["status"] == "cancelled"


def test_a_killed_vllm_ends_the_run_with_its_name(start: Callable[..., Run]) -> None:
    run = start("training.temperature=0.7")
    run.wait_for(lambda: run.phase() == "generating")
    (actor,) = (pid for pid, command in run.processes().items() if "VllmActor" in command)
    kill(actor)
    assert run.ended(within_s=60) == 3, run.text()
    assert re.search(r"run failed: .*vLLM", run.text())
    assert "its last output" in run.text()
    assert "Traceback" not in run.text()
    assert run.left_behind() == []
    assert "temperature: 0.7" in (run.directory() / "config.yaml").read_text()


def test_a_killed_gym_server_ends_the_run_with_its_name(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.phase() == "training")
    servers = [
        pid for pid, command in run.processes().items()
        if Path(f"/proc/{pid}/fd/1").resolve().name == "numbered_list.log" and "python" in command
    ]  # fmt: skip
    for server in servers:
        kill(server)
    assert run.ended(within_s=60) == 3, run.text()
    assert re.search(r"NeMo Gym server numbered_list \(pid \d+\) was killed by SIGKILL", run.text())
    assert "Traceback" not in run.text()
    assert run.left_behind() == []
