"""Where every value of a config came from, and the merging that keeps track of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.overrides import REFERENCE_GROUPS
from launcher.yaml_files import KeyPath

OriginKind = Literal["default", "group", "recipe", "job", "command line", "run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Who set a value.

    Example:
        Origin(kind="recipe", where="recipes/demo.yaml:19")
    """

    kind: OriginKind
    where: str
    """``file:line``, the override, or the schema."""
    reference: str | None = None
    """The text that was resolved when the value came from an environment variable, such as ``${oc.env:SEED}``."""

    @property
    def place(self) -> str:
        """``file:line``; empty for a default and for the command line, which is in plain sight."""
        return "" if self.kind in ("default", "command line") else self.where

    def __str__(self) -> str:
        through = f" = {self.reference}" if self.reference else ""
        return f"{self.kind}, {self.where}{through}" if self.kind != "default" else "default"


DEFAULT = Origin(kind="default", where="launcher/schema")


@dataclass(kw_only=True, slots=True)
class TracedTree:
    """A nested mapping under construction, with the origin of each value that was put into it."""

    tree: dict[str, Any]
    origins: dict[KeyPath, Origin] = field(default_factory=dict)

    def put(self, path: KeyPath, value: Any, origin: Origin) -> None:
        """Set one value. A mapping merges with the mapping it meets, ``???`` sets nothing, all else replaces."""
        if len(path) == 1 and path[0] in REFERENCE_GROUPS and isinstance(value, str):
            path = (*path, "name")
        if isinstance(value, Mapping) and value:
            for below, leaf in leaves(value, path):
                self.put(below, leaf, origin)
        elif value != "???" and not (value == {} and isinstance(value_at(self.tree, path), dict)):
            self._set(path, value)
            self.origins[path] = origin

    def reset(self, path: KeyPath, value: Any) -> None:
        """Set a value that nobody gave: a default."""
        self._set(path, value)

    def _set(self, path: KeyPath, value: Any) -> None:
        parent = self.tree
        for part in path[:-1]:
            below = parent.get(part)
            if not isinstance(below, dict):
                below = parent[part] = {}
            parent = below
        parent[path[-1]] = value
        self._forget(path)

    def _forget(self, path: KeyPath) -> None:
        stale = [known for known in self.origins if known[: len(path)] == path or path[: len(known)] == known]
        for known in stale:
            del self.origins[known]


def leaves(tree: Mapping[Any, Any], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value that is not a non-empty mapping, with its key path."""
    for key, value in tree.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def value_at(tree: Any, path: KeyPath) -> Any:
    """The value at a key path, or None when there is none."""
    for part in path:
        if isinstance(tree, Mapping):
            tree = tree.get(part)
        elif isinstance(tree, list | tuple) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree


def dotted(path: KeyPath) -> str:
    """Key path as people write it."""
    return ".".join(path)


def touches(one: str, other: str) -> bool:
    """Whether two dotted keys are the same or one lies inside the other."""
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")
