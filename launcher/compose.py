"""Hydra's part of composition: which files make up a config, in which order, under which package.

choices of groups --(Hydra's defaults list)--> Layer, Layer, ... --(launcher.resolve merges them)--> one tree

Hydra decides, and the files are merged by ``launcher.resolve``, because Hydra keeps no record of which file and line a
value came from, and a sweep of a hundred trials composes once instead of a hundred times.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.paths import GROUPS_FOLDER, RECIPE, RECIPES_FOLDER, group_choices
from launcher.schema.problems import LauncherError, Problem
from launcher.yaml_files import KeyPath, YamlFile, read_yaml

_GROUPS = "grpo_job"
APP = "grpo_app"
"""The config that Hydra itself composes: our groups, under all defaults of the schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One file of the composition; a later layer wins.

    Example:
        Layer(kind="group", file=YamlFile(...backend/dtensor.yaml...), root=Path("/repo"), package=("training",))
    """

    kind: Literal["group", "recipe"]
    file: YamlFile
    root: Path
    """Folder that holds conf/ or recipes/: relative paths in the file start there."""
    package: KeyPath
    """Where the file's top level lies in the job."""


class Composer:
    """The groups and recipes under some roots; remembers compositions, so use one per command."""

    def __init__(self, roots: Sequence[Path]):
        # Imported when something is composed: --help answers without Hydra. Hydra's public way to compose keeps global
        # state, scans all plugins, and answers with values but not with the files they came from.
        from hydra._internal.config_repository import ConfigRepository
        from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
        from hydra._internal.sources_registry import SourcesRegistry

        from launcher.hydra_source import DefaultsSource

        self.roots = tuple(roots)
        self.groups = group_choices(roots)
        SourcesRegistry.instance().register(DefaultsSource)
        search_path = ConfigSearchPathImpl()
        for root in self.roots:
            search_path.append("grpo", f"{DefaultsSource.scheme()}://{root}")
        self._repository = ConfigRepository(search_path)
        self._layers: dict[tuple[str, ...], tuple[Layer, ...]] = {}

    def layers(self, choices: Mapping[str, str | None]) -> tuple[Layer, ...]:
        """Files that the choices bring in, in the order of merging.

        Raises:
            LauncherError: when a file is broken, missing, or brings itself in.
        """
        key = tuple(f"{group}={choice}" if choice else f"~{group}" for group, choice in choices.items())
        if key not in self._layers:
            self._layers[key] = tuple(self._compose(list(key)))
        return self._layers[key]

    def _compose(self, overrides: list[str]) -> Iterator[Layer]:
        from hydra._internal.config_repository import CachingConfigRepository
        from hydra._internal.defaults_list import create_defaults_list
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        place = next((text for text in overrides if text.startswith(f"{RECIPE}=")), f"{GROUPS_FOLDER}/{_GROUPS}.yaml")
        try:
            found = create_defaults_list(
                repo=CachingConfigRepository(self._repository),
                config_name=_GROUPS,
                overrides_list=OverridesParser.create().parse_overrides(overrides),
                prepend_hydra=False,  # Hydra's own settings are no part of a job
                skip_missing=False,
            ).defaults
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # all of them for a malformed list
            fix = "fix the `defaults` list of the recipe or group that it names"
            message = " ".join(str(error).split("\nSearch path")[0].split()) or type(error).__name__
            raise LauncherError([_problem(place, message, fix)]) from None
        except RecursionError:
            fix = "remove the entry of its `defaults` list that leads back to it"
            raise LauncherError([_problem(place, "brings itself in", fix)]) from None
        for default in found:
            path = default.config_path
            if path is None:
                continue
            root, file = next((root, file) for root in self.roots if (file := config_file(root, path)).is_file())
            yield Layer(
                kind="recipe" if path.startswith(f"{RECIPE}/") else "group",
                file=read_cached(file),
                root=root,
                package=tuple(part for part in (default.package or "").split(".") if part),
            )


def config_file(root: Path, config_path: str) -> Path:
    """File of a config path such as ``backend/dtensor`` or ``recipe/demo``.

    Raises:
        LauncherError: when the path leads out of its folder.
    """
    group, _, name = config_path.partition("/")
    folder, relative = (RECIPES_FOLDER, name) if group == RECIPE else (GROUPS_FOLDER, config_path)
    base = root / folder
    file = Path(f"{base / relative}".removesuffix(".yaml") + ".yaml")
    if not file.resolve().is_relative_to(base.resolve()):
        message = f"leads out of {folder}/"
        raise LauncherError([_problem(config_path, message, f"move the file into {folder}/ and name it from there")])
    return file


def read_cached(file: Path) -> YamlFile:
    """``read_yaml``, once for each version of a file."""
    stat = file.stat()
    return _read_version(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)
def _read_version(file: Path, _modified_ns: int, _size: int) -> YamlFile:
    return read_yaml(file)


def _problem(path: str, message: str, fix: str) -> Problem:
    return Problem(code="bad-composition", path=path, message=message, fix=fix)


def job_part(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What a file sets in the job: all but Hydra's own keys."""
    return {key: value for key, value in tree.items() if key not in ("defaults", "hydra")}
