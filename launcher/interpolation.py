"""Resolving ``${...}`` in a merged tree, value by value, so that every one that fails is reported.

A value that depends on an environment variable is also kept as it was written: that is what goes to disk.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from launcher.origins import dotted, leaves
from launcher.schema.problems import Problem
from launcher.yaml_files import KeyPath

_MARK = "${"


@dataclass(kw_only=True, slots=True)
class Interpolated:
    """A tree without references, and what they were."""

    tree: dict[str, Any]
    references: dict[KeyPath, str] = field(default_factory=dict)
    """Key path -> text, for values that come from environment variables."""
    failures: dict[KeyPath, Problem] = field(default_factory=dict)


def interpolate(tree: dict[str, Any], *, data: frozenset[KeyPath]) -> Interpolated:
    """Resolve every ``${...}`` of a tree.

    Args:
        tree: nested mappings; not changed.
        data: values that are data and stay as they stand, ``${`` included.
    """
    marked = [path for path, value in _all_leaves(tree) if isinstance(value, str) and _MARK in value]
    if not marked:
        return Interpolated(tree=tree)
    result = Interpolated(tree=copy.deepcopy(tree))
    source = copy.deepcopy(tree)
    shielded: dict[str, str] = {}
    for number, path in enumerate(marked):
        if path in data or any(path[:length] in data for length in range(len(path))):
            token = f"\x00data:{number}\x00"
            shielded[token] = _get(source, path)
            _set(source, path, token)
    _resolve_marked(source, marked, shielded, result)
    return result


def _resolve_marked(
    source: dict[str, Any], marked: list[KeyPath], shielded: Mapping[str, str], result: Interpolated
) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for path in marked:
        raw = _get(source, path)
        try:
            OmegaConf.create([raw])
        except OmegaConfBaseException as error:  # one that cannot be read keeps all others from being resolved
            result.failures[path] = _failure(path, raw, error)
            _set(source, path, None)
    config = OmegaConf.create(source)
    for path in marked:
        raw = _get(source, path)
        if raw in shielded or path in result.failures:
            continue
        with _watched_environment() as read:
            try:
                node: Any = config
                for part in path:
                    node = node[int(part) if OmegaConf.is_list(node) else _own_key(node, part)]
                value = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
            except (OmegaConfBaseException, RecursionError, ValueError, TypeError) as error:
                result.failures[path] = _failure(path, raw, error)
                continue
        for token, text in shielded.items():
            value = text if value == token else value
        _set(result.tree, path, value)
        if read:
            result.references[path] = raw


@contextmanager
def _watched_environment() -> Iterator[list[str]]:
    """Lists the environment variables that are read inside the block."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    read: list[str] = []

    def watched(key: str, *default: Any) -> Any:
        read.append(key)
        return oc.env(key, *default)

    OmegaConf.register_new_resolver("oc.env", watched, replace=True)
    try:
        yield read
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _failure(path: KeyPath, raw: str, error: Exception) -> Problem:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    from omegaconf.errors import GrammarParseError

    if isinstance(error, GrammarParseError):
        message, fix = (
            f"{raw} cannot be read: {reason}",
            "write ${key} or ${oc.env:NAME}; text that says so is \\${...}",
        )
    elif isinstance(error, RecursionError) or "Recursive interpolation" in reason:
        message, fix = f"{raw} leads back to itself", "break the cycle: give one of the values"
    else:
        if "Environment variable" in reason:
            fix = "set the variable, or give a default: ${oc.env:NAME,default}"
        else:
            fix = "refer to a key by its full path, as in ${training.batch_size}"
        message = f"{raw} cannot be resolved: {reason}"
    return Problem(code="bad-interpolation", path=dotted(path), message=message, fix=fix)


def _all_leaves(tree: Any, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    items = leaves(tree) if isinstance(tree, Mapping) else ((str(i), value) for i, value in enumerate(tree))
    for key, value in items:
        path = (*prefix, *(key if isinstance(key, tuple) else (key,)))
        if isinstance(value, list | tuple) or (isinstance(value, Mapping) and value):
            yield from _all_leaves(value, path)
        else:
            yield path, value


def _get(tree: Any, path: KeyPath) -> Any:
    for part in path:
        tree = tree[int(part) if isinstance(tree, list) else _own_key(tree, part)]
    return tree


def _set(tree: Any, path: KeyPath, value: Any) -> None:
    parent = _get(tree, path[:-1])
    parent[int(path[-1]) if isinstance(parent, list) else _own_key(parent, path[-1])] = value


def _own_key(mapping: Any, part: str) -> Any:
    """The key that ``part`` stands for: YAML keys may be numbers."""
    return part if part in mapping else next(key for key in mapping if str(key) == part)
