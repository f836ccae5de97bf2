"""Override strings, in Hydra's grammar, sorted into what each of them does.

recipe=demo backend=dtensor          choices of groups
training.seed=1 +training.top_k=50   assignments; + and ++ mean the same as neither
~training.lora                       back to the default
hydra.sweep.dir=sweeps/one           refused: Hydra's own settings are read by a sweep only
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.paths import RECIPE
from launcher.schema.problems import Problem
from launcher.suggest import did_you_mean
from launcher.yaml_files import KeyPath

REFERENCE_GROUPS = ("model", "environment")
"""Groups whose section is also a reference: ``model=hf://org/name`` names a model without a file in conf/."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One value set, or put back to its default, on the command line.

    Example:
        Assignment(key=("training", "seed"), value=1, text="training.seed=1")
    """

    key: KeyPath
    value: Any
    """Ignored when ``to_default``."""
    text: str
    """The override as it was given."""
    to_default: bool = False


@dataclass(kw_only=True, slots=True)
class Overrides:
    """All overrides of one command, in order within each kind."""

    choices: dict[str, str | None] = field(default_factory=dict)
    """Group -> choice; None for none."""
    assignments: list[Assignment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse_overrides(texts: Iterable[str], *, groups: Mapping[str, Sequence[str]]) -> Overrides:
    """Sort override strings; what cannot be used becomes a problem.

    Args:
        texts: as given on the command line.
        groups: every group with its choices.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override
    from hydra.errors import HydraException

    result = Overrides()
    parser = OverridesParser.create()
    for text in texts:
        try:
            override: Override = parser.parse_override(text)
        except (HydraException, RecursionError) as error:
            result.problems.append(_unparsable(text, error, recipes=groups[RECIPE]))
            continue
        if override.is_hydra_override():
            fix = "add -m to `grpo train` for a sweep, or leave it out; engine.runs_dir says where a run is written"
            result.problems.append(_problem(text, "is a setting of Hydra, and has an effect on sweeps only", fix))
        elif override.is_sweep_override():
            fix = f"add -m to sweep over them, or quote the value: {override.key_or_group}='...'"
            result.problems.append(_problem(text, "gives several values", fix))
        elif override.package is not None:
            result.problems.append(_problem(text, "names a package with @", "give the key without @"))
        elif override.key_or_group in groups and not isinstance(override.value(), dict):
            _choose(result, override.key_or_group, override.value(), text, groups, deletes=override.is_delete())
        else:
            key = tuple(override.key_or_group.replace("/", ".").split("."))
            result.assignments.append(
                Assignment(key=key, value=override.value(), text=text.lstrip("+"), to_default=override.is_delete())
            )
    return result


def _choose(
    result: Overrides, group: str, value: Any, text: str, groups: Mapping[str, Sequence[str]], *, deletes: bool
) -> None:
    if deletes or value is None:
        result.choices[group] = None
    elif not isinstance(value, str | int):
        result.problems.append(_problem(text, "is not the name of a choice", f"give one of {', '.join(groups[group])}"))
    elif str(value) in groups[group]:
        result.choices[group] = str(value)
        result.assignments = [given for given in result.assignments if given.key != (group,)]  # the last one wins
    elif group in REFERENCE_GROUPS and any(mark in str(value) for mark in "/:."):
        result.choices[group] = None
        result.assignments.append(Assignment(key=(group,), value=str(value), text=text))
    else:
        choices = groups[group]
        hint = "" if group not in REFERENCE_GROUPS else f"; for a FileSet of that name set {group}.name={value}"
        fix = did_you_mean(str(value), choices, otherwise=f"choose one of {', '.join(choices)}")
        result.problems.append(
            Problem(code="unknown-choice", path=group, fix=fix + hint,
                    message=f"there is no {group} {str(value)!r}; there are {', '.join(choices) or 'none'}")
        )  # fmt: skip


def _unparsable(text: str, error: Exception, *, recipes: Iterable[str]) -> Problem:
    if "=" not in text:
        otherwise = "write key=value, or ~key for the default"
        return _problem(text, "is not key=value", did_you_mean(text, recipes, otherwise=otherwise, prefix=f"{RECIPE}="))
    if "${" in text:
        fix = "quote the value inside the shell's quotes: '{}=\"{}\"'".format(*text.split("=", 1))
        return _problem(text, "cannot be read: a ${...} that holds another needs quotes", fix)
    reason = str(error).splitlines()[0] if str(error) else "it nests too deep"
    return _problem(text, f"cannot be read: {reason}", "quote the value, as in key='a value, with marks'")


def _problem(text: str, message: str, fix: str) -> Problem:
    shown = text if len(text) <= 120 else text[:117] + "..."
    return Problem(code="bad-override", path=shown, message=message, fix=fix)
