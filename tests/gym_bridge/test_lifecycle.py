"""Starting and ending the real NeMo Gym: refusals, deaths, cancellation, and nothing left behind.

Every process started here inherits ``TEST_MARK``, and so can be found whatever became of it.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.client import GymClient
from gym_bridge.install import GymEnvironment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.servers import Bounds, GymServers
from gym_bridge.session import session_processes
from gym_bridge.types import RolloutRequest
from launcher.environment.package import load_package
from launcher.schema.problems import LauncherError, RunFailed
from tests.gym_bridge.conftest import DEMO, ROOT, SAMPLING, demo_rows
from tests.gym_bridge.fake_policy import Answer, fake_policy

NOWHERE = PolicyEndpoint(base_url="http://127.0.0.1:9/v1", api_key="none", model="policy")
NO_SESSION = -1


@pytest.fixture
def test_mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """``NAME=value`` in the environment of all that a test starts; at its end none of them may be left."""
    mark = f"GRPO_TEST={tmp_path.name}-{os.getpid()}"
    monkeypatch.setenv(*mark.split("="))
    scratch = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short enough for Ray's sockets
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield mark
    assert left_within(15, mark) == []
    scratch.rmdir()  # fails when anything is left in it


def left_within(seconds: float, mark: str) -> list[str]:
    """The command lines of marked processes that are still there after this time."""
    deadline = time.monotonic() + seconds
    while (pids := set(session_processes(NO_SESSION, mark=mark)) - {os.getpid()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids]


async def start(package: Path, gym: GymEnvironment, tmp_path: Path, **options: Any) -> GymServers:
    defaults: dict[str, Any] = {"cache": tmp_path / "cache", "log_folder": tmp_path / "logs", "on_progress": print}
    return await GymServers.start(
        load_package(package), options.pop("policy", NOWHERE), gym=gym, sampling=SAMPLING,
        pass_variables=["GRPO_TEST"], **defaults | options,
    )  # fmt: skip


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
    assert seconds < 10
    assert not listens(url)


def test_a_server_that_cannot_start_is_named_with_its_last_words(
    test_mark: str, gym: GymEnvironment, tmp_path: Path, trials_package: Path
) -> None:
    package = tmp_path / "package"
    subprocess.run(["cp", "-r", str(trials_package), str(package)], check=True)
    app = package / "resources_servers" / "trial_list" / "app.py"
    app.write_text("import a_module_that_is_not_installed\n")
    with pytest.raises(
        RunFailed, match=r"(?s)server trial_list .* ended with status 1.*ModuleNotFoundError: No module"
    ):
        asyncio.run(start(package, gym, tmp_path))


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
from pathlib import Path
from gym_bridge.install import GymEnvironment
from tests.gym_bridge.test_lifecycle import sample_until_the_end
gym = GymEnvironment(version={gym.version!r}, root=Path({str(gym.root)!r}), base_python=Path("unused"))
asyncio.run(sample_until_the_end(Path({str(DEMO / "environment")!r}), gym, Path({str(tmp_path)!r})))
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        url = next(line for line in launcher.stdout if line.startswith("http")).strip()
        assert listens(url)
        launcher.send_signal(kind)
        assert left_within(15, test_mark) == []
    assert not listens(url)


def package_of(tmp_path: Path, config: dict[str, Any]) -> Path:
    """A package with one config file and the (empty) code of one resources server, ``mine``."""
    package = tmp_path / "package"
    server = package / "resources_servers" / "mine"
    server.mkdir(parents=True, exist_ok=True)
    for name in ("app.py", "requirements.txt"):
        (server / name).touch()
    (server / "mine.yaml").write_text(json.dumps(config))
    manifest = {
        "format": "native-v1",
        "config_paths": ["resources_servers/mine/mine.yaml"],
        "metadata": {"name": "mine"},
    }
    (package / "nemo-environment.yaml").write_text(json.dumps(manifest))
    return package


def mine(**settings: Any) -> dict[str, Any]:
    return {"mine": {"resources_servers": {"mine": {"entrypoint": "app.py", "domain": "math", **settings}}}}


def test_what_gym_refuses_is_told_in_gym_s_words(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=r"(?s)refused the environment: AlmostServerError:.*Almost-Servers Detec.*domain"
    ):
        asyncio.run(start(package_of(tmp_path, mine(domain="sports")), gym, tmp_path))

    model = {"type": "responses_api_models", "name": "policy_model"}
    agent = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "model_server": model}}}
    with pytest.raises(RunFailed, match=r"(?s)ServerRefNotFoundError.*Available responses_api_models: \(none\)"):
        asyncio.run(start(package_of(tmp_path, {**mine(), "agent": agent}), gym, tmp_path))


def test_a_server_without_an_install_marker_is_not_replaced_by_a_built_in(
    test_mark: str, gym: GymEnvironment, tmp_path: Path
) -> None:
    package = package_of(tmp_path, mine())
    (package / "resources_servers" / "mine" / "requirements.txt").unlink()
    with pytest.raises(
        RunFailed, match=r"Missing pyproject.toml or requirements.txt for uv venv setup in server dir /"
    ):
        asyncio.run(start(package, gym, tmp_path))


def test_a_port_that_is_taken_is_named(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=rf"server mine cannot listen on 127.0.0.1:{port}: Address already in use"):
            asyncio.run(start(package_of(tmp_path, mine(port=port)), gym, tmp_path))


def test_a_server_that_never_answers_is_named(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    package = package_of(tmp_path, mine())
    app = package / "resources_servers" / "mine" / "app.py"
    app.write_text("import time\nprint('thinking')\ntime.sleep(600)\n")
    with pytest.raises(
        RunFailed, match=r"(?s)starting the servers took more than 3 s; no answer from mine\n.*thinking"
    ):
        asyncio.run(start(package, gym, tmp_path, bounds=Bounds(ready_s=3)))


def test_a_limit_of_turns_for_an_agent_without_one_is_refused(
    test_mark: str, gym: GymEnvironment, tmp_path: Path
) -> None:
    resources = {"type": "resources_servers", "name": "mine"}
    agent = {
        "responses_api_agents": {"langgraph_agent": {"entrypoint": "rewoo_agent.py", "resources_server": resources}}
    }
    with pytest.raises(LauncherError, match=r"agent 'agent' \(langgraph_agent\) has no limit of turns to set"):
        asyncio.run(start(package_of(tmp_path, {**mine(), "agent": agent}), gym, tmp_path, max_rollout_turns=3))
