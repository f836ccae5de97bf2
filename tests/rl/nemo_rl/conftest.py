"""A checkout that stands in for NeMo RL's, and a Ray cluster that claims to have GPUs."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gym_bridge.ports import free_port
from rl.nemo_rl.launch import find_uv
from rl.nemo_rl.processes import child_environment

STAND_IN = Path(__file__).parent / "stand_in"


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="session")
def pristine_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in as a git repository with one submodule, a lock and an environment that sees our packages."""
    home = tmp_path_factory.mktemp("nemo-rl")
    gym, root = home / "gym", home / "checkout"
    gym.mkdir()
    (gym / "README.md").write_text("Gym")
    shutil.copytree(STAND_IN, root)
    (root / ".gitignore").write_text(".venv\n__pycache__\n")
    for folder in (gym, root):
        git(folder, "init", "--quiet")
    git(gym, "add", ".")
    git(gym, "commit", "--quiet", "-m", "first")
    uv = str(find_uv())
    interpreter = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    environment = child_environment({"UV_OFFLINE": "1", "UV_PYTHON": interpreter})
    for arguments in (["lock"], ["venv", ".venv"]):
        subprocess.run([uv, *arguments], cwd=root, env=environment, check=True, capture_output=True, timeout=60)
    site_packages = next((root / ".venv" / "lib").glob("python*/site-packages"))
    (site_packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
    git(root, "submodule", "add", "--quiet", str(gym), "3rdparty/Gym")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return root


@pytest.fixture
def checkout_folder(pristine_checkout: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine_checkout, tmp_path / "checkout", symlinks=True))


@pytest.fixture(scope="session")
def gpu_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Ray cluster of one node that says it has 2 GPUs."""
    port = free_port()
    temporary = Path("/tmp") / f"grpo-test-{port}"
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={port}", "--num-cpus=2", "--num-gpus=2", f"--temp-dir={temporary}", "--include-dashboard=false",
        "--disable-usage-stats", "--object-store-memory=100000000",
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("ray") / "ray.log"
    environment = child_environment({"RAY_AUTH_MODE": "disabled"})
    with log.open("wb") as sink:
        head = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        try:
            head.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def processes_with() -> Callable[[str], list[str]]:
    """Command lines of live processes that contain a text."""

    def find(text: str) -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in command and int(folder.name) != os.getpid():
                found.append(command)
        return found

    return find
