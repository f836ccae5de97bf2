"""Recipe or job JSON, group choices and overrides -> one ``JobConfig`` with the origin of every value.

defaults of the schema < groups < recipe < job JSON < command line          (later wins)
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.compile import DERIVED_SETTINGS
from launcher.compose import Composer, Layer, job_part
from launcher.interpolation import interpolate
from launcher.job_json import read_job_json
from launcher.origins import DEFAULT, Origin, TracedTree, dotted, leaves, value_at
from launcher.overrides import REFERENCE_GROUPS, parse_overrides
from launcher.paths import RECIPE, config_roots
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import LauncherError, Problem
from launcher.validation import defaults, leaf_values, validate
from launcher.yaml_files import KeyPath, YamlFile, read_yaml

PATHS: tuple[KeyPath, ...] = (
    ("model",),
    ("model", "name"),
    ("model", "chat_template"),
    ("dataset",),
    ("environment",),
    ("environment", "name"),
)
"""Values that may be paths; one that a recipe gives starts at the folder that holds the recipe's folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A job, and what is needed to say where it came from and to write it down."""

    job: JobConfig
    references: dict[KeyPath, str]
    """Key path -> text such as ``${oc.env:SEED}``, for values of environment variables."""
    origins: dict[str, Origin]
    """Dotted key -> origin, of every setting that is not at its default."""

    def to_yaml(self) -> str:
        """The whole config as YAML that ``read_config`` reads back."""
        import yaml

        return yaml.safe_dump(self.to_tree(), sort_keys=False, allow_unicode=True, width=120)

    def to_tree(self) -> dict[str, Any]:
        """Every setting as it is written down: ``${...}`` for environment variables, ``\\${`` for text that says so."""
        tree: dict[str, Any] = _escaped(self.job.model_dump(mode="json"))
        for path in PATHS:
            text = value_at(tree, path)
            if isinstance(text, str) and _exists(Path(text)):
                _put(tree, path, str(Path(text).absolute()))  # a run is continued from any working directory
        for path, text in self.references.items():
            _put(tree, path, text)
        return tree

    def origin(self, key: str) -> Origin:
        """Origin of a dotted key, which may lie inside a value that was set as a whole."""
        parts = key.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((self.origins[prefix] for prefix in prefixes if prefix in self.origins), DEFAULT)

    def located(self, problem: Problem) -> Problem:
        """A problem with the file and line that its key was set at."""
        key = f"{problem.path}.name" if problem.path in REFERENCE_GROUPS else problem.path
        place = self.origin(key).place
        return replace(problem, message=f"{problem.message} ({place})") if place else problem

    def origins_json(self, plan: RunPlan | None = None) -> str:
        """What a run directory keeps as ``origins.json``: where every setting came from.

        Args:
            plan: tells how settings that were left out are derived.
        """
        found = {key: str(self.origin(key)) for key, _ in leaf_values(self.job)}
        formulas = plan.formulas if plan is not None else {}
        for key, field in DERIVED_SETTINGS.items():
            if field in formulas and self.origin(key).kind == "default":
                found[key] = f"derived: {formulas[field]}"
        return json.dumps(found, indent=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A job that may be wrong: what ``grpo check`` runs the rules on, so that it can report everything at once."""

    resolved: Resolved
    problems: tuple[Problem, ...]
    broken: frozenset[str]
    """Dotted keys whose value in the job stands in for one that is wrong."""


def resolve(overrides: Sequence[str], *, job_json: Path | None = None, composer: Composer | None = None) -> Resolved:
    """Compose and validate one job.

    Args:
        overrides: ``recipe=NAME``, ``group=choice`` and ``key=value``, in Hydra's grammar.
        job_json: a published job JSON, laid over groups and recipe.
        composer: shared between the trials of a sweep.

    Raises:
        LauncherError: with every problem of every field.
    """
    draft = draft_job(overrides, job_json=job_json, composer=composer)
    if draft.problems:
        raise LauncherError(draft.problems)
    return draft.resolved


def read_config(path: Path) -> Resolved:
    """The job that a run directory's ``config.yaml`` holds.

    Raises:
        LauncherError: when the file is not a valid config.
    """
    traced = TracedTree(tree=defaults())
    file = read_yaml(path)
    for key, value in leaves(file.tree):
        traced.put(key, value, Origin(kind="run", where=_place(file, key, path.parent)))
    draft = _finish(traced, [])
    if draft.problems:
        raise LauncherError(draft.problems)
    return draft.resolved


def draft_job(overrides: Sequence[str], *, job_json: Path | None = None, composer: Composer | None = None) -> Draft:
    """Compose one job and report its problems instead of raising them.

    Raises:
        LauncherError: when a file cannot be read or composed, so that there is no job to report on.
    """
    composer = composer or Composer(config_roots())
    parsed = parse_overrides(overrides, groups=composer.groups)
    if any(problem.path == RECIPE for problem in parsed.problems):
        raise LauncherError(parsed.problems)
    traced = TracedTree(tree=defaults())
    try:
        for layer in composer.layers(parsed.choices):
            _lay(traced, layer)
        job = read_job_json(job_json) if job_json else None
    except LauncherError as error:
        raise LauncherError([*parsed.problems, *error.problems]) from None
    if job is not None:
        for path, value in leaves(job.tree):
            traced.put(path, value, Origin(kind="job", where=_place(job, path, Path())))
    for assignment in parsed.assignments:
        if assignment.to_default:
            traced.reset(assignment.key, value_at(defaults(), assignment.key))
        else:
            traced.put(assignment.key, assignment.value, Origin(kind="command line", where=assignment.text))
    return _finish(traced, parsed.problems)


def _lay(traced: TracedTree, layer: Layer) -> None:
    for path, value in leaves(job_part(layer.file.tree)):
        key = (*layer.package, *path)
        if key in PATHS and isinstance(value, str) and "${" not in value and _exists(layer.root / value):
            value = str(layer.root / value)
        traced.put(key, value, Origin(kind=layer.kind, where=_place(layer.file, path, layer.root)))


def _finish(traced: TracedTree, problems: list[Problem]) -> Draft:
    data = frozenset(path for path, origin in traced.origins.items() if origin.kind == "job")
    interpolated = interpolate(traced.tree, data=data)
    validated = validate(interpolated.tree)
    unresolved = {dotted(path): problem for path, problem in interpolated.failures.items()}
    fields = [problem for problem in validated.problems if problem.path not in unresolved]
    if any(problem.code == "unknown-choice" for problem in problems):
        fields = [problem for problem in fields if problem.code != "missing-key"]  # the choice would have set it
    origins = {
        dotted(path): Origin(kind=origin.kind, where=origin.where, reference=interpolated.references.get(path))
        for path, origin in sorted(traced.origins.items())
    }
    resolved = Resolved(job=validated.job, references=interpolated.references, origins=origins)
    located = (resolved.located(problem) for problem in (*unresolved.values(), *fields))
    return Draft(resolved=resolved, problems=(*problems, *located), broken=validated.broken | unresolved.keys())


def _place(file: YamlFile, key: KeyPath, root: Path) -> str:
    shown = file.path.relative_to(root) if file.path.is_relative_to(root) else file.path
    line = next((file.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in file.lines), None)
    return f"{shown}:{line}" if line else str(shown)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file system can hold
        return False


def _put(tree: Any, path: KeyPath, value: str) -> None:
    parent = value_at(tree, path[:-1])
    parent[int(path[-1]) if isinstance(parent, list) else path[-1]] = value


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escaped(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_escaped(below) for below in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
