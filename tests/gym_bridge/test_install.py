"""Gym's environment and those of its servers."""

import asyncio
import sys
import zipfile
from pathlib import Path

import pytest

from gym_bridge.install import (
    GymEnvironment,
    ServerFolder,
    _referenced,
    gym_environment,
    server_environment,
    server_requirements,
)
from gym_bridge.session import session_processes
from gym_bridge.versions import GYM_VERSIONS, GymVersion, gym_version, python_for
from launcher.schema.problems import LauncherError, RunFailed


def server(path: Path, *, built_in: bool = False) -> ServerFolder:
    return ServerFolder(key=f"resources_servers/{path.name}", path=path, built_in=built_in)


@pytest.mark.parametrize(
    ("requirements", "needed"),
    [
        ("", ()),
        ("# only a comment\n\n", ()),
        ("-e nemo-gym[dev] @ ../../\n", ()),
        ("-e nemo-gym[dev] @ ../../\ntiktoken\n  numpy<3  \n", ("tiktoken", "numpy<3")),
        ("nemo-gym[dev]\n", ("nemo-gym[dev]",)),
    ],
)
def test_what_requirements_txt_asks_for_beyond_gym(tmp_path: Path, requirements: str, needed: tuple[str, ...]) -> None:
    (tmp_path / "requirements.txt").write_text(requirements)
    assert server_requirements(server(tmp_path)) == needed


def test_test_tools_of_gym_s_own_servers_are_not_needed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["nemo-gym[dev]", "tiktoken"]\n')
    assert server_requirements(server(tmp_path, built_in=True)) == ("tiktoken",)
    assert server_requirements(server(tmp_path)) == ("nemo-gym[dev]", "tiktoken")


def test_a_server_that_needs_no_more_than_gym_shares_its_environment(gym: GymEnvironment, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("# nothing\n")
    assert environment_of(gym, tmp_path, tmp_path / "cache") == gym.root
    assert not (tmp_path / "cache").exists()


def test_an_installation_that_fails_is_told_in_uv_s_words(gym: GymEnvironment, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "requirements.txt").write_text("./no-such.whl\n")
    with pytest.raises(RunFailed, match=r"(?s)`uv pip install` ended with status \d; its last words:.*no-such\.whl"):
        environment_of(gym, path, tmp_path / "cache")
    assert [each.suffix for each in (tmp_path / "cache" / "gym" / "servers").iterdir()] == [".lock"]


def test_a_server_s_own_requirements_are_installed_once_per_content(gym: GymEnvironment, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    wheel = path / "wheels" / "sprout-1.0-py3-none-any.whl"
    write_wheel(wheel)
    (path / "requirements.txt").write_text(f"-r more.txt\n./wheels/{wheel.name}\n")
    (path / "more.txt").write_text("packaging\n")
    root = environment_of(gym, path, tmp_path / "cache")
    (site_packages,) = root.glob("lib/python3.*/site-packages")
    assert (site_packages / "sprout.py").read_text() == "LEAVES = 2\n"
    assert (site_packages / "nemo_gym").is_dir()

    lines: list[str] = []
    assert environment_of(gym, path, tmp_path / "cache", lines) == root
    assert lines == []


def test_the_files_that_requirements_name_belong_to_the_content(tmp_path: Path) -> None:
    lists = {
        "more.txt": "-r deeper.txt\n-r more.txt\n",
        "deeper.txt": "packaging\n",
        "lib/pyproject.toml": "[project]\n",
    }
    for name, text in lists.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    write_wheel(tmp_path / "wheels" / "sprout-1.0-py3-none-any.whl")
    lines = ["numpy<3", "-r more.txt", "-e ./lib", "sprout @ file:wheels/sprout-1.0-py3-none-any.whl", "./no-such.whl"]
    before = _referenced(tmp_path, lines)
    assert [each.split()[0] for each in before] == [
        "deeper.txt", "lib/pyproject.toml", "more.txt", "wheels/sprout-1.0-py3-none-any.whl",
    ]  # fmt: skip
    for name in ("deeper.txt", "lib/pyproject.toml"):
        (tmp_path / name).write_text("changed\n")
    after = _referenced(tmp_path, lines)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True, True]


def test_no_token_of_an_address_is_said(gym: GymEnvironment, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "requirements.txt").write_text("--extra-index-url https://me:s3cret@127.0.0.1:9/simple\n./no-such.whl\n")
    lines: list[str] = []
    with pytest.raises(RunFailed) as raised:
        environment_of(gym, path, tmp_path / "cache", lines)
    assert "https://***@127.0.0.1:9/simple" in lines[0]
    assert "s3cret" not in f"{lines} {raised.value}"


def test_cancelling_an_installation_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_TEST", str(tmp_path))

    async def scenario() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(
            gym_environment(gym_version("0.4.0"), cache=tmp_path, timeout_s=600, on_progress=lambda _: started.set())
        )
        await started.wait()
        while not session_processes(-1, mark=f"UV_TEST={tmp_path}"):  # uv is about to start, or between two calls
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert [path.suffix for path in (tmp_path / "gym").iterdir()] == [".lock"]
    assert session_processes(-1, mark=f"UV_TEST={tmp_path}") == []


def test_versions() -> None:
    assert gym_version("0.4.0").lock.read_text().count("nemo-gym==0.4.0") == 2  # the header's command and the pin
    with pytest.raises(LauncherError, match=r"'0.1' is not a NeMo Gym version this project runs. use 0.4.0 or 0.7.0"):
        gym_version("0.1")


def test_gym_is_installed_with_our_python_when_that_is_new_enough() -> None:
    python = python_for(gym_version("0.4.0"))
    assert python.is_file()
    assert not python.is_relative_to(sys.prefix)


def test_a_gym_that_needs_a_newer_python_than_there_is_is_refused() -> None:
    newer = GymVersion(version="9.0", python=(3, 13, 9999), verifiers="1.0")
    message = r"NeMo Gym 9.0 needs Python 3.13.9999 or newer; this one is 3.13.0, and no other that is new enough"
    with pytest.raises(LauncherError, match=message):
        python_for(newer, ours=(3, 13, 0))


@pytest.mark.parametrize("version", GYM_VERSIONS.values(), ids=GYM_VERSIONS)
def test_locks_are_hashed_and_name_no_registry(version: GymVersion) -> None:
    lines = version.lock.read_text().splitlines()
    assert not [line for line in lines if "://" in line or line.startswith("-")]
    pins = [index for index, line in enumerate(lines) if "==" in line and not line.startswith("#")]
    assert len(pins) > 100
    assert all("--hash=sha256:" in lines[index + 1] for index in pins)


def environment_of(gym: GymEnvironment, path: Path, cache: Path, lines: list[str] | None = None) -> Path:
    said = lines if lines is not None else []
    return asyncio.run(
        server_environment(gym, server(path), wheelhouse=None, cache=cache, timeout_s=300, on_progress=said.append)
    )


def write_wheel(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("sprout.py", "LEAVES = 2\n")
        wheel.writestr("sprout-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: sprout\nVersion: 1.0\n")
        wheel.writestr("sprout-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("sprout-1.0.dist-info/RECORD", "")
