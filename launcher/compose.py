"""Hydra's part of composition: which files make up a config, in which order, under which package.

choices of groups --(Hydra's defaults list)--> Layer, Layer, ... --(launcher.resolve merges them)--> one tree

Hydra decides, and the files are merged by ``launcher.resolve``, because Hydra keeps no record of which file and line a
value came from, and a sweep of a hundred trials composes once instead of a hundred times.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra._internal.config_loader_impl import ConfigLoaderImpl  # public Hydra has no loader free of global state
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from hydra.types import RunMode
from omegaconf import OmegaConf

from launcher.paths import GROUPS_FOLDER, RECIPE, RECIPES_FOLDER, group_choices
from launcher.schema.problems import LauncherError, Problem
from launcher.validation import defaults, required_keys
from launcher.yaml_files import KeyPath, YamlFile, read_text, read_yaml

_GROUPS = "config"
APP = "app"
"""The config that Hydra itself composes: our groups, under all defaults of the schema."""
_SCHEMA = "schema"


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
        self.roots = tuple(roots)
        self.groups = group_choices(roots)
        Plugins.instance().register(_RootSource)
        ConfigStore.instance().store(name=_SCHEMA, node=_with_missing(defaults(), required=required_keys()))
        self.search_path = ConfigSearchPathImpl()
        self.search_path.append("hydra", "pkg://hydra.conf")
        for root in self.roots:
            self.search_path.append("grpo", f"{_RootSource.scheme()}://{root}")
        self.search_path.append("schema", "structured://")
        self.loader = ConfigLoaderImpl(self.search_path)
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
        place = next((text for text in overrides if text.startswith(f"{RECIPE}=")), "conf/config.yaml")
        try:
            found = self.loader.compute_defaults_list(_GROUPS, overrides, RunMode.RUN).defaults
        except (HydraException, ValueError) as error:  # Hydra raises ValueError for a malformed defaults list
            fix = "fix the `defaults` list of the recipe or group that it names"
            message = " ".join(str(error).split("\nSearch path")[0].split()) or type(error).__name__
            raise LauncherError([_problem(place, message, fix)]) from None
        except RecursionError:
            fix = "remove the entry of its `defaults` list that leads back to it"
            raise LauncherError([_problem(place, "brings itself in", fix)]) from None
        for default in found:
            path = default.config_path
            if path is None or path.startswith("hydra/"):
                continue
            root, file = next((root, file) for root in self.roots if (file := config_file(root, path)).is_file())
            yield Layer(
                kind="recipe" if path.startswith(f"{RECIPE}/") else "group",
                file=_read(file),
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


class _RootSource(FileConfigSource):
    """A root seen as Hydra sees a config folder: conf/ is its top level, recipes/ its group ``recipe``."""

    @staticmethod
    def scheme() -> str:
        return "grpo"

    def load_config(self, config_path: str) -> ConfigResult:
        file = config_file(Path(self.path), config_path)
        if not file.is_file():
            raise ConfigLoadError(f"Config not found : {file}")
        header = self._get_header_dict(read_text(file)[:512])
        config = OmegaConf.create(dict(_read(file).tree))
        return ConfigResult(config=config, path=self.full_path(), provider=self.provider, header=header)

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return config_file(Path(self.path), config_path).is_file()

    def is_group(self, config_path: str) -> bool:
        return self._folder(config_path).is_dir()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        folder = self._folder(config_path)
        configs = [file.stem for file in folder.glob("*.yaml")] if results_filter != ObjectType.GROUP else []
        groups = [child.name for child in folder.glob("*/")] if results_filter != ObjectType.CONFIG else []
        if config_path == "" and results_filter != ObjectType.CONFIG:
            groups.append(RECIPE)
        return sorted({*configs, *groups})

    def _folder(self, config_path: str) -> Path:
        group, _, rest = config_path.partition("/")
        return Path(self.path) / (RECIPES_FOLDER if group == RECIPE else f"{GROUPS_FOLDER}/{group}") / rest


def _with_missing(tree: dict[str, Any], *, required: Iterable[KeyPath]) -> dict[str, Any]:
    """The defaults as Hydra shows them, ``???`` where a value is required."""
    for path in required:
        parent = tree
        for part in path[:-1]:
            parent = parent[part]
        parent[path[-1]] = "???"
    return tree


def _read(file: Path) -> YamlFile:
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
