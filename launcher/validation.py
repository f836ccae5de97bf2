"""From a plain tree to a ``JobConfig``: every field error as a problem, and a job to run the rules on all the same."""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from launcher.origins import dotted, leaves
from launcher.schema.job import JobConfig
from launcher.schema.problems import Problem
from launcher.suggest import did_you_mean
from launcher.yaml_files import KeyPath

_PLACEHOLDERS: Mapping[KeyPath, Any] = {
    ("model",): {"name": "?"},
    ("model", "name"): "?",
    ("environment",): {"name": "?"},
    ("environment", "name"): "?",
    ("dataset",): "?",
    ("training",): {"type": "grpo"},
    ("training", "type"): "grpo",
}
"""What stands in for a required value that is missing or broken, so that the other values can still be checked."""
_MOST_PASSES = 50
_QUOTED = re.compile(r"[-+]?[0-9.][0-9._]*(e[-+]?[0-9]+)?|true|false|null", re.IGNORECASE)
"""Text that would be a value of another kind without its quotes."""
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a section of keys",
    "dict_type": "a section of keys",
    "tuple_type": "a list",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Validated:
    """A job, and which of its values stand in for broken ones."""

    job: JobConfig
    problems: tuple[Problem, ...]
    broken: frozenset[str]
    """Dotted key paths whose value in ``job`` is not the user's."""


def validate(tree: Mapping[str, Any]) -> Validated:
    """Check every field of a job.

    Args:
        tree: nested plain values without references.
    """
    rest = copy.deepcopy(dict(tree))
    problems: list[Problem] = []
    broken: set[KeyPath] = set()
    for _ in range(_MOST_PASSES):
        try:
            job = JobConfig.model_validate(rest)
        except ValidationError as error:
            for details in error.errors(include_url=False, include_context=True):
                path = _path(details)
                if path not in broken:
                    broken.add(path)
                    problems.append(_problem(details, path))
                _repair(rest, path)
            continue
        order = {path: number for number, path in enumerate(key_paths())}
        problems.sort(key=lambda problem: (order.get(problem.path, len(order)), problem.path))
        return Validated(job=job, problems=tuple(problems), broken=frozenset(map(dotted, broken)))
    raise AssertionError(f"validation does not settle: {problems}")


def defaults() -> dict[str, Any]:
    """A tree of all defaults; required values are absent."""
    return _defaults(JobConfig)


def required_keys() -> list[KeyPath]:
    """Leaves that have no default."""
    return [path for path, field, section in schema_fields() if section is None and field.is_required()]


def key_paths() -> list[str]:
    """Every key of the schema, sections before what they hold."""
    return [dotted(path) for path, _, _ in schema_fields()]


def schema_fields(model: type[BaseModel] = JobConfig, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Key path, field and section class (None for a leaf) of everything in the schema."""
    for name, field in model.model_fields.items():
        section = section_class(field.annotation)
        yield (*prefix, name), field, section
        if section is not None:
            yield from schema_fields(section, (*prefix, name))


def section_class(annotation: Any) -> type[BaseModel] | None:
    """The section a field holds, also when it may be null."""
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        section = section_class(field.annotation)
        if section is not None and (field.is_required() or field.default is not None):
            tree[name] = _defaults(section)
        elif not field.is_required():
            value = field.get_default(call_default_factory=True)
            tree[name] = list(value) if isinstance(value, tuple) else value
    return tree


def _path(details: ErrorDetails) -> KeyPath:
    path = tuple(str(part) for part in details["loc"] if part != "[key]")
    return (*path, "type") if details["type"].startswith("union_tag") else path


def _repair(tree: dict[str, Any], path: KeyPath) -> None:
    """Replace the value at ``path``, or the nearest mapping around it, by a placeholder or its default."""
    parent: Any = tree
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        key = next((own for own in parent if str(own) == part), part)
        if last or not isinstance(parent.get(key), dict):
            placeholder = _PLACEHOLDERS.get(path[: depth + 1])
            if placeholder is not None:
                parent[key] = copy.deepcopy(placeholder)
            else:
                parent.pop(key, None)
            return
        parent = parent[key]


def _problem(details: ErrorDetails, path: KeyPath) -> Problem:
    given, kind, context = details["input"], details["type"], details.get("ctx", {})
    code, message, fix = "wrong-type", f"{_shown(given)}: {details['msg'].lower()}", _type_fix(given)
    match kind:
        case "extra_forbidden":
            code, message, fix = "unknown-key", "is not a setting", _place_of(path)
        case "missing":
            code, message, fix = (
                "missing-key",
                "is required and not set",
                f"set {dotted(path)}=..., or name a recipe that does: recipe=...",
            )
        case "union_tag_not_found" | "union_tag_invalid":
            found = "is missing and has no default" if kind == "union_tag_not_found" else "must be grpo"
            code, message, fix = kind, found, "set training.type=grpo"
        case "literal_error":
            allowed = [text.strip("' ") for text in context["expected"].replace(" or ", ",").split(",")]
            code, message = "not-a-choice", f"{_shown(given)} is not one of {', '.join(allowed)}"
            fix = did_you_mean(str(given), allowed, otherwise=f"set {dotted(path)}={allowed[0]}")
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            sign, bound = next((s, context[k]) for k, s in _BOUNDS.items() if k in context)
            code, message = "out-of-range", f"{_shown(given)} is out of range: it must be {sign} {bound}"
            fix = f"give a value {sign} {bound}"
        case "finite_number":
            code, message, fix = "out-of-range", f"{_shown(given)} is not a finite number", "give a finite number"
        case "string_pattern_mismatch":
            message = f"{_shown(given)} has characters a name cannot have"
            fix = "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        case "string_too_long":
            code, message = "out-of-range", f"has {len(given)} characters, at most {context['max_length']} are allowed"
            fix = "shorten it"
        case "string_too_short":
            message, fix = "is empty", "give a value, or leave the key out for its default"
        case _ if kind in _TYPES:
            message = f"{_shown(given)} is not {_TYPES[kind]}"
            if kind == "tuple_type" and isinstance(given, str):
                fix = f"give a list: {dotted(path)}=[{given}]"
            elif isinstance(given, float) and given.is_integer():
                fix = f"set {dotted(path)}={given:.0f}"
            elif given is None and path in required_keys():
                fix = f"set {dotted(path)}=..."
    return Problem(code=code, path=dotted(path), message=message, fix=fix)


_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def _type_fix(given: Any) -> str:
    if given is None:
        return "leave the key out for its default"
    if isinstance(given, str):
        if _QUOTED.fullmatch(given):
            return 'write it without quotes; from an environment variable: "${oc.decode:${oc.env:NAME}}"'
        return "give a value of that kind"
    if isinstance(given, list | dict):
        return "see `grpo explain KEY` for what belongs there"
    return "give a value of the type it names"


def _place_of(path: KeyPath) -> str:
    """Where an unknown key may have been meant to go."""
    known = key_paths()
    if "." in path[-1] and dotted(path) in known:
        return f"nest it: {path[-1].replace('.', ': {')}: ..." + "}" * path[-1].count(".")
    siblings = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == dotted(path[:-1])]
    prefix = f"{dotted(path[:-1])}." if path[1:] else ""
    near = did_you_mean(path[-1], siblings, otherwise="", prefix=prefix)
    if near:
        return near
    elsewhere = [key for key in known if key.rpartition(".")[2] == path[-1]]
    if elsewhere:
        return f"it belongs at {' or '.join(elsewhere)}"
    return did_you_mean(dotted(path), known, otherwise="remove it; `grpo explain` lists all settings")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else text[:57] + "..."


def leaf_values(job: JobConfig) -> Iterator[tuple[str, Any]]:
    """Every leaf of a job with its dotted key."""
    for path, value in leaves(job.model_dump()):
        yield dotted(path), value
