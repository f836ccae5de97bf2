"""Sweepers and launchers of third parties, as their packages ship them: hydra-optuna-sweeper, hydra-joblib-launcher."""

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.checking import Checked, check_job
from launcher.commands.train import run_trial as run_trial_of_train
from launcher.schema.problems import LauncherError, Problem, RunFailed
from launcher.sweep import Trial, TrialResult, run_sweep, trial_table

pytestmark = pytest.mark.filterwarnings("ignore")  # of the plugins' own dependencies

Project = Callable[[dict[str, str]], Path]
OPTUNA = ["recipe=demo", "hydra/sweeper=optuna", "hydra.sweep.dir=here"]
JOBLIB = ["recipe=demo", "hydra/launcher=joblib", "hydra.sweep.dir=here"]
RECIPE = """# @package _global_
defaults:
  - demo
  - override /hydra/sweeper: optuna
  - override /hydra/launcher: joblib
  - _self_
hydra:
  sweeper:
    n_trials: 3
    sampler: {seed: 1}
    params:
      training.temperature: interval(0.5,1)
      training.batch_size: choice(64,32)
  launcher: {n_jobs: 1}
"""


def run_trial(checked: Checked, directory: Path) -> TrialResult:
    """Stands for a run whose reward is half the temperature."""
    directory.mkdir(parents=True)
    temperature = checked.resolved.job.training.temperature
    return TrialResult(status="completed", num_steps=1, reward_before=0.25, reward_after=temperature / 2)


def never_run(checked: Checked, directory: Path) -> TrialResult:
    raise AssertionError("a trial started")


def fail(checked: Checked, directory: Path) -> TrialResult:
    raise RunFailed("a server died")


def rewards(trials: list[Trial]) -> list[float]:
    return [trial.result.reward_after for trial in trials if trial.result.reward_after is not None]


def best_value(root: Path) -> str:
    return (root / "here" / "optimization_results.yaml").read_text().split()[-1]


def refusal(*overrides: str) -> list[Problem]:
    with pytest.raises(LauncherError) as raised:
        run_sweep(overrides, run_trial=never_run)
    return list(raised.value.problems)


def test_optuna_maximises_the_validation_reward_and_takes_a_refused_trial_for_a_failed_one(project: Project) -> None:
    root = project({})
    trials = run_sweep([*OPTUNA, "hydra.sweeper.n_trials=4", "hydra.sweeper.sampler.seed=1",
                        "training.temperature=interval(0.5,1)", "training.batch_size=choice(64,30)"],
                       run_trial=run_trial)  # fmt: skip
    assert {trial.result.status for trial in trials} == {"completed", "refused"}
    assert best_value(root) == str(max(rewards(trials)))


def test_optuna_with_nothing_but_refused_trials_ends_with_the_table(project: Project) -> None:
    project({})
    trials = run_sweep([*OPTUNA, "hydra.sweeper.n_trials=2", "training.batch_size=choice(30,31)"], run_trial=never_run)
    assert [trial.result.status for trial in trials] == ["refused", "refused"]


def test_joblib_runs_a_grid_that_was_checked_as_a_whole(project: Project) -> None:
    root = project({})
    problems = refusal(*JOBLIB, "training.batch_size=64,30")
    assert {(p.code, p.path) for p in problems} == {("R08", "training.batch_size"), ("R10", "training.batch_size")}
    assert list(root.iterdir()) == []
    trials = run_sweep([*JOBLIB, "hydra.launcher.n_jobs=1", "training.temperature=0.5,1.0"], run_trial=run_trial)
    assert trial_table(trials).splitlines() == [
        "trial  overrides                 steps  reward before  reward after  status",
        "0      training.temperature=0.5  1      0.250          0.250         completed",
        "1      training.temperature=1.0  1      0.250          0.500         completed",
    ]


def test_trials_that_joblib_runs_in_processes_of_their_own_are_heard_of(project: Project) -> None:
    """All of them refused, so that none needs more than a check."""
    project({})
    trials = run_sweep([*JOBLIB, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=2",
                        "hydra.launcher.n_jobs=2", "training.batch_size=choice(30,31)"],
                       run_trial=run_trial_of_train)  # fmt: skip
    assert [(trial.number, trial.result.status) for trial in trials] == [(0, "refused"), (1, "refused")]


@pytest.mark.parametrize(("direction", "best"), [("", max), ("    direction: minimize\n", min)])
def test_a_recipe_can_name_sweeper_and_launcher(
    project: Project, direction: str, best: Callable[[list[float]], float]
) -> None:
    root = project({"recipes/mine.yaml": RECIPE.replace("    n_trials", f"{direction}    n_trials")})
    assert check_job(["recipe=mine"]).valid, "a single run of it leaves the sweep aside"
    trials = run_sweep(["recipe=mine", "hydra.sweep.dir=here"], run_trial=run_trial)
    assert [trial.result.status for trial in trials] == ["completed"] * 3
    assert best_value(root) == str(best(rewards(trials)))


@pytest.mark.parametrize(
    ("overrides", "codes"),
    [
        (["training.seed=1,2", "training.epochs=0"], ["out-of-range"]),
        (["training.sed=1,2"], ["unknown-key"]),
        (["training.seed=1,2", "training.max_new_tokens=512"], ["R05"]),
        (["training.seed=1,2", "dataset=nowhere"], ["R23"]),
        (["lora=choice(r8,r16)", "backend=automodel", "training.epochs=0"], ["out-of-range"]),
        (["training.seed=1,2", "training.val_at_end=false"], ["no-reward"]),
    ],
)
def test_what_is_wrong_with_every_proposal_is_said_before_the_first(
    project: Project, overrides: list[str], codes: list[str]
) -> None:
    root = project({})
    assert [p.code for p in refusal(*OPTUNA, *overrides)] == codes
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    "varying",
    [
        ["training.batch_size=choice(30,64)"],
        ["training.max_seq_length=choice(32,256)"],
        ["lora=choice(r8,none)", "training.finetuning_type=all_weights"],
        ["training.val_at_end=choice(false,true)"],
    ],
)
def test_a_proposal_that_is_wrong_is_no_reason_to_refuse_the_others(project: Project, varying: list[str]) -> None:
    project({})
    grid = ["hydra/sweeper/sampler=grid", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1"]
    trials = run_sweep([*OPTUNA, *grid, *varying], run_trial=run_trial)
    assert sorted(trial.result.status for trial in trials) == ["completed", "refused"]


@pytest.mark.parametrize("rate", ["0.0", "0.5"])
def test_a_sweeper_that_gives_up_on_failed_trials_leaves_the_table(
    project: Project, rate: str, caplog: pytest.LogCaptureFixture
) -> None:
    project({})
    trials = run_sweep([*OPTUNA, "hydra.sweeper.n_trials=9", "hydra.sweeper.n_jobs=3", "training.seed=choice(1,2)",
                        f"hydra.sweeper.max_failure_rate={rate}"], run_trial=fail)  # fmt: skip
    assert [trial.result.message for trial in trials] == ["a server died"] * 3
    assert "the sweeper gave up: a server died" in caplog.messages


def test_settings_that_the_sweeper_itself_refuses(project: Project) -> None:
    project({})
    problems = refusal(*OPTUNA, "hydra/sweeper/sampler=grid", "training.temperature=interval(0.5,1)")
    assert [(p.path, p.message) for p in problems] == [("hydra/sweeper", "GridSampler only supports discrete "
                                                        "distributions.")]  # fmt: skip
