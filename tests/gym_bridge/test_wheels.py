"""Packages with wheels: where their servers' environments come from, and both formats through the real Gym."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.client import GymClient
from gym_bridge.install import GymEnvironment, ServerFolder, server_environment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.servers import GymServers
from gym_bridge.types import Rollout, RolloutRequest
from gym_bridge.wheelhouse import Wheelhouse, wheelhouse
from launcher.environment.package import load_package
from launcher.environment.pure_wheel import pure_wheel
from launcher.environment.scaffold import scaffold_package
from launcher.schema.manifest import EnvironmentFormat
from launcher.schema.problems import LauncherError, RunFailed
from tests.gym_bridge.conftest import API_KEY, SAMPLING, Run, collected
from tests.gym_bridge.fake_policy import fake_policy

CLOSURE = (
    pure_wheel("nemo-gym", "0.4.0", {"nemo_gym.py": ""}, requires=["ray[default]"]),
    pure_wheel("ray", "2.60.0", {"ray.py": ""}),
    pure_wheel("openai", "2.7.2", {"openai.py": ""}),
    pure_wheel("counting", "0.1.0", {"counting.py": "STEP = 1\n"}),
)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index can be reached and uv's cache is empty."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple/")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_NO_CONFIG", "1")


@pytest.fixture
def small_gym(tmp_path: Path, gym: GymEnvironment) -> GymEnvironment:
    """Looks like an installed Gym, as far as its pins go."""
    for name in ("ray-2.60.0", "openai-2.7.2"):
        (tmp_path / "small" / "lib/python3.13/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    return GymEnvironment(version="0.4.0", root=tmp_path / "small", base_python=gym.base_python)


def package_with_wheels(tmp_path: Path, format: EnvironmentFormat, wheels: tuple[tuple[str, bytes], ...]) -> Wheelhouse:
    scaffold_package("counting", format=format, into=tmp_path)
    for path in (tmp_path / "counting" / "wheels").iterdir():
        path.unlink()
    for name, content in wheels:
        (tmp_path / "counting" / "wheels" / name).write_bytes(content)
    found = wheelhouse(load_package(tmp_path / "counting"))
    assert found is not None
    return found


def server(tmp_path: Path, requirements: str, *, key: str = "resources_servers/counting") -> ServerFolder:
    path = tmp_path / key
    path.mkdir(parents=True)
    (path / "requirements.txt").write_text(requirements)
    return ServerFolder(key=key, path=path, built_in=False)


def environment_of(
    gym: GymEnvironment, of: ServerFolder, wheels: Wheelhouse, cache: Path, say: Callable[[str], None] = print
) -> Path:
    return asyncio.run(server_environment(gym, of, wheelhouse=wheels, cache=cache, timeout_s=300, on_progress=say))


@pytest.mark.usefixtures("offline")
def test_a_complete_closure_needs_no_index_and_is_installed_once(tmp_path: Path, small_gym: GymEnvironment) -> None:
    wheels = package_with_wheels(tmp_path, "wheels-v1", CLOSURE)
    of = server(tmp_path, "counting==0.1.0\n")
    root = environment_of(small_gym, of, wheels, tmp_path / "cache")
    assert (root / "lib/python3.13/site-packages/counting.py").read_text() == "STEP = 1\n"

    said: list[str] = []
    assert environment_of(small_gym, of, wheels, tmp_path / "cache", said.append) == root
    assert said == []

    changed = (*CLOSURE[:3], pure_wheel("counting", "0.1.0", {"counting.py": "STEP = 2\n"}))
    for name, content in changed:
        (wheels.folder / name).write_bytes(content)
    again = wheelhouse(load_package(wheels.folder.parent))
    assert again is not None
    assert environment_of(small_gym, of, again, tmp_path / "cache") != root


@pytest.mark.usefixtures("offline")
def test_every_agent_and_resources_server_gets_the_package_s_wheels(tmp_path: Path, small_gym: GymEnvironment) -> None:
    wheels = package_with_wheels(tmp_path, "wheels-v1", CLOSURE)
    agent = server(tmp_path, "", key="responses_api_agents/simple_agent")
    root = environment_of(small_gym, agent, wheels, tmp_path / "cache")
    assert (root / "lib/python3.13/site-packages/counting.py").is_file()
    model = server(tmp_path, "", key="responses_api_models/vllm_model")
    assert environment_of(small_gym, model, wheels, tmp_path / "cache") == small_gym.root


@pytest.mark.usefixtures("offline")
def test_what_wheels_lack_is_asked_of_an_index_and_named_when_there_is_none(
    tmp_path: Path, small_gym: GymEnvironment
) -> None:
    wheels = package_with_wheels(tmp_path, "wheels-v1", CLOSURE)
    said: list[str] = []
    of = server(tmp_path, "counting==0.1.0\nscoring\n")
    with pytest.raises(RunFailed, match=r"(?s)Failed to fetch.*wheels/ alone did not do for .*scoring"):
        environment_of(small_gym, of, wheels, tmp_path / "cache", said.append)
    assert said[-1].startswith("wheels/ does not cover what resources_servers/counting requires")


def test_a_wheels_package_without_wheels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="wheels-v1 packages bring their wheels here, and there are none"):
        package_with_wheels(tmp_path, "wheels-v1", ())


async def rollout_of(
    tmp_path: Path, format: EnvironmentFormat, gym: GymEnvironment, cache: Path
) -> tuple[Rollout, dict[str, Any]]:
    """One rollout of a scaffolded package, and the request that reached the policy."""
    scaffold_package("word-count", format=format, into=tmp_path)
    row = json.loads((tmp_path / "word-count-rows" / "training.jsonl").read_text().splitlines()[0])
    async with fake_policy(lambda _: "Waves roll in softly.") as policy:
        servers = await GymServers.start(
            load_package(tmp_path / "word-count"),
            PolicyEndpoint(base_url=policy.base_url, api_key=API_KEY, model="policy"),
            gym=gym, sampling=SAMPLING, cache=cache, log_folder=tmp_path / "logs", on_progress=print,
        )  # fmt: skip
        async with servers:
            client = GymClient(servers.agents, sampling=SAMPLING, find_call=lambda _: None, watch=servers.watch)
            request = RolloutRequest(group_id=0, rollout_id=0, row_index=0, row=row)
            (rollout,) = await collected(client, [request], timeout_s=180.0)
        return rollout, policy.requests[-1]


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("format", ["wheels-v1", "adapter-wheels-v1"])
def test_a_scaffolded_package_scores_for_real(
    run: Run, gym: GymEnvironment, cache: Path, tmp_path: Path, format: EnvironmentFormat
) -> None:
    rollout, request = run(rollout_of(tmp_path, format, gym, cache))
    assert (rollout.failure, rollout.reward) == (None, 1.0)
    limit = request.get("max_completion_tokens", request.get("max_tokens"))  # verifiers writes the newer name
    assert (request["temperature"], request["top_p"], limit) == (0.7, 1.0, 64)
    assert len(rollout.turns) == 1
