"""Starting and ending the real NeMo Gym: refusals, deaths, cancellation, and nothing left behind.

Every process started here inherits ``TEST_MARK``, and so can be found whatever became of it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gym_bridge.client import GymClient
from gym_bridge.install import GymEnvironment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.types import RolloutRequest
from launcher.schema.problems import LauncherError, RunFailed
from tests.gym_bridge.conftest import DEMO, ROOT, demo_rows
from tests.gym_bridge.fake_policy import Answer, fake_policy
from tests.gym_bridge.starting import SAMPLING, left_behind, mine, package_of, start


def listens(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize(
    ("victim", "message", "last_words"),
    [
        ("numbered_list", "NeMo Gym server numbered_list (pid ", "Uvicorn running on"),
        ("gym-host", "NeMo Gym's host process was killed by SIGKILL", "Started a local Ray instance"),
    ],
)
def test_a_process_killed_while_rollouts_run_is_named_with_its_last_words(
    test_mark: str, gym: GymEnvironment, tmp_path: Path, victim: str, message: str, last_words: str
) -> None:
    async def scenario() -> tuple[str, float, str]:
        async with fake_policy(lambda _: Answer(text="1. red", delay_s=30)) as policy:
            endpoint = PolicyEndpoint(base_url=policy.base_url, api_key="none", model="policy")
            async with await start(DEMO / "environment", gym, tmp_path, policy=endpoint) as servers:
                client = GymClient(servers.agents, sampling=SAMPLING, find_call=lambda _: None, watch=servers.watch)
                requests = [RolloutRequest(group_id=0, rollout_id=0, row_index=0, row=demo_rows(1)[0])]
                rollouts = client.rollouts(requests, max_in_flight=1, timeout_s=60, policy_version=0)
                asyncio.get_running_loop().call_later(0.5, os.kill, servers.pids[victim], signal.SIGKILL)
                started = time.monotonic()
                with pytest.raises(RunFailed) as raised:
                    await anext(rollouts)
                return str(raised.value), time.monotonic() - started, servers.agents["numbered_list_agent"]

    failure, seconds, url = asyncio.run(scenario())
    assert failure.startswith(message)
    assert "was killed by SIGKILL\nits last output (" in failure
    assert last_words in failure
    assert seconds < 25, "the policy answers after 30"
    assert not listens(url)


def test_cancelling_while_servers_start_leaves_nothing(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    async def scenario() -> None:
        starting = asyncio.Event()

        def on_progress(line: str) -> None:
            if line.startswith("starting 3"):
                asyncio.get_running_loop().call_later(3, starting.set)

        task = asyncio.create_task(start(DEMO / "environment", gym, tmp_path, on_progress=on_progress))
        await asyncio.wait([task, asyncio.ensure_future(starting.wait())], return_when=asyncio.FIRST_COMPLETED)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


async def sample_until_the_end(package: Path, gym: GymEnvironment, tmp_path: Path) -> None:
    """What a launcher does: 8 rollouts in flight that the policy never finishes."""
    async with fake_policy(lambda _: Answer(text="1. red", delay_s=60)) as policy:
        endpoint = PolicyEndpoint(base_url=policy.base_url, api_key="none", model="policy")
        async with await start(package, gym, tmp_path, policy=endpoint) as servers:
            client = GymClient(servers.agents, sampling=SAMPLING, find_call=lambda _: None, watch=servers.watch)
            requests = [
                RolloutRequest(group_id=i, rollout_id=0, row_index=i, row=row) for i, row in enumerate(demo_rows(8))
            ]
            rollouts = client.rollouts(requests, max_in_flight=8, timeout_s=60, policy_version=0)
            first = asyncio.ensure_future(anext(rollouts))
            while len(policy.requests) < 8:
                await asyncio.sleep(0.1)
            print(*servers.agents.values(), flush=True)
            await first


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_launcher_is_interrupted_or_killed_while_it_samples(
    test_mark: str, gym: GymEnvironment, tmp_path: Path, kind: signal.Signals
) -> None:
    script = f"""
import asyncio
import signal
from pathlib import Path
from gym_bridge.install import GymEnvironment
from tests.gym_bridge.test_lifecycle import sample_until_the_end
gym = GymEnvironment(version={gym.version!r}, root=Path({str(gym.root)!r}), base_python=Path("unused"))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell started in the background
asyncio.run(sample_until_the_end(Path({str(DEMO / "environment")!r}), gym, Path({str(tmp_path)!r})))
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        url = next(line for line in launcher.stdout if line.startswith("http")).strip()
        assert listens(url)
        launcher.send_signal(kind)
        assert left_behind(test_mark) == []
    assert not listens(url)


def test_what_gym_refuses_is_told_in_gym_s_words(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=r"(?s)refused the environment: AlmostServerError:.*Almost-Servers Detec.*domain"
    ):
        asyncio.run(start(package_of(tmp_path, mine(domain="sports")), gym, tmp_path))

    model = {"type": "responses_api_models", "name": "policy_model"}
    agent = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "model_server": model}}}
    with pytest.raises(RunFailed, match=r"(?s)ServerRefNotFoundError.*Available responses_api_models: \(none\)"):
        asyncio.run(start(package_of(tmp_path, {**mine(), "agent": agent}), gym, tmp_path))


def test_a_limit_of_turns_for_an_agent_without_one_is_refused(
    test_mark: str, gym: GymEnvironment, tmp_path: Path
) -> None:
    resources = {"type": "resources_servers", "name": "mine"}
    agent = {
        "responses_api_agents": {"langgraph_agent": {"entrypoint": "rewoo_agent.py", "resources_server": resources}}
    }
    with pytest.raises(LauncherError, match=r"agent 'agent' \(langgraph_agent\) has no limit of turns to set"):
        asyncio.run(start(package_of(tmp_path, {**mine(), "agent": agent}), gym, tmp_path, max_rollout_turns=3))
