"""What is known of a sweep before its first trial starts.

grid:     overrides --(Hydra's own sweeper expands them)--> every trial --> what is wrong with any of them
adaptive: overrides --(one trial, as an example)----------> what is wrong with all that may be proposed
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.checking import Checked, Checker
from launcher.compose import Composer
from launcher.origins import touches
from launcher.resolve import draft_job
from launcher.rules import rule
from launcher.schema.problems import LauncherError, Problem
from launcher.validation import key_paths

if TYPE_CHECKING:
    from launcher.hydra_app import HydraArguments

MOST_TRIALS = 10_000
"""Of a grid: more are a mistake, and checking them would take minutes."""
_REFERENCES = ("model", "dataset", "environment")
"""Settings that name files: what a rule knows of files depends on them too."""
_KNOWN = ("optuna", "nevergrad", "ax")
"""Adaptive sweepers that vary what the command line gives several values and what their settings name, nothing else."""
_STEPS = (
    "training.val_check_interval",
    "training.epochs",
    "training.max_steps",
    "training.batch_size",
    "training.num_generations_per_prompt",
    "training.num_prompts_per_step",
    "training.batch_multiplier",
)
"""What says whether a step before the last one is validated."""


def expand_grid(arguments: "HydraArguments", params: Mapping[str, Any], checker: Checker) -> list[list[str]]:
    """The overrides of every trial of a grid, as Hydra's own sweeper makes them.

    Args:
        arguments: of the command line.
        params: ``hydra.sweeper.params`` of a recipe.
        checker: knows groups and recipes.

    Raises:
        LauncherError: for a range that only an adaptive sweeper can draw from.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    parsed = _parsed([*(f"{key}={value}" for key, value in params.items()), *arguments.overrides], checker)
    if math.prod(_num_values(override) for override in parsed) > MOST_TRIALS:
        raise LauncherError([Problem(code="bad-sweep", path="hydra/sweeper", fix="list fewer values",
                                     message=f"asks for more than {MOST_TRIALS:,} trials")])  # fmt: skip
    try:
        batches = BasicSweeper.split_arguments([o for o in parsed if not o.is_hydra_override()], None)
    except HydraException as error:
        fix = "list values, as in key=1,2; or choose an adaptive sweeper, as in hydra/sweeper=optuna"
        raise LauncherError([Problem(code="bad-sweep", path="hydra/sweeper", message=str(error), fix=fix)]) from None
    return [[*arguments.resets, *trial] for trial in itertools.chain.from_iterable(batches)]


def trial_problems(trials: Sequence[Sequence[str]], checker: Checker, *, job_json: Path | None = None) -> list[Problem]:
    """What is wrong with any trial; a problem that several share is reported once, with their numbers."""
    found: dict[Problem, list[int]] = {}
    for number, trial in enumerate(trials):
        try:
            problems: Iterable[Problem] = checker.check(trial, job_json=job_json).problems
        except LauncherError as error:
            problems = error.problems
        for problem in problems:
            found.setdefault(problem, []).append(number)
    varying = _varying(trials)
    return [
        problem if len(numbers) == len(trials) else _named(problem, numbers, trials, varying)
        for problem, numbers in found.items()
    ]


def common_problems(
    arguments: "HydraArguments", settings: Any, checker: Checker, *, job_json: Path | None = None
) -> list[Problem]:
    """Errors that every trial of an adaptive sweep has, because nothing they depend on varies.

    Args:
        arguments: of the command line.
        settings: ``hydra``, whose ``sweeper`` may name what varies, too.
        checker: knows groups and recipes.
        job_json: a job JSON under all trials.

    Example, of ``training.epochs=0 training.seed=1,2``: the problem of training.epochs, and none of training.seed.
    """
    if settings.runtime.choices.get("hydra/sweeper") not in _KNOWN or settings.sweeper.get("custom_search_space"):
        return []  # what varies may be named in other ways
    parsed = [override for override in _parsed(arguments.overrides, checker) if not override.is_hydra_override()]
    varying = {override.key_or_group for override in parsed if override.is_sweep_override()}
    varying |= set(_keys(settings.sweeper)) & {*key_paths(), *checker.composer.groups}
    example = [*arguments.resets, *map(_example, parsed)]
    checked: Checked | None = None
    try:
        checked = checker.check(example, job_json=job_json)
        problems = [*checked.problems, *reward_problems(checked)]
    except LauncherError as error:
        problems = list(error.problems)
    groups_vary = bool(varying & set(checker.composer.groups))
    return [
        problem for problem in problems
        if problem.severity == "error" and not any(touches(key, other) for key in _causes(problem) for other in varying)
        and not (groups_vary and not _is_given(problem, checked))
    ]  # fmt: skip


def reward_problems(checked: Checked) -> list[Problem]:
    """Why a job would end without the validation reward that an adaptive sweeper goes by."""
    plan, training = checked.plan, checked.resolved.job.training
    if plan is None:
        return []
    message = "an adaptive sweeper goes by the validation reward, and "
    if plan.validation_interval is None:
        fix = "add validation.jsonl to the dataset"
        return [Problem(code="no-reward", path="dataset", message=f"{message}there are no validation rows", fix=fix)]
    if not training.val_at_end and plan.validation_interval >= plan.num_steps:
        message += "nothing is validated after a step"
        return [Problem(code="no-reward", path="training.val_at_end", message=message,
                        fix="set training.val_at_end=true, or training.val_check_interval")]  # fmt: skip
    return []


def composition_problems(
    overrides: Sequence[str], composer: Composer, *, job_json: Path | None = None
) -> tuple[Problem, ...]:
    """Our own, better report on overrides that Hydra refuses to compose, of which it says the first problem only."""
    from launcher.hydra_app import is_sweep_or_hydra

    single = [text for text in overrides if not is_sweep_or_hydra(text)]
    try:
        problems: Sequence[Problem] = draft_job(single, job_json=job_json, composer=composer).problems
    except LauncherError as error:
        problems = error.problems
    return tuple(problem for problem in problems if problem.code not in ("missing-key", "union_tag_not_found"))


def _parsed(texts: Sequence[str], checker: Checker) -> list[Any]:
    """Overrides as Hydra parses them.

    Raises:
        LauncherError: for one that gives no value at all: an empty range, a glob that nothing matches.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from launcher.hydra_app import config_loader

    parsed = OverridesParser.create(config_loader=config_loader(checker.composer)).parse_overrides(list(texts))
    fix = "a range needs a step other than 0 towards its end; a glob is matched against the choices of a group"
    problems = [
        Problem(code="bad-sweep", path=override.key_or_group, fix=fix,
                message=f"{str(override.input_line).partition('=')[2]} has no value")
        for override in parsed if not _num_values(override)
    ]  # fmt: skip
    if problems:
        raise LauncherError(problems)
    return parsed


def _num_values(override: Any) -> int:
    """How many values an override gives; without writing out a range."""
    from hydra.core.override_parser.types import RangeSweep

    if not override.is_discrete_sweep():
        return 1
    value = override.value()
    if isinstance(value, RangeSweep):
        start, stop, step = value.start or 0, value.stop or 0, value.step
        return max(math.ceil((stop - start) / step), 0) if step and math.isfinite(stop - start) else 0
    return sum(1 for _ in override.sweep_string_iterator())


def _example(override: Any) -> str:
    """The first of an override's values, as an override of its own."""
    if not override.is_sweep_override():
        return str(override.input_line)
    first = next(override.sweep_string_iterator()) if override.is_choice_sweep() else override.value().start
    return f"{override.get_key_element()}={first}"


def _keys(tree: Any) -> Iterator[str]:
    """Every key of nested mappings."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield str(key)
            yield from _keys(value)


def _causes(problem: Problem) -> Set[str]:
    """Settings that a problem may depend on, besides those of a group."""
    found = rule(problem.code)
    if problem.code == "no-reward":
        return {"dataset"} if problem.path == "dataset" else {problem.path, "dataset", *_STEPS}
    if found is not None:
        return {problem.path, *found.reads, *_REFERENCES}
    if problem.code == "unknown-key":
        return set()  # whatever its value
    return {problem.path} if problem.path in key_paths() else {problem.path, *_REFERENCES}


def _is_given(problem: Problem, checked: Checked | None) -> bool:
    """Whether a problem is one of a value on the command line, which no group can change."""
    by_rule = rule(problem.code) is not None or problem.code == "no-reward"
    return checked is not None and not by_rule and checked.resolved.origin(problem.path).kind == "command line"


def _varying(trials: Sequence[Sequence[str]]) -> set[str]:
    common = set(trials[0]).intersection(*trials) if trials else set()
    return {text for trial in trials for text in trial} - common


def _named(problem: Problem, numbers: list[int], trials: Sequence[Sequence[str]], varying: set[str]) -> Problem:
    first = " ".join(text.lstrip("+") for text in trials[numbers[0]] if text in varying)
    others = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
    message = f"{problem.message} (trial {numbers[0]}: {first}{others})"
    return dataclasses.replace(problem, message=message)
