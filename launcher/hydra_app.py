"""Hydra's own flags of ``grpo train``: ``-m``, ``--cfg``, ``--info``, over the same groups and recipes as our commands.

Hydra refuses keys below a null block, and unknown keys one at a time. Such overrides therefore reach it with ``++``,
and what they add up to is judged by ``launcher.checking``.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hydra.version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra  # what hydra.main uses, without its sys.argv and sys.exit
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.compose import APP, Composer
from launcher.hydra_source import RootSource
from launcher.origins import dotted, leaves, value_at
from launcher.overrides import REFERENCE_GROUPS
from launcher.schema.problems import LauncherError, Problem
from launcher.suggest import did_you_mean
from launcher.validation import defaults, required_keys, schema_fields

VERSION_BASE = "1.3"
_SCHEMA = "schema"
"""What conf/grpo_app.yaml calls the defaults of the schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HydraArguments:
    """Overrides as Hydra takes them.

    Example, of ``recipe=demo training.seed=1,2 ~training.top_k``:
        HydraArguments(overrides=("recipe=demo", "training.seed=1,2"), resets=("~training.top_k",))
    """

    overrides: tuple[str, ...]
    resets: tuple[str, ...]
    """``~key`` of settings: back to the default, which is not what Hydra's ``~`` does."""


def hydra_arguments(texts: Sequence[str], composer: Composer) -> HydraArguments:
    """Translate override strings.

    Raises:
        LauncherError: for those that Hydra's grammar cannot read.
    """
    loader = config_loader(composer)
    parser = OverridesParser.create(config_loader=loader)
    known = {dotted(path) for path, _ in leaves(defaults())} | set(map(dotted, required_keys()))
    translated: list[str] = []
    resets: list[str] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            override = parser.parse_override(text)
        except (HydraException, RecursionError):
            fix = "write key=value or key=value,value; quote a value with marks: key='a, b'"
            problems.append(Problem(code="bad-override", path=text, message="cannot be read", fix=fix))
            continue
        problems += _unknown_plugin(override, loader)
        is_group = override.key_or_group in composer.groups
        if override.is_hydra_override() or (is_group and not _names_references(override, composer)):
            translated.append(text)
        elif override.is_delete():
            resets.append(text)
        else:
            key = override.key_or_group
            if is_group and not isinstance(override.value(), dict):
                key += ".name"
            sign = "" if key in known else "++"
            translated.append(f"{sign}{key}={override.get_value_string()}")
    if problems:
        raise LauncherError(problems)
    return HydraArguments(overrides=tuple(translated), resets=tuple(resets))


@contextmanager
def hydra_running(composer: Composer, *, refusals: tuple[type[Exception], ...] = ()) -> Iterator[Hydra]:
    """Hydra over our groups and recipes; its global state is as before afterwards.

    Args:
        composer: where groups and recipes are.
        refusals: what Hydra raises for wrong input besides its own exceptions.

    Raises:
        LauncherError: for what Hydra refuses.
    """
    kinds: tuple[type[Exception], ...] = (HydraException, OmegaConfBaseException, *refusals)
    hydra.version.setbase(VERSION_BASE)
    ConfigStore.instance().store(name=_SCHEMA, node=_schema_node())
    state = GlobalHydra.instance()
    before = state.hydra
    state.hydra = Hydra("grpo", config_loader(composer))
    try:
        yield state.hydra
    except kinds as error:
        said = re.split(r"\n(?:Search path|Config search path)", str(error))[0]
        message = " ".join(said.split()) or type(error).__name__
        cause = f": {error.__cause__}" if error.__cause__ is not None and str(error.__cause__) not in message else ""
        fix = "`grpo check` with the same arguments says more; `grpo train --info` shows what Hydra sees"
        raise LauncherError([Problem(code="hydra", path="hydra", message=message + cause, fix=fix)]) from error
    finally:
        state.hydra = before


def config_loader(composer: Composer) -> ConfigLoader:
    """Hydra's loader over our groups and recipes, Hydra's own configs and those of its plugins."""
    Plugins.instance().register(RootSource)
    search_path = ConfigSearchPathImpl()
    search_path.append("hydra", "pkg://hydra.conf")
    for root in composer.roots:
        search_path.append("grpo", f"{RootSource.scheme()}://{root}")
    for plugin in Plugins.instance().discover(SearchPathPlugin):
        assert issubclass(plugin, SearchPathPlugin)
        plugin().manipulate_search_path(search_path)
    search_path.append("schema", "structured://")
    return ConfigLoaderImpl(search_path)


def show_config(overrides: Sequence[str], *, part: str, package: str | None, resolve: bool, composer: Composer) -> None:
    """``--cfg``: print what Hydra composes.

    Args:
        overrides: as for one job.
        part: ``job``, ``hydra`` or ``all``.
        package: only what lies at this key; None for everything.
        resolve: write values in place of ``${...}``.
        composer: where groups and recipes are.
    """
    arguments = list(hydra_arguments(overrides, composer).overrides)
    with hydra_running(composer, refusals=(ValueError,)) as running:
        if package is not None and OmegaConf.select(sweep_config(composer, arguments), package) is None:
            sections = [dotted(path) for path, _, section in schema_fields() if section is not None]
            fix = did_you_mean(package, [*sections, "hydra.sweep"], otherwise="name a section, such as training")
            raise LauncherError([Problem(code="unknown-key", path=package, message="is not in the config", fix=fix)])
        running.show_cfg(APP, arguments, part, package, resolve)


def show_info(overrides: Sequence[str], *, topic: str, composer: Composer) -> None:
    """``--info``: print what Hydra knows of a topic: its defaults list, search path, plugins."""
    arguments = list(hydra_arguments(overrides, composer).overrides)
    with hydra_running(composer, refusals=(ValueError,)) as running:
        running.show_info(topic, APP, arguments)


def sweep_config(composer: Composer, overrides: Sequence[str]) -> DictConfig:
    """Hydra's own settings of a sweep, composed."""
    from hydra.types import RunMode

    with hydra_running(composer, refusals=(ValueError,)) as running:
        return running.compose_config(APP, list(overrides), RunMode.MULTIRUN, validate_sweep_overrides=False)


def is_sweep_or_hydra(text: str) -> bool:
    """Whether an override that can be read gives several values, or is of Hydra's own settings."""
    override = OverridesParser.create().parse_override(text)
    return bool(override.is_sweep_override() or override.is_hydra_override())


def _unknown_plugin(override: Override, loader: ConfigLoader) -> Iterator[Problem]:
    """A choice such as ``hydra/launcher=jobllib`` that no installed plugin provides."""
    group, value = override.key_or_group, override.value()
    if not group.startswith("hydra/") or not isinstance(value, str):
        return
    choices = loader.get_group_options(group)
    if value not in choices:
        kind = group.removeprefix("hydra/")
        message = f"there is no {group} {value!r}; there are {', '.join(choices) or 'none'}"
        otherwise = f"install the package that provides it, such as hydra-{value}-{kind}"
        yield Problem(code="unknown-choice", path=group, message=message,
                      fix=did_you_mean(value, choices, otherwise=otherwise))  # fmt: skip


def _schema_node() -> dict[str, Any]:
    """All defaults, and ``???`` where a value is required."""
    tree = defaults()
    for path in required_keys():
        value_at(tree, path[:-1])[path[-1]] = "???"
    return tree


def _names_references(override: Override, composer: Composer) -> bool:
    """Whether ``model=...`` names models by reference instead of files in conf/."""
    group = override.key_or_group
    if isinstance(override.value(), dict):
        return True
    if group not in REFERENCE_GROUPS or override.is_delete():
        return False
    values = list(override.sweep_string_iterator()) if override.is_discrete_sweep() else [str(override.value())]
    return any(value not in composer.groups[group] for value in values)
