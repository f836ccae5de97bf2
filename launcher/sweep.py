"""``grpo train -m``: many trials of one job, by Hydra's sweepers and launchers.

overrides --(grid: expanded, all checked)--> Hydra's sweeper --> trial: check, run --> trial.json --> one table
          --(adaptive sweeper)------------->                     `--(validation reward)--> next proposal
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.checking import Checked, Checker
from launcher.compose import APP
from launcher.schema.problems import LauncherError, Problem, RunFailed

if TYPE_CHECKING:
    from launcher.hydra_app import HydraArguments

TRIAL_FILE = "trial.json"
_LONGEST_REASON = 100
_GRID = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_PRESETS = {
    "optuna": ("hydra.sweeper.direction=maximize", "hydra.sweeper.max_failure_rate=1.0"),
    "nevergrad": ("hydra.sweeper.optim.maximize=true",),
    "ax": ("hydra.sweeper.ax_config.experiment.minimize=false",),
}
"""Adaptive sweepers minimise, and give up at the first failed trial, unless told otherwise; the objective here is a
reward, and a proposal that the rules refuse is no reason to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """What came of one trial.

    Example:
        TrialResult(status="completed", num_steps=16, reward_before=0.21, reward_after=0.84)
    """

    status: Literal["completed", "failed", "refused"]
    """``refused``: its config is wrong, and nothing was started."""
    num_steps: int = 0
    reward_before: float | None = None
    """Mean validation reward before the first step; None without validation."""
    reward_after: float | None = None
    message: str = ""
    """Why it did not complete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One line of the table at the end."""

    number: int
    overrides: tuple[str, ...]
    """Those in which trials differ."""
    directory: Path
    result: TrialResult


type RunTrial = Callable[[Checked, Path], TrialResult]
"""Runs a job in a directory that it makes; raises RunFailed when the run fails."""


def run_sweep(overrides: Sequence[str], *, run_trial: RunTrial, job_json: Path | None = None) -> list[Trial]:
    """Run every trial of a sweep.

    Args:
        overrides: as for one job, with several values where trials differ, and ``hydra.*`` settings.
        run_trial: runs one trial; importable by name, for launchers that run trials in other processes.
        job_json: a job JSON under all trials.

    Returns:
        The trials in order.

    Raises:
        LauncherError: when a trial of a grid is wrong: nothing has been started then.
    """
    from launcher.hydra_app import hydra_arguments, hydra_running, sweep_config  # Hydra: only when it is used

    checker = Checker()
    arguments = hydra_arguments(overrides, checker.composer)
    try:
        config = sweep_config(checker.composer, arguments.overrides)
    except LauncherError as error:
        raise LauncherError(_without_sweep(overrides, checker, job_json) or error.problems) from None
    settings = config.hydra
    directory = Path(str(settings.sweep.dir)).resolve()
    _require_unused(directory)
    if settings.sweeper._target_ == _GRID:
        trials = expand_grid(arguments, settings.sweeper.params or {}, checker)
        problems = trial_problems(trials, checker, job_json=job_json)
        if any(problem.severity == "error" for problem in problems):
            raise LauncherError(problems)
    is_grid = settings.sweeper._target_ == _GRID
    task = SweepTask(
        resets=arguments.resets,
        fixed=frozenset(arguments.overrides),
        run_trial=run_trial,
        job_json=job_json,
        reports_failure=not is_grid,
    )
    passed = [*arguments.overrides, f"hydra.sweep.dir={_quoted(str(directory))}"]
    given = {text.lstrip("+").partition("=")[0] for text in arguments.overrides}
    presets = _PRESETS.get(str(settings.runtime.choices.get("hydra/sweeper")), ())
    passed += [preset for preset in presets if preset.partition("=")[0] not in given]
    try:
        with hydra_running(checker.composer) as running:
            running.multirun(APP, task, passed)
    except (NoReward, ValueError):  # what sweepers raise when they give up on failed trials; the table says the rest
        if any(trial.result.status == "completed" for trial in read_trials(directory)):
            raise
    return read_trials(directory)


def expand_grid(arguments: "HydraArguments", params: Any, checker: Checker) -> list[list[str]]:
    """The overrides of every trial of a grid, as Hydra's own sweeper makes them.

    Raises:
        LauncherError: for a range that only an adaptive sweeper can draw from.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from launcher.hydra_app import config_loader

    texts = [*(f"{key}={value}" for key, value in params.items()), *arguments.overrides]
    parsed = OverridesParser.create(config_loader=config_loader(checker.composer)).parse_overrides(texts)
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


class NoReward(Exception):
    """A trial has no value to tell an adaptive sweeper."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepTask:
    """The function Hydra calls for every trial: its value is the objective of adaptive sweepers."""

    reports_failure: bool
    """Raise for a trial without a reward, which is how an adaptive sweeper hears of it; a grid goes on."""
    resets: tuple[str, ...]
    fixed: frozenset[str]
    """Overrides that all trials share."""
    run_trial: RunTrial
    job_json: Path | None

    def __call__(self, config: Any) -> float:
        """Check and run one trial, and write down what came of it.

        Raises:
            NoReward: when there is no value to report to an adaptive sweeper.
        """
        from hydra.core.hydra_config import HydraConfig

        hydra = HydraConfig.get()
        overrides = [str(text) for text in hydra.overrides.task]
        directory = Path(str(hydra.runtime.output_dir))
        directory.rmdir()  # Hydra has made it, and the run makes its own; fails when something lies in it
        result = self._run([*self.resets, *overrides], directory)
        differing = tuple(text.lstrip("+") for text in overrides if text not in self.fixed)
        trial = Trial(number=int(hydra.job.num), overrides=differing, directory=directory, result=result)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / TRIAL_FILE).write_text(json.dumps(dataclasses.asdict(trial), default=str), encoding="utf-8")
        if result.reward_after is None and self.reports_failure:
            raise NoReward(result.message or "the trial has no validation reward")
        return math.nan if result.reward_after is None else result.reward_after

    def _run(self, overrides: Sequence[str], directory: Path) -> TrialResult:
        try:
            checked = Checker().check(overrides, job_json=self.job_json)
            checked.require_valid()
        except LauncherError as error:
            return TrialResult(status="refused", message=str(error))
        try:
            return self.run_trial(checked, directory)
        except (LauncherError, RunFailed) as error:
            return TrialResult(status="failed", message=str(error))


def read_trials(directory: Path) -> list[Trial]:
    """The trials that a sweep directory holds, in order."""
    trials = []
    for file in directory.rglob(TRIAL_FILE):
        saved = json.loads(file.read_text(encoding="utf-8"))
        result = TrialResult(**saved["result"])
        trials.append(
            Trial(number=saved["number"], overrides=tuple(saved["overrides"]), directory=file.parent, result=result)
        )
    return sorted(trials, key=lambda trial: trial.number)


def trial_table(trials: Sequence[Trial]) -> str:
    """The table at the end of a sweep."""
    header = ("trial", "overrides", "steps", "reward before", "reward after", "status")
    rows = [
        (
            str(trial.number),
            " ".join(trial.overrides) or "-",
            str(trial.result.num_steps),
            _reward(trial.result.reward_before),
            _reward(trial.result.reward_after),
            _status(trial.result),
        )
        for trial in trials
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header) - 1)]
    lines = []
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        lines.append("  ".join((*cells, row[-1])).rstrip())
    return "\n".join(lines)


def _status(result: TrialResult) -> str:
    reason = result.message.splitlines()[0] if result.message else ""
    shown = reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 3] + "..."
    return f"{result.status}: {shown}" if shown else result.status


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _without_sweep(overrides: Sequence[str], checker: Checker, job_json: Path | None) -> tuple[Problem, ...]:
    """Our own, better report on overrides that Hydra refuses to compose."""
    single = [text for text in overrides if not _sweeps(text)]
    try:
        problems = checker.check(single, job_json=job_json, config_only=True).problems
    except LauncherError as error:
        problems = error.problems
    return tuple(problem for problem in problems if problem.severity == "error" and problem.code != "missing-key")


def _sweeps(text: str) -> bool:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(text).is_sweep_override()


def _require_unused(directory: Path) -> None:
    if directory.is_dir() and any(directory.iterdir()):
        message = f"{directory} is not empty, and a sweep never writes into another's folder"
        raise LauncherError([Problem(code="sweep-directory", path="hydra.sweep.dir", message=message,
                                     fix="name a folder that does not exist yet")])  # fmt: skip


def _varying(trials: Sequence[Sequence[str]]) -> set[str]:
    common = set(trials[0]).intersection(*trials) if trials else set()
    return {text for trial in trials for text in trial} - common


def _named(problem: Problem, numbers: list[int], trials: Sequence[Sequence[str]], varying: set[str]) -> Problem:
    first = " ".join(text.lstrip("+") for text in trials[numbers[0]] if text in varying)
    others = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
    message = f"{problem.message} (trial {numbers[0]}: {first}{others})"
    return dataclasses.replace(problem, message=message)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
