"""What every setting means, told from the schema: for ``grpo explain``, completion and the reference in docs/."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.schema.job import JobConfig

_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "null",
          "object": "mapping", "array": "list"}  # fmt: skip
_NO_BOUND = 2**31 - 1
"""Upper bound of every count; it is no news."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One key of the job config.

    Example:
        Setting(key="training.temperature", type="number", bound="> 0, <= 2", choices=(), default=1.0, required=False,
                meaning="Divides the logits in the sampler and in the loss.", is_section=False)
    """

    key: str
    type: str
    bound: str
    """Empty when there is none."""
    choices: tuple[str, ...]
    """Values allowed, when they are few."""
    default: Any
    required: bool
    meaning: str
    is_section: bool


@functools.cache
def settings() -> dict[str, Setting]:
    """Every section and leaf of the schema by its dotted key, in the schema's order."""
    schema = JobConfig.model_json_schema()
    return {setting.key: setting for setting in _settings(schema, schema["$defs"], prefix="")}


def _settings(node: Mapping[str, Any], definitions: Mapping[str, Any], *, prefix: str) -> Iterator[Setting]:
    required = node.get("required", ())
    for name, field in node["properties"].items():
        alternatives = [_resolved(option, definitions) for option in field.get("anyOf", [field])]
        section = next((option for option in alternatives if "properties" in option), None)
        choices = tuple(str(value) for option in alternatives for value in _choices(option))
        yield Setting(
            key=prefix + name,
            type="section" if section else " or ".join(dict.fromkeys(_type(option) for option in alternatives)),
            bound=", ".join(bound for option in alternatives for bound in _bounds(option)),
            choices=choices,
            default=None if section else field.get("default"),
            required=name in required,
            meaning=_in_plain_text(field.get("description") or (section or {}).get("description", "")),
            is_section=section is not None,
        )
        if section is not None:
            yield from _settings(section, definitions, prefix=f"{prefix}{name}.")


def _in_plain_text(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())


def _resolved(option: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = option.get("$ref")
    target: Mapping[str, Any] = definitions[reference.rpartition("/")[2]] if reference else option
    return target


def _type(option: Mapping[str, Any]) -> str:
    if "enum" in option or "const" in option:
        return "choice"
    return _TYPES.get(str(option.get("type")), "anything")


def _choices(option: Mapping[str, Any]) -> Sequence[Any]:
    only = [option["const"]] if "const" in option else []
    found: Sequence[Any] = option.get("enum", only)
    return found


def _bounds(option: Mapping[str, Any]) -> Iterator[str]:
    for key, sign in _BOUNDS.items():
        if key in option and option[key] != _NO_BOUND:
            yield f"{sign} {option[key]:g}" if isinstance(option[key], float) else f"{sign} {option[key]}"
    if "maxLength" in option:
        yield f"at most {option['maxLength']} characters"
