"""Reading YAML that people write: the tree, and the line of every key.

One pass over parser events finds what a plain load hides or answers with a traceback (duplicate keys, tabs, nesting
without end), and where each key stands.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from launcher.schema.problems import LauncherError, Problem

type KeyPath = tuple[str, ...]

LARGEST_FILE_BYTES = 1_000_000
DEEPEST_NESTING = 32
MOST_NODES = 100_000
"""Values of a file with its aliases written out."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML without libyaml has no CSafeLoader
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map")}


class _ConfigLoader(_Loader):  # type: ignore[misc, valid-type]
    """Reads scalars as Hydra does: ``1e-6`` is a number, a date is text. No other kinds of values, no tags for them."""

    yaml_constructors: ClassVar = {
        tag: build for tag, build in _Loader.yaml_constructors.items() if tag is None or tag in _PLAIN_TAGS
    }
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in found if tag != _TAG + "timestamp"]
        for first, found in _Loader.yaml_implicit_resolvers.items()
    }


_ConfigLoader.add_implicit_resolver(
    _TAG + "float", re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlFile:
    """A parsed file.

    Example:
        YamlFile(path=Path("recipes/demo.yaml"), tree={"training": {"seed": 1}},
                 lines={("training",): 3, ("training", "seed"): 4})
    """

    path: Path
    tree: Mapping[str, Any]
    """Top-level mapping, interpolations as they stand."""
    lines: Mapping[KeyPath, int]
    """1-based line of every key."""


def read_yaml(path: Path) -> YamlFile:
    """Read one YAML file whose top level is a mapping.

    Raises:
        LauncherError: with ``file:line`` when the file cannot be read as that.
    """
    text = read_text(path)
    lines = key_lines(text, path=path)
    refuse_expanding_aliases(text, path=path)
    tree = _load(text, path)
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise LauncherError([_problem(f"{path}:1", f"holds {_kind(tree)} where a mapping of keys belongs",
                                      "write `key: value` lines")])  # fmt: skip
    return YamlFile(path=path, tree=tree, lines=lines)


def read_text(path: Path) -> str:
    """The text of a file that a person wrote: UTF-8, at most ``LARGEST_FILE_BYTES``.

    Raises:
        LauncherError: naming the file, and the line for bytes that are not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise LauncherError([_problem(str(path), f"cannot be read: {error.strerror}", "check the path")]) from None
    if len(data) > LARGEST_FILE_BYTES:
        message = f"is larger than {LARGEST_FILE_BYTES:,} bytes, the most a configuration may have"
        raise LauncherError([_problem(str(path), message, "keep data in the dataset, not in the configuration")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8: byte 0x{data[error.start]:02x}"
        raise LauncherError([_problem(f"{path}:{line}", message, "save the file as UTF-8")]) from None


def key_lines(text: str, *, path: Path) -> dict[KeyPath, int]:
    """Line of every mapping key in YAML or JSON text.

    Raises:
        LauncherError: on a syntax error, a duplicate key or nesting deeper than ``DEEPEST_NESTING``.
    """
    lines: dict[KeyPath, int] = {}
    stack: list[_Open] = []
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                stack.pop()
                if stack:
                    stack[-1].value_done()
                continue
            if not isinstance(event, (yaml.NodeEvent,)):
                continue
            assert event.start_mark is not None, "parsers set marks"
            line = event.start_mark.line + 1
            if stack and stack[-1].expects_key:
                stack[-1].take_key(event, line, lines, path)
                if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                    raise LauncherError([_problem(f"{path}:{line}", "a mapping or list is used as a key",
                                                  "write a plain name before the colon")])  # fmt: skip
                continue
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                if len(stack) == DEEPEST_NESTING:
                    raise LauncherError([_problem(f"{path}:{line}", f"nests deeper than {DEEPEST_NESTING} levels",
                                                  "flatten it: no setting lies that deep")])  # fmt: skip
                stack.append(_Open(stack[-1].here if stack else (), isinstance(event, yaml.MappingStartEvent)))
            elif stack:
                stack[-1].value_done()
    except yaml.YAMLError as error:
        raise LauncherError([syntax_problem(error, path, text=text)]) from None
    return lines


def syntax_problem(error: yaml.YAMLError, path: Path, *, text: str = "") -> Problem:
    """What a YAML parser complains about, with its place.

    Args:
        error: what it raised.
        path: the file.
        text: the file's text, to tell a tab, which parsers describe as any odd character.
    """
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        lines = text.splitlines()
        if mark and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]:
            return _problem(place, "a tab is used for indentation", "indent with spaces")
        message = " ".join(part for part in (error.context, error.problem) if part)
        return _problem(place, f"is not valid YAML: {message}", "fix the syntax; a missing space after ':' is common")
    return _problem(str(path), f"is not valid YAML: {error}", "remove the character it names")


class _Open:
    """A mapping or list whose end has not been seen."""

    def __init__(self, prefix: KeyPath, is_mapping: bool):
        self.prefix, self.is_mapping = prefix, is_mapping
        self.here = prefix
        self.keys: dict[str, int] = {}
        self.index = 0
        self.expects_key = is_mapping
        if not is_mapping:
            self.here = (*prefix, "0")

    def take_key(self, event: yaml.NodeEvent, line: int, lines: dict[KeyPath, int], path: Path) -> None:
        key = str(event.value) if isinstance(event, yaml.ScalarEvent) else f"*{event.anchor}"
        if key in self.keys:
            message = f"key {key!r} stands twice, first in line {self.keys[key]}"
            raise LauncherError([_problem(f"{path}:{line}", message, "keep one of them")])
        self.keys[key] = line
        self.here = (*self.prefix, key)
        lines[self.here] = line
        self.expects_key = False

    def value_done(self) -> None:
        if self.is_mapping:
            self.expects_key = True
        else:
            self.index += 1
            self.here = (*self.prefix, str(self.index))


def refuse_expanding_aliases(text: str, *, path: Path) -> None:
    """Add up what each anchor stands for, aliases inside it included, before anything is built.

    Raises:
        LauncherError: the values are more than ``MOST_NODES``, or an alias stands inside what it refers to.
    """
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]

    def add(size: int) -> None:
        anchor, total = open_nodes[-1]
        if total + size > MOST_NODES:
            message = f"expands to more than {MOST_NODES:,} values through its aliases"
            raise LauncherError([_problem(str(path), message, "write the values out, without anchors and aliases")])
        open_nodes[-1] = (anchor, total + size)

    for event in yaml.parse(text, Loader=_Loader):
        match event:
            case yaml.AliasEvent(anchor=anchor):
                if any(anchor == around for around, _ in open_nodes):
                    message = f"*{anchor} stands inside what it refers to"
                    raise LauncherError([_problem(str(path), message, "write the values out")])
                add(sizes.get(anchor, 1))
            case yaml.ScalarEvent(anchor=anchor):
                sizes[anchor] = 1
                add(1)
            case yaml.MappingStartEvent(anchor=anchor) | yaml.SequenceStartEvent(anchor=anchor):
                open_nodes.append((anchor, 1))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                anchor, total = open_nodes.pop()
                sizes[anchor] = total
                add(total)


def _load(text: str, path: Path) -> Any:
    try:
        return yaml.load(text, Loader=_ConfigLoader)
    except yaml.YAMLError as error:
        raise LauncherError([syntax_problem(error, path)]) from None
    except ValueError:  # a whole number of thousands of digits
        raise LauncherError([_problem(str(path), "holds a number too large to be meant", "shorten it")]) from None


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else "a single value"


def _problem(path: str, message: str, fix: str) -> Problem:
    return Problem(code="bad-file", path=path, message=message, fix=fix)
