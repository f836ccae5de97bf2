"""NeMo Gym's Python environments: made by uv once, found again by content, shared by all runs.

Gym pins packages to versions that vLLM refuses, so it never shares ours.

    pinned lock of a Gym version --> <cache>/gym/0.4.0-<digest>             Gym's own, and of servers that need no more
    requirements of one server   --> <cache>/gym/servers/<name>-<digest>    as Gym would make it at start
    the package's wheels         --> the same folder: first a pool for those requirements, then installed themselves
"""

import asyncio
import hashlib
import os
import re
import tomllib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gym_bridge.causes import failed_install
from gym_bridge.once import OnProgress, made_once
from gym_bridge.session import kill_session
from gym_bridge.variables import install_variables
from gym_bridge.versions import GymVersion, gym_version, python_for
from gym_bridge.wheelhouse import Wheelhouse
from launcher.schema.problems import RunFailed

NUM_LAST_LINES = 15
VERIFIERS_HARNESS = "responses_api_agents/verifiers_agent"
GETS_WHEELS = ("responses_api_agents/", "resources_servers/")
"""The kinds of servers whose environments a package's wheels are installed into; models are the host's business."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GymEnvironment:
    """An installed Gym.

    Example:
        GymEnvironment(version="0.4.0", root=Path("~/.cache/grpo-launcher/gym/0.4.0-3f7d1d2a90cc"),
                       base_python=Path("/usr/bin/python3.13"))
    """

    version: str
    root: Path
    """Its virtual environment."""
    base_python: Path
    """The interpreter it was made with."""

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def bytecode(self) -> Path:
        """``PYTHONPYCACHEPREFIX`` of its processes: compiled once, and no package's folder is written into."""
        return self.root / "bytecode"


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
        version: from ``gym_version``.
        cache: root of everything this project caches.
        timeout_s: bound on the installation, waiting for another run's included.
        on_progress: told one line at a time what happens.

    Raises:
        RunFailed: uv failed (its own last words are in the message) or took too long.
        LauncherError: this version needs a newer Python than there is.
    """
    python = python_for(version)
    root = cache.absolute() / "gym" / f"{version.version}-{_digest(python, version.lock.read_text())}"

    async def install() -> None:
        on_progress(f"installing NeMo Gym {version.version} (once, about 1.1 GB)")
        await _make_venv(root, python)
        await _uv("pip", "sync", "--require-hashes", str(version.lock), *_into(root), folder=root)

    await made_once(
        root, install, is_intact=lambda: _has_python(root), what=f"installing NeMo Gym {version.version}",
        timeout_s=timeout_s, on_progress=on_progress,
    )  # fmt: skip
    return GymEnvironment(version=version.version, root=root, base_python=python)


async def server_environment(
    gym: GymEnvironment,
    server: ServerFolder,
    *,
    wheelhouse: Wheelhouse | None,
    cache: Path,
    timeout_s: float,
    on_progress: OnProgress,
) -> Path:
    """The virtual environment a server runs in: Gym's own when it needs no more than Gym, else one like Gym makes.

    Args:
        gym: from ``gym_environment``.
        server: whose it is.
        wheelhouse: of the package. Where it covers all that the server requires, no index is asked. Agents and
            resources servers then get every one of its wheels, from it alone.
        cache: root of everything this project caches.
        timeout_s: bound on the installation, waiting for another run's included.
        on_progress: told one line at a time what happens.

    Raises:
        RunFailed: uv failed (its own last words are in the message) or took too long.
    """
    requirements = _requirements(gym, server, wheelhouse)
    closure = wheelhouse if server.key.startswith(GETS_WHEELS) else None
    if not requirements and closure is None:
        return gym.root
    # Gym installs each server with its own version and that of Ray and OpenAI's client, which must be the host's.
    pins = (f"nemo-gym=={gym.version}", _pin(gym, "ray", extra="[default]"), _pin(gym, "openai"))
    wanted = "".join(f"{line}\n" for line in (*pins, *requirements))
    pool = wheelhouse.digest if wheelhouse else ""
    content = "".join([gym.root.name, wanted, *_referenced(server.path, requirements), pool])
    root = cache.absolute() / "gym" / "servers" / f"{server.path.name}-{_digest(gym.base_python, content)}"

    async def install() -> None:
        named = _without_passwords(", ".join(requirements)) or "NeMo Gym"
        on_progress(f"installing what {server.key} requires: {named}")
        await _make_venv(root, gym.base_python)
        await _install_requirements(root, server, wanted, wheelhouse, on_progress)
        if closure is not None:
            on_progress(f"installing {len(closure.versions)} wheels of the package for {server.key}")
            await _install_closure(root, closure)

    await made_once(
        root, install, is_intact=lambda: _has_python(root), what=f"installing what {server.key} requires",
        timeout_s=timeout_s, on_progress=on_progress,
    )  # fmt: skip
    return root


def _requirements(gym: GymEnvironment, server: ServerFolder, wheelhouse: Wheelhouse | None) -> tuple[str, ...]:
    """What a server needs beyond nemo-gym itself.

    The verifiers harness of Gym's wheel asks for a git checkout, an index of its own and one example environment. All
    it needs is ``verifiers``: the package's when it brings one, else the release that this Gym was written for.
    """
    if server.built_in and server.key == VERIFIERS_HARNESS:
        vendored = wheelhouse.versions.get("verifiers") if wheelhouse else None
        return (f"verifiers=={vendored or gym_version(gym.version).verifiers}",)
    return server_requirements(server)


async def _install_requirements(
    root: Path, server: ServerFolder, wanted: str, wheelhouse: Wheelhouse | None, on_progress: OnProgress
) -> None:
    """Gym's own install. Its wheels go first, so that a complete closure asks no index, and gives the same anywhere."""
    # In the server's folder, as Gym does: paths in requirements are relative to it.
    call = ["pip", "install", "--no-sources", "-r", "-", *_into(root)]
    if wheelhouse is None:
        await _uv(*call, folder=server.path, stdin=wanted)
        return
    call += ["--find-links", str(wheelhouse.folder)]
    try:
        await _uv(*call, "--no-index", folder=server.path, stdin=wanted)
    except RunFailed as incomplete:
        on_progress(f"wheels/ does not cover what {server.key} requires: asking a package index for the rest")
        try:
            await _uv(*call, folder=server.path, stdin=wanted)
        except RunFailed as error:
            raise RunFailed(f"{error}\nwheels/ alone did not do for {server.key}: {incomplete}") from None


async def _install_closure(root: Path, wheelhouse: Wheelhouse) -> None:
    """Install every project of the wheelhouse from nothing but it."""
    wanted = "".join(f"{project}=={version}\n" for project, version in wheelhouse.versions.items())
    options = ("--no-index", "--only-binary", ":all:", "--find-links", str(wheelhouse.folder))
    await _uv("pip", "install", *options, "-r", "-", *_into(root), folder=root, stdin=wanted)


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


def _referenced(folder: Path, requirements: Sequence[str]) -> list[str]:
    """Digests of the files that lines name: lists, wheels and projects decide what is installed, too."""
    found: dict[str, str] = {}
    waiting = [(folder, line) for line in requirements]
    while waiting:
        base, line = waiting.pop()
        word = line.rpartition(" ")[2]
        listed = re.match(r"-(?:r|c|-requirement|-constraint)[ =]", line)
        if not listed and not re.search(r"^\.|/|\.(whl|gz|zip)$", word):
            continue  # a project of an index
        named = base / word.rpartition("=")[2].removeprefix("file:")
        for path in sorted(named.rglob("*")) if named.is_dir() else [named]:
            name = os.path.relpath(path, folder)
            if name not in found and path.is_file() and "__pycache__" not in path.parts:
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
                waiting += [(path.parent, each) for each in path.read_text().splitlines()] if listed else []
    return [f"{name} {digest}" for name, digest in sorted(found.items())]


def _without_passwords(text: str) -> str:
    """Addresses of packages and indexes may hold a user and a token."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)


def _has_python(root: Path) -> bool:
    return (root / "bin" / "python").exists()  # a link: its target is gone when that Python was uninstalled


async def _make_venv(root: Path, python: Path) -> None:
    await _uv("venv", "--no-project", "--python", str(python), str(root), folder=root.parent)


def _into(root: Path) -> tuple[str, str]:
    return "--python", str(root / "bin" / "python")


async def _uv(*arguments: str, folder: Path, stdin: str = "") -> None:
    """Run uv in ``folder``, away from any project of ours, whose settings it would apply."""
    from uv import find_uv_bin  # part of the engine extra; the launcher alone never comes here

    process = await asyncio.create_subprocess_exec(
        find_uv_bin(), "--no-progress", *arguments, cwd=folder, env=install_variables(os.environ),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(stdin.encode())
    process.stdin.close()
    last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
    try:
        async for line in process.stdout:
            last_lines.append(line.decode(errors="replace").rstrip())
    finally:
        kill_session(process.pid)
        status = await process.wait()
    if status != 0:
        words = "\n".join(f"  {line}" for line in last_lines)
        what = "; ".join(filter(None, (f"ended with status {status}", failed_install(words))))
        raise RunFailed(f"`uv {arguments[0]} {arguments[1]}` {what}; its last words:\n{words}")


def _pin(gym: GymEnvironment, project: str, *, extra: str = "") -> str:
    """``project==version`` as it is installed beside Gym."""
    (found,) = gym.root.glob(f"lib/python3.*/site-packages/{project}-*.dist-info")
    return f"{project}{extra}=={found.name.removesuffix('.dist-info').removeprefix(f'{project}-')}"


def _digest(python: Path, content: str) -> str:
    return hashlib.sha256(f"{python.resolve()}\n{content}".encode()).hexdigest()[:12]
