"""NeMo Gym's Python environments: made by uv once, found again by content, shared by all runs.

Gym pins packages to versions that vLLM refuses, so it never shares ours.

    pinned lock of a Gym version --> <cache>/gym/0.4.0-<digest>             Gym's own, and of servers that need no more
    requirements of one server   --> <cache>/gym/servers/<name>-<digest>    as Gym would make it at start

A folder is finished when it holds ``MARKER``. One without is what an interrupted installation left: the next run, which
holds the lock beside the folder, removes it and starts over.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tomllib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gym_bridge.session import kill_session
from gym_bridge.variables import install_variables
from gym_bridge.versions import GymVersion
from launcher.schema.problems import RunFailed

MARKER = ".complete"
LOCK_POLL_S = 0.2
NUM_LAST_LINES = 15

OnProgress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class GymEnvironment:
    """An installed Gym.

    Example:
        GymEnvironment(version="0.4.0", root=Path("~/.cache/grpo-launcher/gym/0.4.0-3f7d1d2a90cc"))
    """

    version: str
    root: Path
    """Its virtual environment."""

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFolder:
    """Where Gym found the code of one server.

    Example:
        ServerFolder(key="resources_servers/numbered_list", path=Path("env/resources_servers/numbered_list"),
                     built_in=False)
    """

    key: str
    """``<server type>/<implementation>``."""
    path: Path
    built_in: bool
    """True when it lies in Gym's wheel, False when it lies in the package."""


async def gym_environment(
    version: GymVersion, *, cache: Path, timeout_s: float, on_progress: OnProgress
) -> GymEnvironment:
    """Install a Gym version, or find it installed.

    Args:
        cache: root of everything this project caches.
        timeout_s: bound on the installation, waiting for another run's included.
        on_progress: told one line at a time what happens.

    Raises:
        RunFailed: uv failed (its own last words are in the message) or took too long.
    """
    lock = version.lock.read_text()
    root = cache / "gym" / f"{version.version}-{_digest(lock)}"

    async def install() -> None:
        on_progress(f"installing NeMo Gym {version.version} (once, about 1.1 GB)")
        await _make_venv(root)
        await _uv("pip", "sync", "--require-hashes", str(version.lock), *_into(root), folder=root)

    await _made_once(root, install, what=f"NeMo Gym {version.version}", timeout_s=timeout_s, on_progress=on_progress)
    return GymEnvironment(version=version.version, root=root)


async def server_environment(
    gym: GymEnvironment, server: ServerFolder, *, cache: Path, timeout_s: float, on_progress: OnProgress
) -> Path:
    """The virtual environment a server runs in: Gym's own when it needs no more than Gym, else one like Gym makes.

    Raises:
        RunFailed: uv failed (its own last words are in the message) or took too long.
    """
    requirements = server_requirements(server)
    if not requirements:
        return gym.root
    # Gym installs each server with its own version and that of Ray and OpenAI's client, which must be the host's.
    pins = [f"nemo-gym=={gym.version}", *_pins_of(gym, "ray", extra="[default]"), *_pins_of(gym, "openai")]
    wanted = "".join(f"{line}\n" for line in (*pins, *requirements))
    root = cache / "gym" / "servers" / f"{server.path.name}-{_digest(gym.root.name + wanted)}"

    async def install() -> None:
        on_progress(f"installing what {server.key} requires: {', '.join(requirements)}")
        await _make_venv(root)
        listed = root / "requirements.txt"
        listed.write_text(wanted)
        await _uv("pip", "install", "--no-sources", "-r", str(listed), *_into(root), folder=server.path)

    await _made_once(root, install, what=f"what {server.key} requires", timeout_s=timeout_s, on_progress=on_progress)
    return root


def server_requirements(server: ServerFolder) -> tuple[str, ...]:
    """What a server needs beyond nemo-gym itself; empty for most.

    Gym replaces each line of requirements.txt that points at its own checkout (``../..``) by the released package. The
    model servers of its wheel declare ``nemo-gym[dev]``: test tools, which running a server does not need.
    """
    listed = server.path / "requirements.txt"
    if listed.is_file():
        lines = [line.strip() for line in listed.read_text().splitlines()]
        return tuple(line for line in lines if line and not line.startswith("#") and "../.." not in line)
    project = tomllib.loads((server.path / "pyproject.toml").read_text()).get("project", {})
    of_gym = ("nemo-gym", "nemo-gym[dev]") if server.built_in else ("nemo-gym",)
    return tuple(line for line in project.get("dependencies", ()) if line not in of_gym)


async def _made_once(
    folder: Path, make: Callable[[], Awaitable[None]], *, what: str, timeout_s: float, on_progress: OnProgress
) -> None:
    if _is_complete(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        async with asyncio.timeout(timeout_s), _locked(folder.with_name(f"{folder.name}.lock"), what, on_progress):
            if _is_complete(folder):
                return
            shutil.rmtree(folder, ignore_errors=True)
            try:
                await make()
                (folder / MARKER).touch()
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except TimeoutError:
        raise RunFailed(
            f"installing {what} took more than {timeout_s:.0f} s: is the package index reachable? "
            f"Another run may hold {folder.name}.lock in {folder.parent}"
        ) from None


def _is_complete(folder: Path) -> bool:
    # bin/python is a link: its target is gone when that Python was uninstalled.
    return (folder / MARKER).exists() and (folder / "bin" / "python").exists()


@contextlib.asynccontextmanager
async def _locked(path: Path, what: str, on_progress: OnProgress) -> AsyncIterator[None]:
    """Hold an exclusive lock that the kernel drops when we die. The file stays: removing it would open a race."""
    with path.open("w") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    on_progress(f"waiting for another run that installs {what}")
                    waiting = True
                await asyncio.sleep(LOCK_POLL_S)
        yield


async def _make_venv(root: Path) -> None:
    """An empty environment of the Python that runs us: the real one, which uv would not find behind a version shim."""
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    await _uv("venv", "--no-project", "--python", str(python), str(root), folder=root.parent)


def _into(root: Path) -> tuple[str, str]:
    return "--python", str(root / "bin" / "python")


async def _uv(*arguments: str, folder: Path) -> None:
    """Run uv in ``folder``, away from any project of ours, whose settings it would apply."""
    from uv import find_uv_bin  # a launcher without the engine extra has no uv and never comes here

    process = await asyncio.create_subprocess_exec(
        find_uv_bin(), "--no-progress", *arguments, cwd=folder, env=install_variables(os.environ),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
    try:
        async for line in process.stdout:
            last_lines.append(line.decode(errors="replace").rstrip())
    finally:
        kill_session(process.pid)
        status = await process.wait()
    if status != 0:
        words = "\n".join(f"  {line}" for line in last_lines)
        raise RunFailed(f"`uv {arguments[0]} {arguments[1]}` ended with status {status}; its last words:\n{words}")


def _pins_of(gym: GymEnvironment, project: str, *, extra: str = "") -> Sequence[str]:
    """``project==version`` as it is installed beside Gym."""
    found = sorted(gym.root.glob(f"lib/python3.*/site-packages/{project}-*.dist-info"))
    return [
        f"{project}{extra}=={match[1]}" for path in found if (match := re.fullmatch(r".+?-(.+)\.dist-info", path.name))
    ]


def _digest(content: str) -> str:
    python = f"{sys.version} {sys.base_prefix}"
    return hashlib.sha256(f"{python}\n{content}".encode()).hexdigest()[:12]
