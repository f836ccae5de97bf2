"""An environment package from its root folder, or its FileSet: loaded, and checked as a whole.

PackageSource --(layout)--> manifest --(servers)--> Package --(server_rules, wheels, closure)--> problems
Nothing of the package is imported or run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.environment.closure import wheel_problems
from launcher.environment.layout import layout_problems, read_manifest, vendored_wheels
from launcher.environment.server_rules import server_problems
from launcher.environment.servers import MergedConfig, find_instances, merge_configs
from launcher.environment.source import FileSetSource, FolderSource, PackageSource
from launcher.environment.wheels import Target
from launcher.references import Reference
from launcher.row_faults import RowExpectations
from launcher.schema.manifest import MANIFEST_NAME, NativeManifest, Package
from launcher.schema.problems import LauncherError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What a check of a package found."""

    package: Package | None
    """None when its manifest or YAML could not be read."""
    problems: tuple[Problem, ...]
    """Errors first."""
    network: str
    """What the package fetches at start, in plain words; empty when it could not be read."""

    @property
    def is_valid(self) -> bool:
        """No error; there may be warnings."""
        return not any(problem.severity == "error" for problem in self.problems)


def load_package(root: Path) -> Package:
    """Read a package's manifest and configs.

    Args:
        root: the folder that holds nemo-environment.yaml.

    Raises:
        LauncherError: they cannot be read, with every reason. Whether the package is right, ``check_package`` says.
    """
    package, _, problems = _load(FolderSource(root))
    if any(problem.severity == "error" for problem in problems):
        raise LauncherError(problems)
    return package


def check_package(root: Path, *, target: Target | None = None) -> tuple[Problem, ...]:
    """Everything wrong with the package in ``root`` that files can tell, errors first.

    Args:
        root: the folder that holds nemo-environment.yaml.
        target: the machine its wheels are for; when None, the kind of machine that all of them fit, if there is one.
    """
    return inspect_package(FolderSource(root), target=target).problems


def inspect_package(
    source: PackageSource, *, target: Target | None = None, offline: bool = False, prove: bool = False
) -> Inspection:
    """Load and check a package wherever it lies.

    Args:
        source: its files.
        target: as for ``check_package``.
        offline: what the first install would fetch is an error, not a warning.
        prove: also let uv resolve both installs, which takes about half a second.
    """
    try:
        if not source.listing.is_complete:
            raise LauncherError(())  # its problems say why; rules about what is missing would mislead
        package, merged, problems = _load(source)
    except LauncherError as error:
        return Inspection(package=None, problems=_sorted([*error.problems, *source.listing.problems]), network="")
    found = [*problems, *layout_problems(package.manifest, source.listing)]
    if merged.has_all(package.manifest.config_paths):  # else what is missing would be reported many times over
        found += server_problems(package, merged, source)
    if isinstance(package.manifest, NativeManifest):
        network = "needs a package index at start: the requirements of each server are resolved then"
        return Inspection(package=package, problems=_sorted(found), network=network)
    about_wheels, network = wheel_problems(package, source, target=target, offline=offline, prove=prove)
    return Inspection(package=package, problems=_sorted([*found, *about_wheels]), network=network)


def reference_source(reference: Reference) -> PackageSource:
    """The files of an ``environment`` reference: a FileSet's where they are, a URL's downloaded."""
    if reference.fileset is not None and reference.store is not None:
        return FileSetSource(reference.store, reference.fileset)
    return FolderSource(reference.local_path())


def row_expectations(package: Package) -> RowExpectations:
    """What the package demands of prompt rows."""
    verifiers = [agent for agent in package.agents if agent.implementation == "verifiers_agent"]
    return RowExpectations(
        agents=frozenset(agent.name for agent in package.agents),
        verifiers_agents=frozenset(agent.name for agent in verifiers),
        vf_env_id=package.manifest.metadata.vf_env_id,
    )


def _load(source: PackageSource) -> tuple[Package, MergedConfig, list[Problem]]:
    """The package, its merged YAML, and what was wrong on the way to it."""
    manifest = read_manifest(source)
    merged, unreadable = merge_configs(source, manifest.config_paths)
    root = source.folder()
    instances, faults = find_instances(merged, listing=source.listing, root=root)
    package = Package(
        root=root or Path(),
        manifest=manifest,
        config_paths=merged.paths or manifest.config_paths,
        merged=merged.tree,
        instances=instances,
        wheels=vendored_wheels(source.listing),
    )
    return package, merged, unreadable + faults


def _sorted(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Errors first, the manifest's before those of other files; each problem once."""
    unique = dict.fromkeys(problems)
    return tuple(
        sorted(unique, key=lambda problem: (problem.severity != "error", not problem.path.startswith(MANIFEST_NAME)))
    )
