"""The NeMo Gym servers of one environment package: started, watched and ended, with nothing left behind.

    GymServers.start(package, policy) --> .agents: instance name -> URL --> gym_bridge.client
                                      --> .watch(): raises when a server or Gym's host process dies
                                      --> .close()

Gym runs in a host process (``host.py``, under Gym's own Python) in a session of its own, so that all of it can be ended
whatever state it is in. Gym's Ray and scratch files lie in a private temporary folder.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from gym_bridge.install import GymEnvironment, ServerFolder, server_environment
from gym_bridge.once import OnProgress
from gym_bridge.package import EnvironmentPackage, PolicyEndpoint, gym_config
from gym_bridge.session import kill_session
from gym_bridge.variables import gym_variables
from launcher.schema.problems import RunFailed
from launcher.schema.sampling import Sampling

HOST_SCRIPT = Path(__file__).with_name("host.py")
HOST = "gym-host"
"""Names the host process where servers are named by their instance: its log, what does not answer."""
NUM_LAST_LINES = 20
LONGEST_RAY_FOLDER = 40
"""Ray puts sockets about 65 characters below its folder, and the kernel allows 107."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How long each part may take, in seconds."""

    parse_s: float = 120.0
    """Reading the package's config, Gym's imports included."""
    install_s: float = 900.0
    """Making one server's environment."""
    ready_s: float = 300.0
    """From starting the servers until all of them answer."""
    stop_s: float = 8.0
    """An orderly end; what is left then is killed."""


class GymServers:
    """Running servers. ``async with await GymServers.start(...) as servers`` ends them whatever happens."""

    agents: Mapping[str, str]
    """Agent instance -> base URL, for the rows' ``agent_ref``."""
    pids: Mapping[str, int]
    """Server instance -> its process; Gym's host process is ``gym-host``."""

    def __init__(self, host: "_Host", *, agents: Mapping[str, str], pids: Mapping[str, int], stop_s: float):
        self.agents = agents
        self.pids = pids
        self._host = host
        self._stop_s = stop_s
        self._watching = asyncio.create_task(host.next_death(), name="watch NeMo Gym")

    @classmethod
    async def start(
        cls,
        package: EnvironmentPackage,
        policy: PolicyEndpoint,
        *,
        gym: GymEnvironment,
        sampling: Sampling,
        cache: Path,
        log_folder: Path,
        on_progress: OnProgress,
        max_rollout_turns: int | None = None,
        pass_variables: Sequence[str] = (),
        bounds: Bounds = Bounds(),
    ) -> Self:
        """Start a package's servers and wait until all of them answer.

        Args:
            package: what to start.
            policy: the model that the package's ``policy_model`` forwards to; need not answer yet.
            gym: from ``gym_environment``.
            sampling: for agents that take sampling values from their config instead of the row.
            cache: root of everything this project caches; server environments are kept there.
            log_folder: gets one ``<server>.log`` each and ``gym-host.log``.
            on_progress: told one line at a time what happens.
            max_rollout_turns: limit on model calls per rollout; None leaves it to the package.
            pass_variables: environment variables that the package needs beyond the usual ones.
            bounds: how long each part may take.

        Raises:
            RunFailed: Gym refused the package, an installation failed, or a server died or never answered; the message
                names it and holds its last output.
            LauncherError: the package has no limit of turns to set.
        """
        host = await _Host.spawn(gym, log_folder=log_folder, pass_variables=pass_variables)
        try:
            on_progress(f"reading the config of environment {package.name}")
            config = gym_config(
                package, policy, sampling=sampling, work=host.work, head_port=_free_port(),
                max_rollout_turns=max_rollout_turns,
            )  # fmt: skip
            host.tell(config=config, package=str(package.root), log_folder=str(log_folder.resolve()))
            parsed = await host.expect("servers", within_s=bounds.parse_s, doing="reading the config")
            planned = parsed["servers"]

            environments = {}
            for plan in planned:
                folder = ServerFolder(key=plan["key"], path=Path(plan["folder"]), built_in=plan["built_in"])
                environments[folder.key] = str(
                    await server_environment(
                        gym, folder, cache=cache, timeout_s=bounds.install_s, on_progress=on_progress
                    )
                )

            on_progress(f"starting {len(planned)} NeMo Gym servers: {', '.join(plan['name'] for plan in planned)}")
            host.tell(environments=environments)
            ready = await host.expect("ready", within_s=bounds.ready_s, doing="starting the servers")
        except BaseException:
            await host.end(within_s=bounds.stop_s)
            raise
        urls = {plan["name"]: f"http://{plan['host']}:{plan['port']}" for plan in planned}
        agents = {agent: urls[entry] for agent, entry in parsed["entries"].items()}
        return cls(host, agents=agents, pids=ready["pids"] | {HOST: host.pid}, stop_s=bounds.stop_s)

    async def watch(self) -> NoReturn:
        """Wait for as long as all servers live.

        Raises:
            RunFailed: a server or Gym's host process died; names it and holds its last output.
        """
        await asyncio.shield(self._watching)
        raise AssertionError("next_death() returns by raising")

    async def close(self) -> None:
        """End all of Gym's processes and remove its temporary folder; does nothing the second time."""
        self._watching.cancel()
        with suppress(asyncio.CancelledError, RunFailed):
            await self._watching
        await self._host.end(within_s=self._stop_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class _Host:
    """The host process, seen from the launcher."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reports: asyncio.StreamReader,
        pipe: asyncio.BaseTransport,
        *,
        work: Path,
        mark: str,
        logs: Path,
    ):
        self.work = work
        self._process = process
        self._reports = reports
        self._pipe = pipe
        self._mark = mark
        self._logs = logs
        self._silent: Sequence[str] = ()
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(cls, gym: GymEnvironment, *, log_folder: Path, pass_variables: Sequence[str]) -> Self:
        log_folder.mkdir(parents=True, exist_ok=True)
        mark = f"GRPO_GYM_RUN={secrets.token_hex(8)}"
        work = _short_temporary_folder()
        read_end, write_end = os.pipe()
        reports = asyncio.StreamReader()
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
                    str(gym.python), "-P", str(HOST_SCRIPT), str(write_end), cwd=work, env=variables,
                    pass_fds=[write_end], stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        except BaseException:
            pipe.close()
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            os.close(write_end)
        return cls(process, reports, pipe, work=work, mark=mark, logs=log_folder)

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
                    self._silent = report["servers"]
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
            how = _how(report["status"])
            raise RunFailed(f"NeMo Gym server {name} (pid {report['pid']}) {how}\n{self._last_output(name)}")
        return report

    def _last_output(self, name: str) -> str:
        path = self._logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-NUM_LAST_LINES:] if path.exists() else []
        return "\n".join([f"its last output ({path}):", *(f"  {line}" for line in lines or ["(none)"])])


def _how(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _short_temporary_folder() -> Path:
    work = Path(tempfile.mkdtemp(prefix="grpo-gym-")).resolve()
    if len(str(work)) > LONGEST_RAY_FOLDER:
        work.rmdir()
        work = Path(tempfile.mkdtemp(prefix="grpo-gym-", dir="/tmp")).resolve()
    return work
