"""Our groups and recipes as Hydra sees them. Apart from ``launcher.compose`` so that only composing imports Hydra."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import OmegaConf

from launcher.compose import config_file, read_cached
from launcher.paths import GROUPS_FOLDER, RECIPE, RECIPES_FOLDER
from launcher.yaml_files import read_text


class RootSource(FileConfigSource):
    """A root seen as Hydra sees a config folder: conf/ is its top level, recipes/ its group ``recipe``."""

    @staticmethod
    def scheme() -> str:
        return "grpo"

    def load_config(self, config_path: str) -> ConfigResult:
        file = config_file(Path(self.path), config_path)
        if not file.is_file():
            raise ConfigLoadError(f"Config not found : {file}")
        header = self._get_header_dict(read_text(file)[:512])
        config = OmegaConf.create(self._part(read_cached(file).tree))
        return ConfigResult(config=config, path=self.full_path(), provider=self.provider, header=header)

    @staticmethod
    def _part(tree: Mapping[str, Any]) -> dict[str, Any]:
        return dict(tree)

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


class DefaultsSource(RootSource):
    """The same files without their values: all that Hydra needs to put them in order."""

    @staticmethod
    def scheme() -> str:
        return "grpo-defaults"

    @staticmethod
    def _part(tree: Mapping[str, Any]) -> dict[str, Any]:
        entries = tree.get("defaults")
        if isinstance(entries, list):  # else Hydra says what is wrong with it
            entries = [entry for entry in entries if not _is_of_hydra(entry)]
        return {} if entries is None else {"defaults": entries}


def _is_of_hydra(entry: Any) -> bool:
    """Whether an entry of a defaults list, such as ``override /hydra/sweeper: optuna``, is no part of a job."""
    name = next(iter(entry), "") if isinstance(entry, Mapping) else entry
    return str(name).rpartition(" ")[2].lstrip("/").startswith("hydra/")
