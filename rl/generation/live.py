"""Rollouts from the real thing: NeMo Gym's servers asking vLLM.

requests --> GymClient --> Gym agent --> Gym model server --> Gateway --> vLLM
                ^            |
                '-- reward --'-- Gym resources server (the environment)
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from gym_bridge.client import GymClient
from gym_bridge.install import gym_environment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.servers import Bounds, GymServers
from gym_bridge.types import Rollout, RolloutRequest
from gym_bridge.versions import gym_version
from launcher.environment.package import load_package
from rl.display import Display
from rl.generation.actor import GenerationSettings
from rl.generation.engine import VllmEngine
from rl.tasks import all_of


@dataclass(frozen=True, kw_only=True, slots=True)
class GymSettings:
    """How the environment runs."""

    package: Path
    """Folder of the environment package."""
    version: str
    """Of nemo-gym."""
    cache: Path
    """Where Gym's environments are kept between runs."""
    start_timeout_s: float
    rollout_timeout_s: float
    max_in_flight: int
    max_rollout_turns: int | None


class LiveSource:
    """A ``RolloutSource``: one vLLM and the servers of one environment package."""

    def __init__(self, engine: VllmEngine, servers: GymServers, *, gym: GymSettings, generation: GenerationSettings):
        self.engine = engine
        self.servers = servers
        self._gym = gym
        self._client = GymClient(
            servers.agents, sampling=generation.sampling, find_call=engine.find_call, watch=servers.watch
        )
        self._policy_version = 0

    @classmethod
    async def start(
        cls, generation: GenerationSettings, gym: GymSettings, *, log_folder: Path, scratch: Path, display: Display
    ) -> Self:
        """Install Gym if it is not there, start vLLM, start the environment's servers.

        Args:
            generation: how vLLM runs.
            gym: how the environment runs.
            log_folder: gets the logs of both.
            scratch: folder for temporary files of the run.
            display: shown the phases.

        Raises:
            RunFailed: a part could not start; names it and holds its last output.
            LauncherError: the package cannot be run as it is.
        """
        engine = await VllmEngine.launch(generation, log_folder=log_folder, scratch=scratch)
        async with AsyncExitStack() as started:
            started.push_async_callback(engine.close)

            async def load_vllm() -> None:
                with display.phase("starting vLLM") as say:
                    await engine.load(say)

            async def start_servers() -> GymServers:
                servers = await cls.start_servers(engine, generation, gym, log_folder=log_folder, display=display)
                started.push_async_callback(servers.close)
                return servers

            _, servers = await all_of(load_vllm(), start_servers())
            started.pop_all()  # both run: from here on ``close`` ends them
        return cls(engine, servers, gym=gym, generation=generation)

    @staticmethod
    async def start_servers(
        engine: VllmEngine, generation: GenerationSettings, gym: GymSettings, *, log_folder: Path, display: Display
    ) -> GymServers:
        """Install Gym if it is not there and start the environment's servers; arguments and errors as for ``start``."""
        package = load_package(gym.package)
        with display.phase(f"starting environment {package.manifest.metadata.name}") as say:
            environment = await gym_environment(
                gym_version(gym.version), cache=gym.cache, timeout_s=Bounds().install_s, on_progress=say
            )
            return await GymServers.start(
                package,
                PolicyEndpoint(base_url=engine.base_url, api_key=engine.api_key, model=engine.model_name),
                gym=environment,
                sampling=generation.sampling,
                cache=gym.cache,
                log_folder=log_folder,
                on_progress=say,
                max_rollout_turns=gym.max_rollout_turns,
                bounds=Bounds(ready_s=gym.start_timeout_s),
            )

    def collect(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        """Yield one rollout per request as each finishes; see ``RolloutSource``."""
        return self._client.rollouts(
            requests,
            max_in_flight=self._gym.max_in_flight,
            timeout_s=self._gym.rollout_timeout_s,
            policy_version=self._policy_version,
        )

    async def rest(self) -> None:
        """Give GPU memory back to the policy; see ``RolloutSource``."""
        await self.engine.sleep()

    async def update_weights(self, weights: Path, *, policy_version: int) -> None:
        """Give vLLM new weights; see ``RolloutSource``."""
        await self.engine.update_weights(weights, policy_version=policy_version)
        self._policy_version = policy_version

    async def watch(self) -> NoReturn:
        """Wait for as long as both vLLM and the environment live.

        Raises:
            RunFailed: one of them died; names it and holds its last output.
        """
        await all_of(self.engine.watch(), self.servers.watch())
        raise AssertionError("both watches return by raising")

    async def close(self) -> None:
        """End both."""
        try:
            await self.servers.close()
        finally:
            await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
