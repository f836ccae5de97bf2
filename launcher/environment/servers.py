"""The servers of a package: its YAML files merged as Gym merges them, and the blocks in them that are servers.

config_paths --(read, deep merge, later wins)--> MergedConfig --(find_instances)--> ServerInstance per block
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.environment.gym_facts import RESERVED_KEYS
from launcher.environment.layout import place_in
from launcher.environment.source import PackageSource, read_mapping
from launcher.local_files import Listing
from launcher.schema.filesets import relative_path_fault
from launcher.schema.manifest import SERVER_TYPES, ServerInstance, ServerReference, ServerType
from launcher.schema.problems import LauncherError, Problem
from launcher.suggest import nearest
from launcher.yaml_files import KeyPath

INSTALL_MARKERS = ("requirements.txt", "pyproject.toml")
_NESTED_PATHS = "config_paths"


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedConfig:
    """All config files of a package as one tree."""

    tree: Mapping[str, Any]
    paths: tuple[str, ...]
    """Files merged, in order: the manifest's and those they name themselves."""
    lines: Mapping[str, Mapping[KeyPath, int]]
    """Config path -> line of every key in it."""

    def has_all(self, config_paths: tuple[str, ...]) -> bool:
        """Whether each of these files could be read."""
        return set(config_paths) <= set(self.paths)

    def files_with(self, name: str) -> list[str]:
        """Config paths that have ``name`` at their top level, in order."""
        return [path for path in self.paths if (name,) in self.lines[path]]

    def place(self, *key: str) -> str:
        """``config path:line`` of a key, or of the nearest key around it, in the last file that has it."""
        for end in range(len(key), 0, -1):
            for path in reversed(self.paths):
                if key[:end] in self.lines[path]:
                    return place_in(path, key[:end], self.lines[path])
        return self.paths[0] if self.paths else key[0]


def merge_configs(source: PackageSource, config_paths: tuple[str, ...]) -> tuple[MergedConfig, list[Problem]]:
    """Read and merge config files; those that cannot be read are left out and reported."""
    problems: list[Problem] = []
    tree: dict[str, Any] = {}
    lines: dict[str, Mapping[KeyPath, int]] = {}
    waiting = [path for path in config_paths if path in source.listing.files]
    for path in waiting:  # grows while it is walked, as Gym's own list does
        try:
            content, lines[path] = read_mapping(source, path)
        except LauncherError as error:
            problems += error.problems
            continue
        nested = content.pop(_NESTED_PATHS, None) or []
        for other in nested if isinstance(nested, list) else [nested]:
            if not isinstance(other, str) or relative_path_fault(other) or other not in source.listing.files:
                place = place_in(path, (_NESTED_PATHS,), lines[path])
                message = f"config_paths names {other!r}, which is not in the package"
                fix = "copy that file into the package and list it in the manifest"
                problems.append(_problem("config-missing", place, message, fix))
            elif other not in waiting:
                waiting.append(other)
        tree = _merged(tree, content)
    paths = tuple(path for path in waiting if path in lines)
    return MergedConfig(tree=tree, paths=paths, lines=lines), problems


def find_instances(
    merged: MergedConfig, *, listing: Listing, root: Path | None
) -> tuple[tuple[ServerInstance, ...], list[Problem]]:
    """The blocks that Gym starts, and what is wrong with blocks that look like servers and are none.

    Args:
        merged: the package's configuration.
        listing: its files, which decide whether an implementation is its own or Gym's.
        root: where those files lie; None when they are not on this machine.
    """
    instances: list[ServerInstance] = []
    problems: list[Problem] = []
    for name, block in merged.tree.items():
        if name in RESERVED_KEYS:
            message = f"{name} is a setting of Gym's that the launcher makes; it has no effect in a package"
            problem = _problem("reserved-key", merged.place(name), message, "remove it")
            problems.append(replace(problem, severity="warning"))
            continue
        if not isinstance(name, str) or not isinstance(block, dict):
            continue
        faults = list(_block_faults(name, block, merged))
        problems += faults
        kind = next((kind for kind in SERVER_TYPES if kind in block), None)
        if kind is None or faults:
            continue
        implementation, config = next(iter(block[kind].items()))
        folder = f"{kind}/{implementation}"
        instances.append(
            ServerInstance(
                name=name,
                type=kind,
                implementation=implementation,
                config=config,
                source=merged.files_with(name)[-1],
                directory=(root or Path()) / folder if has_own_code(listing, folder) else None,
                references=tuple(_references(config)),
            )
        )
    return tuple(instances), problems


def has_own_code(listing: Listing, folder: str) -> bool:
    """Whether the package brings an implementation in ``folder``: more than YAML below its ``configs/``."""
    return any(path.startswith(f"{folder}/") and not path.startswith(f"{folder}/configs/") for path in listing.files)


def walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside ``value`` with its dotted key, containers included."""
    yield key, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from walk(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from walk(inner, f"{key}[{index}]")


def _block_faults(name: str, block: Mapping[str, Any], merged: MergedConfig) -> Iterator[Problem]:
    """Why a block that is meant as a server is none for Gym: it would be dropped, or stop the start."""
    kinds = [kind for kind in SERVER_TYPES if kind in block]
    if not kinds:
        yield from _mistyped_kind(name, block, merged)
        return
    if len(kinds) > 1:
        message = f"server {name!r} is of {len(kinds)} types: {', '.join(kinds)}"
        yield _problem("almost-server", merged.place(name), message, "give each type a block with a name of its own")
        return
    kind = kinds[0]
    inner = block[kind]
    place = merged.place(name, kind)
    if not isinstance(inner, dict) or len(inner) != 1:
        found = ", ".join(map(str, inner)) if isinstance(inner, dict) else repr(inner)
        message = f"AlmostServerError: {kind} of {name!r} must hold exactly one implementation; found {found or 'none'}"
        yield _problem("almost-server", place, message, "give each implementation an instance of its own")
        return
    implementation, config = next(iter(inner.items()))
    if not isinstance(config, dict) or not isinstance(config.get("entrypoint"), str) or not config["entrypoint"]:
        message = f"server {name!r} has no entrypoint, so Gym does not start it"
        yield _problem(
            "almost-server", merged.place(name, kind, str(implementation)), message, "add entrypoint: app.py"
        )
        return
    for what, text in (("instance", name), ("implementation", implementation)):
        if not isinstance(text, str) or not text.replace("_", "").replace("-", "").replace(".", "").isalnum():
            message = f"{what} name {text!r} goes unquoted into a shell"
            yield _problem("server-name", place, message, "use letters, digits and . _ -")


def _mistyped_kind(name: str, block: Mapping[str, Any], merged: MergedConfig) -> Iterator[Problem]:
    for key, inner in block.items():
        looks_like_server = isinstance(inner, dict) and any(
            isinstance(config, dict) and "entrypoint" in config for config in inner.values()
        )
        if looks_like_server:
            near = nearest(str(key), SERVER_TYPES)
            message = f"{key!r} of {name!r} is no server type; there are: {', '.join(SERVER_TYPES)}"
            fix = f"write {near[0]}" if near else "use one of these"
            yield _problem("almost-server", merged.place(name, str(key)), message, fix)


def _references(config: Mapping[str, Any]) -> Iterator[ServerReference]:
    for key, value in walk(config):
        match value:
            case {"type": str(kind), "name": str(name)} if kind in SERVER_TYPES:
                typed: ServerType = next(known for known in SERVER_TYPES if known == kind)
                yield ServerReference(key=key, type=typed, name=name)


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge, everything else is replaced: what OmegaConf.merge does."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result


def _problem(code: str, path: str, message: str, fix: str) -> Problem:
    return Problem(code=code, path=path, message=message, fix=fix)
