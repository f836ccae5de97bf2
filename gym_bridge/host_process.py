"""Gym's host process (``host.py``) seen from the launcher: started, told, listened to, ended.

It runs under Gym's own Python, in a session of its own so that all of it can be ended whatever state it is in. Gym's
Ray and every scratch file lie in a private temporary folder.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

from gym_bridge.causes import missing_module
from gym_bridge.install import GymEnvironment
from gym_bridge.once import OnProgress
from gym_bridge.session import kill_session
from gym_bridge.variables import gym_variables
from launcher.schema.problems import RunFailed

SCRIPT = Path(__file__).with_name("host.py")
HOST = "gym-host"
"""Names this process where servers are named by their instance: its log, what does not answer."""
NUM_LAST_LINES = 20
MOST_LAST_BYTES = 2**14
LONGEST_REPORT_BYTES = 2**24
"""A refusal of Gym's may hold a whole config."""
LONGEST_RAY_FOLDER = 40
"""Ray puts sockets about 65 characters below its folder, and the kernel allows 107."""


class HostProcess:
    """A running host. Whoever spawned it calls ``end``, whatever happened in between."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reports: asyncio.StreamReader,
        pipe: asyncio.BaseTransport,
        *,
        work: Path,
        mark: str,
        logs: Path,
        on_progress: OnProgress,
    ):
        self.work = work
        self._process = process
        self._reports = reports
        self._pipe = pipe
        self._mark = mark
        self._logs = logs
        self._on_progress = on_progress
        self._silent: Sequence[str] = ()  # servers that do not answer yet
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(
        cls, gym: GymEnvironment, *, log_folder: Path, pass_variables: Sequence[str], on_progress: OnProgress
    ) -> Self:
        log_folder.mkdir(parents=True, exist_ok=True)
        mark = f"GRPO_GYM_RUN={secrets.token_hex(8)}"
        work = _short_temporary_folder()
        read_end, write_end = os.pipe()
        reports = asyncio.StreamReader(limit=LONGEST_REPORT_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reports), os.fdopen(read_end, "rb")
        )
        try:
            variables = gym_variables(
                os.environ, work=work, ray_token=secrets.token_hex(32), mark=mark, bytecode=gym.bytecode,
                extra=pass_variables,
            )  # fmt: skip
            variables["PATH"] = f"{gym.root / 'bin'}:{variables['PATH']}"
            with (log_folder / f"{HOST}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    str(gym.python), "-P", str(SCRIPT), str(write_end), cwd=work, env=variables,
                    pass_fds=[write_end], stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        except BaseException:
            pipe.close()
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            os.close(write_end)
        return cls(process, reports, pipe, work=work, mark=mark, logs=log_folder, on_progress=on_progress)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **wish: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wish).encode() + b"\n")

    async def expect(self, event: str, *, within_s: float, doing: str) -> dict[str, Any]:
        """The next report of this kind.

        Raises:
            RunFailed: a refusal or a death came instead, or nothing came in time.
        """
        try:
            async with asyncio.timeout(within_s):
                while (report := await self._next_report())["event"] != event:
                    pass
                return report
        except TimeoutError:
            names = self._silent or [HOST]
            words = "\n".join(self._last_output(name) for name in names)
            raise RunFailed(
                f"NeMo Gym: {doing} took more than {within_s:g} s; no answer from {', '.join(names)}\n{words}"
            ) from None

    async def next_death(self) -> NoReturn:
        """Raise ``RunFailed`` as soon as a server or the host is gone."""
        while True:
            await self._next_report()

    async def end(self, *, within_s: float) -> None:
        """Ask the host to stop, then kill whatever is left of its session, then remove its folder."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(within_s), name="end NeMo Gym")
        await asyncio.shield(self._ending)

    async def _end(self, within_s: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), within_s)
        finally:
            kill_session(self._process.pid, mark=self._mark)
            self._pipe.close()
            shutil.rmtree(self.work, ignore_errors=True)
            await self._process.wait()

    async def _next_report(self) -> dict[str, Any]:
        line = await self._reports.readline()
        if not line:
            status = await self._process.wait()
            raise RunFailed(f"NeMo Gym's host process {_how(status)}\n{self._last_output(HOST)}")
        report: dict[str, Any] = json.loads(line)
        if report["event"] == "refused":
            raise RunFailed(f"NeMo Gym refused the environment: {report['message']}")
        if report["event"] == "died":
            name = report["server"]
            words = self._last_output(name)
            how = "; ".join(filter(None, (_how(report["status"]), missing_module(words))))
            raise RunFailed(f"NeMo Gym server {name} (pid {report['pid']}) {how}\n{words}")
        if report["event"] == "doing":
            self._on_progress(report["what"])
        if "silent" in report:
            self._silent = report["silent"]
            self._on_progress(f"waiting for {', '.join(self._silent)}" if self._silent else "all servers answer")
        return report

    def _last_output(self, name: str) -> str:
        path = self._logs / f"{name}.log"
        lines = _last_lines(path) if path.exists() else []
        return "\n".join([f"its last output ({path}):", *(f"  {line}" for line in lines or ["(none)"])])


def _last_lines(path: Path) -> list[str]:
    """The end of a log, which may have grown to any size; a line longer than what is read counts from there."""
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - MOST_LAST_BYTES))
        return log.read().decode(errors="replace").splitlines()[-NUM_LAST_LINES:]


def _how(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _short_temporary_folder() -> Path:
    work = Path(tempfile.mkdtemp(prefix="grpo-gym-")).resolve()
    if len(str(work)) > LONGEST_RAY_FOLDER:
        work.rmdir()
        work = Path(tempfile.mkdtemp(prefix="grpo-gym-", dir="/tmp")).resolve()
    return work
