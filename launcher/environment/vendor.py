"""Rebuilds ``wheels/`` as one closure for one target.

what both installs ask for --(uv: one resolution for the target)--> pins with hashes
pins with a wheel --(pip download)--+
pins without one --(pip wheel)------+--> a folder beside the package --(checked as a package is)--> wheels/
The old wheels/ is replaced at the end or not at all. Wheels of one's own, which no index has, are taken from it.
"""

import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from gym_bridge.versions import GymVersion
from launcher.environment.closure import (
    Demand,
    closure_gaps,
    environment_names,
    gap_problem,
    platform_arguments,
    prove_closure,
    server_demands,
)
from launcher.environment.source import FolderSource
from launcher.environment.uv import RESOLVE_TIMEOUT_S, UvResult, find_uv, run_uv
from launcher.environment.wheels import PYTHON, Target, Wheel, inspect_wheels, tag_problems
from launcher.schema.manifest import WHEELS_FOLDER, AdapterManifest, NativeManifest, Package
from launcher.schema.problems import LauncherError, Problem

DOWNLOAD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """One project of a resolution.

    Example:
        Pin(project="idna", version="3.20", hashes=("sha256:ab7a...",), has_wheel=True)
    """

    project: str
    version: str
    hashes: tuple[str, ...]
    """Of the files that may be installed; empty on an index that gives none."""
    has_wheel: bool
    """False when only source is on the index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VendorReport:
    """What ``wheels/`` holds now, and what changed.

    Example:
        VendorReport(num_wheels=161, num_bytes=391_000_000, built=("antlr4-python3-runtime",), added=("idna 3.20",),
                     removed=("idna 3.10",))
    """

    num_wheels: int
    num_bytes: int
    built: tuple[str, ...]
    """Projects whose wheel was built from source."""
    added: tuple[str, ...]
    """``project version`` that the old wheels/ did not have."""
    removed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that ``grpo env vendor --json`` prints."""
        return asdict(self)


def vendor_closure(
    package: Package,
    target: Target,
    *,
    gym: GymVersion,
    environment: Sequence[str] | None = None,
    index_url: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> VendorReport:
    """Clear ``wheels/`` of a package and fill it with everything its servers and its environment need.

    Args:
        package: of a wheels format, in a folder on this machine.
        target: the machine that will run it.
        gym: the NeMo Gym version that will run it.
        environment: requirements of an adapter package's environment; None takes the projects that its vf_env_id names
            and the ``verifiers`` that Gym's harness was written for.
        index_url: a further index, which wins for the projects that it has.
        on_progress: told in a few words what takes long.

    Raises:
        LauncherError: the format has no wheels, uv is missing, nothing satisfies all requirements, or a project has no
            wheel for the target and cannot be built here; wheels/ is then as it was.
    """
    if isinstance(package.manifest, NativeManifest):
        message = "native-v1 packages carry no wheels: their dependencies come from a package index at start"
        raise _refused(message, "set format: wheels-v1 first")
    uv = find_uv()
    if uv is None:
        raise _refused("uv is not installed", "pip install uv")
    source = FolderSource(package.root)
    demands, problems = server_demands(package, source, gym)
    if problems:
        raise LauncherError(problems)
    demands += _own_demands(package, gym, environment)
    before, _ = inspect_wheels(source, package.wheels)
    old = package.root / WHEELS_FOLDER
    with tempfile.TemporaryDirectory(prefix=f".{package.root.name}-wheels-", dir=package.root.parent) as folder:
        scratch = Path(folder)
        new = scratch / WHEELS_FOLDER
        new.mkdir()
        on_progress(f"resolving for {target}")
        pins = _resolve(uv, demands, target, own_wheels=old, index_url=index_url, scratch=scratch)
        on_progress(f"downloading {sum(pin.has_wheel for pin in pins)} wheels")
        _download(
            uv, [pin for pin in pins if pin.has_wheel], target, own_wheels=old, index_url=index_url, scratch=scratch
        )
        for pin in pins:
            if not pin.has_wheel:
                on_progress(f"building {pin.project} {pin.version}")
                _build(uv, pin, index_url=index_url, scratch=scratch)
        on_progress("checking the closure")
        after = _checked(demands, target, scratch=scratch)
        if old.exists():
            old.rename(scratch / "old")
        new.rename(old)
        shutil.rmtree(scratch / "old", ignore_errors=True)
    return _report(before, after, pins, folder=old)


def _own_demands(package: Package, gym: GymVersion, environment: Sequence[str] | None) -> list[Demand]:
    """The environment of an adapter package: no server asks for it, the harness imports it by name."""
    if not isinstance(package.manifest, AdapterManifest):
        return []
    projects = [name.rsplit("/", 1)[-1] for name in environment_names(package)]
    texts = environment if environment is not None else [f"verifiers=={gym.verifiers}", *projects]
    try:
        return [Demand(requirement=Requirement(text), by="the environment", install=1) for text in texts]
    except InvalidRequirement:
        raise _refused(f"vf_env_id {', '.join(projects)} is not the name of a project", "correct vf_env_id") from None


def _resolve(
    uv: Path, demands: Sequence[Demand], target: Target, *, own_wheels: Path, index_url: str | None, scratch: Path
) -> list[Pin]:
    """One version for each project that fits all demands on the target."""
    (scratch / "requirements.in").write_text("".join(f"{demand.requirement}\n" for demand in demands))
    links = ("--find-links", str(own_wheels)) if own_wheels.is_dir() else ()
    result = run_uv(
        uv,
        [
            *("pip", "compile", "requirements.in", "--quiet", "--format", "pylock.toml", "-o", "pylock.toml"),
            *("--no-header", "--python", sys.executable, *links, *platform_arguments(target)),
            *(("--index", index_url) if index_url else ()),
        ],
        folder=scratch,
        timeout_s=RESOLVE_TIMEOUT_S,
    )
    if not result.succeeded:
        asked = sorted({f"{demand.requirement} ({demand.by})" for demand in demands})
        message = f"nothing satisfies {', '.join(asked)} for {target}: {result.reason}"
        raise _refused(message, "relax the requirement that uv names, or make its project available")
    return [_pin(entry) for entry in tomllib.loads((scratch / "pylock.toml").read_text())["packages"]]


def _pin(entry: Mapping[str, Any]) -> Pin:
    """A ``[[packages]]`` entry of a pylock.toml."""
    files = entry.get("wheels") or [entry["sdist"]]
    return Pin(
        project=entry["name"],
        version=entry["version"],
        hashes=tuple(f"sha256:{file['hashes']['sha256']}" for file in files if "sha256" in file.get("hashes", {})),
        has_wheel="wheels" in entry,
    )


def _download(
    uv: Path, pins: Sequence[Pin], target: Target, *, own_wheels: Path, index_url: str | None, scratch: Path
) -> None:
    lines = [" ".join([f"{pin.project}=={pin.version}", *(f"--hash={value}" for value in pin.hashes)]) for pin in pins]
    (scratch / "wheels.txt").write_text("\n".join(lines))
    links = ("--find-links", str(own_wheels)) if own_wheels.is_dir() else ()
    platforms = [word for platform in target.platforms for word in ("--platform", platform)]
    interpreter = f"cp{''.join(map(str, PYTHON))}"
    result = _run_pip(
        uv,
        [
            *("download", "--requirement", "wheels.txt", "--dest", WHEELS_FOLDER, "--no-deps"),
            *(("--require-hashes",) if all(pin.hashes for pin in pins) else ()),
            *("--only-binary", ":all:", "--python-version", ".".join(map(str, PYTHON)), "--implementation", "cp"),
            *("--abi", interpreter, "--abi", "abi3", "--abi", "none", *platforms, *links),
            *_pip_index(index_url),
        ],
        scratch=scratch,
    )
    if not result.succeeded:
        raise _refused(f"the download failed: {result.reason[-600:]}", "check the package index and try again")


def _build(uv: Path, pin: Pin, *, index_url: str | None, scratch: Path) -> None:
    result = _run_pip(
        uv,
        ["wheel", f"{pin.project}=={pin.version}", "--no-deps", "--wheel-dir", WHEELS_FOLDER, *_pip_index(index_url)],
        scratch=scratch,
    )
    if not result.succeeded:
        message = f"{pin.project} {pin.version} has no wheel, and building it failed: {result.reason[-600:]}"
        raise _refused(message, "install what its build needs, or require a version that has a wheel")


def _pip_index(index_url: str | None) -> tuple[str, ...]:
    return ("--extra-index-url", index_url) if index_url else ()


def _run_pip(uv: Path, arguments: Sequence[str], *, scratch: Path) -> UvResult:
    call = ["tool", "run", "--quiet", "--python", sys.executable, "--from", "pip", "pip", "--quiet", "--no-input"]
    options = ["--disable-pip-version-check"]
    return run_uv(uv, [*call, *options, *arguments], folder=scratch, timeout_s=DOWNLOAD_TIMEOUT_S)


def _checked(demands: Sequence[Demand], target: Target, *, scratch: Path) -> tuple[Wheel, ...]:
    """The new wheels, known to be a closure.

    Raises:
        LauncherError: with every wheel that does not fit the target, and every gap.
    """
    source = FolderSource(scratch)
    paths = [path for path in source.listing.files if path.endswith(".whl")]
    wheels, problems = inspect_wheels(source, paths)
    unfit = {problem.path for problem in tag_problems(wheels, target)}
    for wheel in wheels:
        if wheel.path in unfit:
            message = f"{wheel.project} {wheel.version} was built here and does not run on {target}"
            fix = f"vendor on a machine of that kind, or require a version of {wheel.project} that has a wheel for it"
            problems.append(Problem(code="wheel-build", path=wheel.project, message=message, fix=fix))
    if problems:
        raise LauncherError(problems)
    gaps = [gap_problem(gap, wheels) for gap in closure_gaps(demands, wheels, target)]
    if gaps:
        raise LauncherError(gaps)
    unproven = prove_closure(demands, wheels, scratch / WHEELS_FOLDER, target)
    if unproven:
        raise LauncherError([unproven])
    return wheels


def _report(before: Sequence[Wheel], after: Sequence[Wheel], pins: Sequence[Pin], *, folder: Path) -> VendorReport:
    old = {f"{wheel.project} {wheel.version}" for wheel in before}
    new = {f"{wheel.project} {wheel.version}" for wheel in after}
    return VendorReport(
        num_wheels=len(after),
        num_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        built=tuple(canonicalize_name(pin.project) for pin in pins if not pin.has_wheel),
        added=tuple(sorted(new - old)),
        removed=tuple(sorted(old - new)),
    )


def _refused(message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="vendor", path=WHEELS_FOLDER, message=message, fix=fix)])
