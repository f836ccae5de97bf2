"""The NeMo Gym servers of one environment package: started, watched and ended, with nothing left behind.

GymServers.start(package, policy) --> .agents: instance name -> URL --> gym_bridge.client
                                  --> .watch(): raises when a server or Gym's host process dies
                                  --> .close()
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from gym_bridge.host_process import HOST, HostProcess
from gym_bridge.install import GymEnvironment, ServerFolder, server_environment
from gym_bridge.once import OnProgress
from gym_bridge.package import TURN_LIMITS, PolicyEndpoint, agent_settings, gym_config
from gym_bridge.ports import free_port
from gym_bridge.wheelhouse import wheelhouse
from launcher.schema.manifest import Package
from launcher.schema.problems import LauncherError, Problem
from launcher.schema.sampling import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How long each part may take, in seconds."""

    parse_s: float = 120.0
    """Reading the package's config, Gym's imports included."""
    install_s: float = 900.0
    """Making one server's environment."""
    ray_s: float = 120.0
    """Starting Gym's Ray."""
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

    def __init__(self, host: HostProcess, *, agents: Mapping[str, str], pids: Mapping[str, int], stop_s: float):
        self.agents = agents
        self.pids = pids
        self._host = host
        self._stop_s = stop_s
        self._watching = asyncio.create_task(host.next_death(), name="watch NeMo Gym")

    @classmethod
    async def start(
        cls,
        package: Package,
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
            package, policy: what to start, and the model it forwards to, which need not answer yet.
            gym: from ``gym_environment``.
            sampling: for agents that take sampling values from their config instead of the row.
            cache: root of everything this project caches; server environments are kept there.
            log_folder: gets one ``<server>.log`` each and ``gym-host.log``.
            on_progress: told one line at a time what happens.
            max_rollout_turns: limit on model calls per rollout; None leaves it to the package.
            pass_variables: environment variables that the package needs beyond the usual ones.
            bounds: how long each part may take.

        Raises:
            RunFailed: Gym refused the package, an installation failed, or a server died or never answered.
            LauncherError: an agent has no limit of turns to set, or the package's wheels are missing.
        """
        wheels = await asyncio.to_thread(wheelhouse, package)
        on_progress("starting NeMo Gym's host process")
        host = await HostProcess.spawn(
            gym, log_folder=log_folder, pass_variables=pass_variables, on_progress=on_progress
        )
        try:
            host.tell(
                config=gym_config(package, policy, work=host.work, head_port=free_port()),
                ray_port=free_port(),
                agent_settings=agent_settings(sampling, max_rollout_turns=max_rollout_turns),
                package=str(package.root),
                log_folder=str(log_folder.resolve()),
            )
            parsed = await host.expect("servers", within_s=bounds.parse_s, doing="reading the config")
            planned = parsed["servers"]
            if max_rollout_turns is not None:
                _check_turn_limits(planned)
            environments = {
                plan["key"]: await server_environment(
                    gym,
                    _folder(plan),
                    wheelhouse=wheels,
                    cache=cache,
                    timeout_s=bounds.install_s,
                    on_progress=on_progress,
                )
                for plan in planned
            }
            on_progress(f"starting {len(planned)} NeMo Gym servers: {', '.join(plan['name'] for plan in planned)}")
            host.tell(environments={key: str(path) for key, path in environments.items()})
            await host.expect("started", within_s=bounds.ray_s, doing="starting Gym's Ray")
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
        try:
            await self._host.end(within_s=self._stop_s)
        finally:
            await asyncio.gather(self._watching, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _folder(plan: Mapping[str, Any]) -> ServerFolder:
    return ServerFolder(key=plan["key"], path=Path(plan["folder"]), built_in=plan["built_in"])


def _check_turn_limits(planned: Sequence[Mapping[str, Any]]) -> None:
    lacking = [
        Problem(
            code="R32", path="training.max_rollout_turns",
            message=f"agent {plan['name']!r} ({implementation}) has no limit of turns to set",
            fix=f"leave it unset, or use one of {', '.join(TURN_LIMITS)}",
        )
        for plan in planned
        for server_type, _, implementation in [plan["key"].partition("/")]
        if server_type == "responses_api_agents" and implementation not in TURN_LIMITS
    ]  # fmt: skip
    if lacking:
        raise LauncherError(lacking)
