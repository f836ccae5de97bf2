"""Whether ``wheels/`` holds everything that both installs of a package ask for.

install 1, per server: its requirements, nemo-gym, ray[default], openai, pip   wheels/ is a pool, an index may add to it
install 2, per server: every wheel of wheels/, with --no-index                 nothing may be missing

roots + wheels --(closure_gaps: follow every dependency)--> what is missing, and who asks for it
               --(prove_closure: uv, offline)-------------> the same question, answered by the resolver that will run
"""

import re
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from gym_bridge.versions import DEFAULT_GYM_VERSION, GymVersion, gym_version
from launcher.environment.gym_facts import BUILT_INS
from launcher.environment.server_rules import LARGEST_REQUIREMENTS_BYTES, requirement_lines
from launcher.environment.source import PackageSource
from launcher.environment.uv import RESOLVE_TIMEOUT_S, find_uv, run_uv
from launcher.environment.wheels import PYTHON, Target, Wheel, host_arch, inspect_wheels, matching_target, tag_problems
from launcher.schema.manifest import WHEELS_FOLDER, AdapterManifest, Package, ServerInstance
from launcher.schema.problems import Problem

_REBUILD = "rebuild the closure: grpo env vendor DIR --arch x86_64|aarch64"


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """A requirement, and who has it.

    Example:
        Demand(requirement=Requirement("ray[default]==2.60.0"), by="NeMo Gym 0.4.0", install=1)
    """

    requirement: Requirement
    by: str
    install: int
    """1: the server's environment as Gym makes it; 2: the vendored wheels themselves."""


def wheel_problems(
    package: Package, source: PackageSource, *, target: Target | None, offline: bool, prove: bool
) -> tuple[list[Problem], str]:
    """Everything wrong with the wheels of a package, and what it fetches at start in plain words.

    Args:
        package: of a wheels format.
        source: its files.
        target: the machine the wheels are for; None takes the kind of machine that all of them fit.
        offline: a gap of the first install is an error, not a warning.
        prove: let uv resolve as well.
    """
    wheels, problems = inspect_wheels(source, package.wheels)
    target = target or matching_target(wheels, Target(arch=host_arch()))
    problems += tag_problems(wheels, target)
    demands, addresses = server_demands(package, source, gym_version(DEFAULT_GYM_VERSION))
    problems += environment_problems(package, wheels)
    if problems or not wheels:
        return problems + addresses, "cannot be told before the wheels are right"
    gaps = closure_gaps(demands, wheels, target)
    errors = [gap for gap in gaps if offline or gap.install == 2]
    problems += (gap_problem(gap, wheels) for gap in errors)
    problems += [_index_warning(gaps)] if gaps and not errors else []
    problems += (address if offline else replace(address, severity="warning") for address in addresses)
    folder = source.folder()
    if prove and folder is not None and all(gap.install == 1 for gap in gaps):
        proven = prove_closure([] if gaps else demands, wheels, folder / WHEELS_FOLDER, target)
        problems += [proven] if proven else []
    missing = sorted({gap.requirement.name for gap in gaps} | {problem.path for problem in addresses})
    if not missing:
        return problems, f"needs no network at start: wheels/ covers both installs on {target}"
    return problems, f"needs a package index at start for what wheels/ lacks: {', '.join(missing)}"


def server_demands(package: Package, source: PackageSource, gym: GymVersion) -> tuple[list[Demand], list[Problem]]:
    """What the first install asks for, for all agents and resources servers of a package together.

    Model servers are the host's own business. Requirements that name an address cannot be vendored and are problems.
    """
    pins = _pins(gym.lock.read_text())
    texts = [f"nemo-gym=={gym.version}", f"ray[default]=={pins['ray']}", f"openai=={pins['openai']}", "pip"]
    demands = [Demand(requirement=Requirement(text), by=f"NeMo Gym {gym.version}", install=1) for text in texts]
    problems: list[Problem] = []
    for instance in (*package.agents, *package.resources_servers):
        for place, text in _server_requirements(instance, source):
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue  # options such as --extra-index-url name no project; other lines are reported elsewhere
            if requirement.url:
                message = f"{text!r} is fetched from an address, which wheels/ cannot replace"
                fix = f"require a version instead, such as {requirement.name}==1.0, and vendor its wheel"
                problems.append(Problem(code="closure", path=place, message=message, fix=fix))
            else:
                demands.append(Demand(requirement=requirement, by=instance.name, install=1))
    manifest = package.manifest
    if isinstance(manifest, AdapterManifest):
        demands.append(Demand(requirement=Requirement("verifiers"), by=manifest.adapter.agent, install=1))
    return demands, problems


def environment_names(package: Package) -> list[str]:
    """What ``verifiers.load_environment()`` is asked for: the manifest's vf_env_id and those of the agents' configs."""
    configured = (agent.config.get("vf_env_id") for agent in package.agents)
    names = {name for name in (package.manifest.metadata.vf_env_id, *configured) if name and isinstance(name, str)}
    return sorted(names)


def environment_problems(package: Package, wheels: Sequence[Wheel]) -> list[Problem]:
    """``verifiers`` environments that no vendored wheel holds."""
    provided = {module for wheel in wheels for module in wheel.modules}
    problems: list[Problem] = []
    for name in environment_names(package):
        module = name.replace("-", "_").rsplit("/", 1)[-1]
        if module not in provided:
            message = f"vf_env_id is {name!r}, and no wheel holds the module {module!r} that it is loaded from"
            fix = f"put the wheel of {name} into wheels/, or correct vf_env_id"
            problems.append(Problem(code="vf-env-id", path=WHEELS_FOLDER, message=message, fix=fix))
    return problems


def closure_gaps(demands: Sequence[Demand], wheels: Sequence[Wheel], target: Target) -> list[Demand]:
    """Follow every dependency from ``demands`` and from each wheel; the projects that no vendored wheel meets.

    Exact where wheels/ has one version of each project, which is checked before.
    """
    accepted, environment = target.tags, marker_environment(target)
    vendored = {wheel.project: wheel for wheel in wheels if wheel.tags & accepted}
    waiting = [demand for demand in demands if _applies(demand.requirement, environment, extra="")]
    waiting[:0] = (_itself(wheel) for wheel in wheels)
    gaps: dict[str, Demand] = {}
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for demand in waiting:  # grows while it is walked
        project = canonicalize_name(demand.requirement.name)
        wheel = vendored.get(project)
        if wheel is None or not demand.requirement.specifier.contains(wheel.version, prereleases=True):
            gaps.setdefault(project, demand)
            continue
        for extra in {"", *demand.requirement.extras} - seen[project]:
            seen[project].add(extra)
            needed = (requirement for requirement in wheel.requires if _applies(requirement, environment, extra=extra))
            by = f"{project} {wheel.version}"
            waiting += (Demand(requirement=each, by=by, install=demand.install) for each in needed)
    return list(gaps.values())


def _itself(wheel: Wheel) -> Demand:
    requirement = Requirement(f"{wheel.project}=={wheel.version}")
    return Demand(requirement=requirement, by=WHEELS_FOLDER, install=2)


def _applies(requirement: Requirement, environment: Mapping[str, str], *, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra})


def gap_problem(gap: Demand, wheels: Sequence[Wheel]) -> Problem:
    """A gap in words."""
    wanted = _without_marker(gap.requirement)
    present = next((wheel for wheel in wheels if wheel.project == canonicalize_name(gap.requirement.name)), None)
    has = f"has {present.project} {present.version}" if present else "lacks it"
    which = "offline" if gap.install == 2 else "first"
    message = f"{gap.by} needs {wanted} and wheels/ {has}, so the {which} install fails without a package index"
    return Problem(code="closure", path=WHEELS_FOLDER, message=message, fix=_REBUILD)


def _index_warning(gaps: Sequence[Demand]) -> Problem:
    wanted = ", ".join(sorted(_without_marker(gap.requirement) for gap in gaps))
    message = f"wheels/ does not cover the first install, which fetches {wanted} from a package index"
    return Problem(code="closure", path=WHEELS_FOLDER, message=message, fix=_REBUILD, severity="warning")


def prove_closure(demands: Sequence[Demand], wheels: Sequence[Wheel], folder: Path, target: Target) -> Problem | None:
    """Let uv resolve both installs from ``folder`` and nothing else; None when it can."""
    uv = find_uv()
    if uv is None:
        message = "uv is not installed, so no resolver has confirmed that the closure is complete"
        return Problem(code="closure", path=WHEELS_FOLDER, message=message, fix="pip install uv", severity="warning")
    lines = [str(demand.requirement) for demand in demands]
    lines += [f"{wheel.project}=={wheel.version}" for wheel in wheels]
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "requirements.in").write_text("\n".join(lines) + "\n")
        arguments = [
            *("pip", "compile", "requirements.in", "--quiet", "--offline", "--no-index", "--no-build", "--no-cache"),
            *(
                "--python",
                sys.executable,
                "--find-links",
                str(folder),
                "--no-header",
                "--no-annotate",
                *platform_arguments(target),
            ),
        ]
        result = run_uv(uv, arguments, folder=Path(scratch), timeout_s=RESOLVE_TIMEOUT_S, keep_settings=False)
    if result.succeeded:
        return None
    fix = "rebuild the closure: grpo env vendor DIR --arch x86_64|aarch64"
    return Problem(
        code="closure", path=WHEELS_FOLDER, message=f"uv cannot install from wheels/: {result.reason}", fix=fix
    )


def platform_arguments(target: Target) -> tuple[str, ...]:
    """uv's words for a target."""
    platform = f"{target.arch}-manylinux_{target.glibc[0]}_{target.glibc[1]}"
    return "--python-platform", platform, "--python-version", ".".join(map(str, PYTHON))


def marker_environment(target: Target) -> dict[str, str]:
    """Environment markers of a target."""
    return {
        "implementation_name": "cpython",
        "implementation_version": "3.13.0",
        "os_name": "posix",
        "platform_machine": target.arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": "3.13.0",
        "python_version": "3.13",
        "sys_platform": "linux",
    }


def _server_requirements(instance: ServerInstance, source: PackageSource) -> Iterator[tuple[str, str]]:
    """(place, requirement) lines that Gym installs for a server beside itself."""
    folder = f"{instance.type}/{instance.implementation}"
    if instance.directory is None:
        if instance.implementation != "verifiers_agent":  # the host brings a harness whose requirement is a version
            yield from ((folder, text) for text in BUILT_INS[instance.type].get(instance.implementation, ()))
    elif (path := f"{folder}/requirements.txt") in source.listing.files:
        yield from ((f"{path}:{number}", line) for number, line in requirement_lines(source, path))
    elif (path := f"{folder}/pyproject.toml") in source.listing.files:
        with source.open(path) as file:
            text = file.read(LARGEST_REQUIREMENTS_BYTES).decode(errors="replace")
        yield from ((path, line) for line in _project_requirements(text))


def _project_requirements(text: str) -> Iterator[str]:
    """Dependencies and build requirements of a pyproject.toml."""
    try:
        project = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    for table, key in (("project", "dependencies"), ("build-system", "requires")):
        match project.get(table):
            case {**entries}:
                found = entries.get(key)
                yield from (item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def _pins(lock: str) -> Mapping[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, re.MULTILINE))


def _without_marker(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
