"""One NeMo Gym for all tests that need a real one: the demo's package with faults on request, before a fake policy."""

import asyncio
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.client import GymClient
from gym_bridge.install import GymEnvironment, gym_environment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.servers import GymServers
from gym_bridge.types import Rollout, RolloutRequest
from gym_bridge.versions import gym_version
from launcher.environment.package import load_package
from tests.gym_bridge.fake_policy import FakePolicy, fake_policy
from tests.gym_bridge.starting import SAMPLING, left_behind

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "recipes" / "demo"
API_KEY = "key-of-the-run"
MAX_ROLLOUT_TURNS = 3

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The session's running Gym."""

    servers: GymServers
    policy: FakePolicy
    run: Run
    collect: Callable[..., list[Rollout]]
    """(rows, timeout_s=60) -> rollouts in the order of the rows."""


@pytest.fixture
def test_mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """``NAME=value`` in the environment of all that a test starts; at its end none of them may be left."""
    mark = f"GRPO_TEST={tmp_path.name}-{os.getpid()}"
    monkeypatch.setenv(*mark.split("="))
    scratch = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short enough for Ray's sockets
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield mark
    assert left_behind(mark) == []
    scratch.rmdir()  # fails when anything is left in it


@pytest.fixture(scope="session")
def cache() -> Path:
    """The cache that runs use, so that Gym is installed once on a machine."""
    return Path(os.environ.get("GRPO_CACHE") or "~/.cache/grpo-launcher").expanduser()


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Runs a coroutine on the session's event loop, which serves the fake policy between the tests, too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="session")
def gym(cache: Path) -> GymEnvironment:
    return asyncio.run(gym_environment(gym_version("0.4.0"), cache=cache, timeout_s=600, on_progress=print))


@pytest.fixture(scope="session")
def trials_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("package") / "trials"
    shutil.copytree(DEMO / "environment", package)
    shutil.copytree(Path(__file__).parent / "trials", package, dirs_exist_ok=True)
    return package


@pytest.fixture(scope="session")
def trials(
    run: Run, gym: GymEnvironment, cache: Path, trials_package: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trials]:
    served = fake_policy(lambda _: "1. red")
    policy = run(served.__aenter__())
    servers = run(
        GymServers.start(
            load_package(trials_package),
            PolicyEndpoint(base_url=policy.base_url, api_key=API_KEY, model="policy"),
            gym=gym,
            sampling=SAMPLING,
            cache=cache,
            log_folder=tmp_path_factory.mktemp("logs"),
            on_progress=print,
            max_rollout_turns=MAX_ROLLOUT_TURNS,
        )
    )
    client = GymClient(servers.agents, sampling=SAMPLING, find_call=lambda _: None, watch=servers.watch)

    def collect(rows: Sequence[Mapping[str, Any]], timeout_s: float = 60.0) -> list[Rollout]:
        requests = [RolloutRequest(group_id=i, rollout_id=0, row_index=i, row=row) for i, row in enumerate(rows)]
        rollouts = run(collected(client, requests, timeout_s))
        return sorted(rollouts, key=lambda rollout: rollout.group_id)

    yield Trials(servers=servers, policy=policy, run=run, collect=collect)
    run(servers.close())
    run(served.__aexit__(None, None, None))


async def collected(client: GymClient, requests: Sequence[RolloutRequest], timeout_s: float) -> list[Rollout]:
    rollouts = client.rollouts(requests, max_in_flight=256, timeout_s=timeout_s, policy_version=5)
    return [rollout async for rollout in rollouts]


def demo_rows(num_rows: int) -> list[dict[str, Any]]:
    lines = (DEMO / "dataset" / "training.jsonl").read_text().splitlines()[:num_rows]
    return [json.loads(line) for line in lines]
