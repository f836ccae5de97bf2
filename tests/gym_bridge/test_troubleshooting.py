"""The published troubleshooting table: each row that shows only at run time ends in its own message, and in time.

What files alone can tell is found at validation: tests/launcher/packages/test_troubleshooting.py.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.install import GymEnvironment, ServerFolder, server_environment
from gym_bridge.servers import Bounds
from launcher.schema.problems import RunFailed
from tests.gym_bridge.conftest import Trials, demo_rows
from tests.gym_bridge.starting import mine, package_of, start

BOUND_S = 60.0
"""On every start here, Gym's imports on a busy machine included; a bound that a case sets itself is shorter."""


def within_bound(coroutine: Coroutine[Any, Any, Any], bound_s: float = BOUND_S) -> None:
    """Run it, and fail with ``TimeoutError`` when it is not over in time."""

    async def bounded() -> None:
        async with asyncio.timeout(bound_s):
            await coroutine

    asyncio.run(bounded())


def test_a_module_that_is_missing_at_the_first_rollout(trials: Trials) -> None:
    trials.policy.answer = lambda _: "1. red"
    (rollout,) = trials.collect([{**demo_rows(1)[0], "fault": "import"}])
    assert rollout.failure == (
        "500 from numbered_list_agent, in a server called by numbered_list_agent: "
        "ModuleNotFoundError(\"No module named 'a_module_that_is_not_installed'\"); "
        "the server's environment lacks 'a_module_that_is_not_installed': name its project in the requirements.txt "
        "of the server's folder, and vendor it where the package has wheels/"
    )


def test_a_module_that_is_missing_at_the_start(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    package = package_of(tmp_path, mine())
    app = package / "resources_servers" / "mine" / "app.py"
    app.write_text("import a_module_that_is_not_installed\n")
    message = (
        r"(?s)server mine .* ended with status 1; the server's environment lacks 'a_module_that_is_not_installed': "
        r"name its project in the requirements.txt .*ModuleNotFoundError: No module"
    )
    with pytest.raises(RunFailed, match=message):
        within_bound(start(package, gym, tmp_path))


@pytest.fixture
def silent_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The only package index takes connections and says nothing."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    with socket.socket() as index:
        index.bind(("127.0.0.1", 0))
        index.listen()
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{index.getsockname()[1]}/simple/")
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        yield


async def install(gym: GymEnvironment, tmp_path: Path, *, timeout_s: float) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "requirements.txt").write_text("a-project-of-the-index\n")
    server = ServerFolder(key="resources_servers/mine", path=folder, built_in=False)
    await server_environment(
        gym, server, wheelhouse=None, cache=tmp_path / "cache", timeout_s=timeout_s, on_progress=print
    )


@pytest.mark.usefixtures("silent_index")
def test_an_index_that_does_not_answer(gym: GymEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(RunFailed, match=r"(?s)no package index answered: .* vendor .*last words:.*/simple/"):
        within_bound(install(gym, tmp_path, timeout_s=40.0))


@pytest.mark.usefixtures("silent_index")
def test_an_installation_that_hangs(gym: GymEnvironment, tmp_path: Path) -> None:
    message = r"what resources_servers/mine requires: not done after 3 s. Check that the package index can be reached"
    with pytest.raises(RunFailed, match=message):
        within_bound(install(gym, tmp_path, timeout_s=3.0), bound_s=60.0)


def test_a_server_that_never_listens(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    package = package_of(tmp_path, mine())
    app = package / "resources_servers" / "mine" / "app.py"
    app.write_text("import time\nprint('thinking')\ntime.sleep(600)\n")
    message = r"(?s)starting the servers took more than 3 s; no answer from mine\n.*thinking"
    with pytest.raises(RunFailed, match=message):
        within_bound(start(package, gym, tmp_path, bounds=Bounds(ready_s=3)))


def test_a_port_that_is_taken(test_mark: str, gym: GymEnvironment, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=rf"server mine cannot listen on 127.0.0.1:{port}: Address already in use"):
            within_bound(start(package_of(tmp_path, mine(port=port)), gym, tmp_path))


@pytest.mark.parametrize(
    ("implementation", "consequence"), [("mine", "does not take the folder for a server"), ("blackjack", "its own")]
)
def test_a_built_in_is_not_run_instead_of_the_package_s_server(
    test_mark: str, gym: GymEnvironment, tmp_path: Path, implementation: str, consequence: str
) -> None:
    package = package_of(tmp_path, mine(implementation=implementation), implementation=implementation)
    (package / "resources_servers" / implementation / "requirements.txt").unlink()
    message = rf"Missing pyproject.toml or requirements.txt for uv venv setup in server dir /.*{consequence}"
    with pytest.raises(RunFailed, match=message):
        within_bound(start(package, gym, tmp_path))
