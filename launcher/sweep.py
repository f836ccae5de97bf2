"""``grpo train -m``: many trials of one job, by Hydra's sweepers and launchers.

overrides --(grid: expanded, all checked)---------> Hydra's sweeper --> trial: check, run --> trial.json --> one table
          --(adaptive: what never varies checked)-->                     `--(validation reward)--> next proposal
"""

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.checking import Checked, Checker, has_errors
from launcher.compose import APP
from launcher.origins import dotted, leaves
from launcher.paths import RECIPE
from launcher.schema.problems import LauncherError, Problem, RunFailed
from launcher.sweep_checks import (
    common_problems,
    composition_problems,
    expand_grid,
    reward_problems,
    trial_problems,
)

_log = logging.getLogger(__name__)
TRIAL_FILE = "trial.json"
_LONGEST_REASON = 100
_GRID = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_PRESETS: Mapping[str, Mapping[str, str]] = {
    "optuna": {"hydra.sweeper.direction": "maximize", "hydra.sweeper.max_failure_rate": "1.0"},
    "nevergrad": {"hydra.sweeper.optim.maximize": "true"},
    "ax": {"hydra.sweeper.ax_config.experiment.minimize": "false"},
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


def run_sweep(
    overrides: Sequence[str],
    *,
    run_trial: RunTrial,
    job_json: Path | None = None,
    on_warnings: Callable[[Sequence[Problem]], None] = lambda warnings: None,
) -> list[Trial]:
    """Run every trial of a sweep.

    Args:
        overrides: as for one job, with several values where trials differ, and ``hydra.*`` settings.
        run_trial: runs one trial; importable by name, for launchers that run trials in other processes.
        job_json: a job JSON under all trials.
        on_warnings: told what is odd about a trial before the first one starts.

    Returns:
        The trials in order.

    Raises:
        LauncherError: when a trial of a grid, or everything that a sweeper may propose, is wrong: nothing has been
            started then.
    """
    from launcher.hydra_app import hydra_arguments, hydra_running, sweep_config  # Hydra: only when it is used

    checker = Checker()
    arguments = hydra_arguments(overrides, checker.composer)
    try:
        settings = sweep_config(checker.composer, arguments.overrides).hydra
    except LauncherError as error:
        raise LauncherError(
            composition_problems(overrides, checker.composer, job_json=job_json) or error.problems
        ) from None
    directory = Path(str(settings.sweep.dir)).resolve()
    _require_unused(directory)
    is_grid = settings.sweeper._target_ == _GRID
    if is_grid:
        trials = expand_grid(arguments, settings.sweeper.params or {}, checker)
        problems = trial_problems(trials, checker, job_json=job_json)
    else:
        problems = common_problems(arguments, settings, checker, job_json=job_json)
    if has_errors(problems):
        raise LauncherError(problems)
    on_warnings(problems)
    task = SweepTask(
        resets=arguments.resets,
        fixed=frozenset(arguments.overrides),
        run_trial=run_trial,
        job_json=job_json,
        reports_failure=not is_grid,
    )
    passed = [*arguments.overrides, f"hydra.sweep.dir={_quoted(str(directory))}"]
    passed += _presets(settings, arguments.overrides, checker)
    try:
        with hydra_running(checker.composer) as running:
            running.multirun(APP, task, passed)
    except (NoReward, ValueError, RuntimeError) as error:  # what sweepers raise on settings and on failed trials
        if not read_trials(directory):
            fix = "`grpo train --cfg hydra` with the same arguments shows the sweeper's settings"
            raise LauncherError([Problem(code="sweeper", path="hydra/sweeper", message=str(error), fix=fix)]) from error
        if is_grid:
            raise
        _log.warning("the sweeper gave up: %s", str(error).partition("\n")[0])
    return read_trials(directory)


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
        differing = tuple(text.lstrip("+") for text in overrides if text not in self.fixed)
        result = TrialResult(status="failed", message="broke off without a result")
        try:
            result = self._run([*self.resets, *overrides], directory)
        finally:
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
            if self.reports_failure and (problems := reward_problems(checked)):
                raise LauncherError(problems)
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


def _presets(settings: Any, overrides: Sequence[str], checker: Checker) -> list[str]:
    """Overrides for an adaptive sweeper, of settings that neither the command line nor the recipe gives a value."""
    given = {text.lstrip("+").partition("=")[0] for text in overrides}
    choices = settings.runtime.choices
    if (recipe := str(choices.get(RECIPE))) in checker.composer.groups[RECIPE]:
        for layer in checker.composer.layers({RECIPE: recipe}):
            given |= {dotted(path) for path, _ in leaves({"hydra": layer.file.tree.get("hydra") or {}})}
    wanted = _PRESETS.get(str(choices.get("hydra/sweeper")), {})
    return [f"{key}={value}" for key, value in wanted.items() if key not in given]


def _require_unused(directory: Path) -> None:
    if directory.is_dir() and any(directory.iterdir()):
        message = f"{directory} is not empty, and a sweep never writes into another's folder"
        raise LauncherError([Problem(code="sweep-directory", path="hydra.sweep.dir", message=message,
                                     fix="name a folder that does not exist yet")])  # fmt: skip


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
