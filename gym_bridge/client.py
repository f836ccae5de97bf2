"""Rollouts from running Gym servers: rows go to their agents, results come back in the order they finish.

    RolloutRequest --(rows)--> POST <agent>/run --(responses)--> Rollout

Gym's own client waits for ever and retries for ever. Here each rollout has a bound, and one that fails costs only
itself.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import aiohttp

from gym_bridge.responses import FindCall, failed_rollout, finished_rollout, http_failure
from gym_bridge.rows import agent_name, run_request
from gym_bridge.types import Rollout, RolloutRequest
from launcher.schema.problems import LauncherError, Problem
from launcher.schema.sampling import Sampling

DISCONNECTED_PAUSE_S = 1.0
"""Before a broken connection counts as a failed rollout: if a server died, the watch says so within that time."""


class GymClient:
    """Asks the agents of one environment for rollouts."""

    def __init__(
        self,
        agents: Mapping[str, str],
        *,
        sampling: Sampling,
        find_call: FindCall,
        watch: Callable[[], Awaitable[None]],
    ):
        """
        Args:
            agents: agent instance -> base URL (``GymServers.agents``).
            sampling: overwrites what rows say.
            find_call: finish reason and policy version of a model call, by its sampled tokens.
            watch: never returns, and raises when the servers can no longer answer (``GymServers.watch``).
        """
        self._agents = agents
        self._sampling = sampling
        self._find_call = find_call
        self._watch = watch

    async def rollouts(
        self, requests: Sequence[RolloutRequest], *, max_in_flight: int, timeout_s: float, policy_version: int
    ) -> AsyncGenerator[Rollout]:
        """Yield one rollout per request as each finishes, failed ones included. Close the iterator to cancel the rest.

        Args:
            requests: what to sample.
            max_in_flight: bound on rollouts at a time.
            timeout_s: bound on one rollout.
            policy_version: of model calls that ``find_call`` does not know.

        Raises:
            LauncherError: a row names an agent that the environment does not have.
            RunFailed: from ``watch``.
        """
        if not requests:
            return
        self._check_agents(requests)
        finished: asyncio.Queue[Rollout | BaseException] = asyncio.Queue()
        waiting = iter(requests)
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:

            async def work() -> None:
                for request in waiting:
                    finished.put_nowait(await self._rollout(session, request, timeout_s, policy_version))

            async def watch() -> None:
                await self._watch()

            def hand_over_failure(task: asyncio.Task[None]) -> None:
                """To the consumer, which would otherwise wait for ever."""
                if not task.cancelled() and (error := task.exception()):
                    finished.put_nowait(error)

            workers = [work() for _ in range(min(max_in_flight, len(requests)))]
            tasks = [asyncio.create_task(job) for job in (watch(), *workers)]
            for task in tasks:
                task.add_done_callback(hand_over_failure)
            try:
                for _ in requests:
                    rollout = await finished.get()
                    if isinstance(rollout, BaseException):
                        raise rollout
                    yield rollout
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _rollout(
        self, session: aiohttp.ClientSession, request: RolloutRequest, timeout_s: float, policy_version: int
    ) -> Rollout:
        agent = agent_name(request.row)
        started = time.monotonic()

        def failed(reason: str) -> Rollout:
            return failed_rollout(
                request, reason, agent=agent, policy_version=policy_version, duration_s=time.monotonic() - started
            )

        body = json.dumps(run_request(request, self._sampling))
        try:
            async with session.post(
                f"{self._agents[agent]}/run", data=body, headers={"Content-Type": "application/json"}
            ) as response:
                text = (await response.read()).decode(errors="replace")
        except TimeoutError:
            return failed(f"timeout: no result after {timeout_s:g} s")
        except aiohttp.ClientError as error:
            await asyncio.sleep(DISCONNECTED_PAUSE_S)
            return failed(f"no connection to {agent}: {error}")
        if response.status != 200:
            return failed(http_failure(response.status, text, agent=agent))
        with suppress(ValueError, RecursionError):
            result = json.loads(text)
            if isinstance(result, dict):
                return finished_rollout(
                    request, result, agent=agent, find_call=self._find_call, policy_version=policy_version,
                    duration_s=time.monotonic() - started,
                )  # fmt: skip
        return failed(f"{agent} answered with something that is not a JSON object: {text[:80]!r}")

    def _check_agents(self, requests: Sequence[RolloutRequest]) -> None:
        named = {agent_name(request.row): request.row_index for request in reversed(requests)}
        unknown = {name: row for name, row in named.items() if name not in self._agents}
        if unknown:
            available = ", ".join(sorted(self._agents))
            raise LauncherError(
                Problem(
                    code="unknown-agent", path=f"dataset row {row + 1}",
                    message=f"agent_ref.name is {name!r}; the environment has {available}",
                    fix="name one of these agents in the row, or train with the environment that has it",
                )
                for name, row in unknown.items()
            )  # fmt: skip
