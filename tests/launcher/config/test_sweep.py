"""Sweeps: Hydra's sweepers over our trials, every trial of a grid checked before the first starts."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.checking import Checked, Checker
from launcher.cli import main
from launcher.commands.train import run_trial as run_trial_of_train
from launcher.hydra_app import hydra_arguments
from launcher.schema.problems import LauncherError, RunFailed
from launcher.sweep import NoReward, SweepTask, TrialResult, read_trials, run_sweep, trial_table
from launcher.sweep_checks import expand_grid, trial_problems

Project = Callable[[dict[str, str]], Path]


def run_trial(checked: Checked, directory: Path) -> TrialResult:
    """Stands for a run whose reward is half the temperature, which breaks at seed 13 and is interrupted at 99."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(checked.resolved.to_yaml())
    training = checked.resolved.job.training
    if training.seed == 13:
        raise RunFailed("a server died")
    if training.seed == 99:
        raise KeyboardInterrupt
    return TrialResult(status="completed", num_steps=1, reward_before=0.25, reward_after=training.temperature / 2)


def test_a_grid_runs_every_trial_in_a_directory_of_its_own(project: Project) -> None:
    root = project({})
    trials = run_sweep(["recipe=demo", "training.temperature=0.5,1.0", "training.learning_rate=1e-5,2e-5",
                        "training.max_steps=1", "hydra.sweep.dir=here"], run_trial=run_trial)  # fmt: skip
    assert [trial.directory for trial in trials] == [root / "here" / str(n) for n in range(4)]
    assert all((trial.directory / "config.yaml").is_file() for trial in trials)
    assert trial_table(trials).splitlines() == [
        "trial  overrides                                              steps  reward before  reward after  status",
        "0      training.temperature=0.5 training.learning_rate=1e-05  1      0.250          0.250         completed",
        "1      training.temperature=0.5 training.learning_rate=2e-05  1      0.250          0.250         completed",
        "2      training.temperature=1.0 training.learning_rate=1e-05  1      0.250          0.500         completed",
        "3      training.temperature=1.0 training.learning_rate=2e-05  1      0.250          0.500         completed",
    ]


def test_one_wrong_trial_of_a_grid_and_nothing_starts(project: Project) -> None:
    root = project({})
    with pytest.raises(LauncherError) as raised:
        run_sweep(["recipe=demo", "training.batch_size=64,48,30", "backend=dtensor"], run_trial=run_trial)
    assert [(p.code, p.path) for p in raised.value.problems] == [("R08", "training.batch_size"),
                                                                  ("R10", "training.batch_size")]  # fmt: skip
    assert "(trial 2: training.batch_size=30)" in raised.value.problems[0].message
    assert list(root.iterdir()) == []


def test_a_problem_of_all_trials_is_reported_once(project: Project) -> None:
    project({})
    with pytest.raises(LauncherError) as raised:
        run_sweep(["recipe=demo", "training.seed=1,2,3", "training.max_new_tokens=512"], run_trial=run_trial)
    assert ["trial" in p.message for p in raised.value.problems] == [False]


def test_a_failed_trial_does_not_end_a_grid(project: Project) -> None:
    project({})
    trials = run_sweep(["recipe=demo", "training.seed=12,13,14"], run_trial=run_trial)
    assert [trial.result.status for trial in trials] == ["completed", "failed", "completed"]
    assert "failed: a server died" in trial_table(trials)


def test_a_trial_that_breaks_off_is_in_the_table(project: Project) -> None:
    root = project({})
    with pytest.raises(KeyboardInterrupt):
        run_sweep(["recipe=demo", "training.seed=12,99,14", "hydra.sweep.dir=here"], run_trial=run_trial)
    statuses = [(trial.number, trial.result.status, trial.result.message) for trial in read_trials(root / "here")]
    assert statuses == [(0, "completed", ""), (1, "failed", "broke off without a result")]


@pytest.mark.parametrize(
    ("sweep", "values"),
    [
        ("training.seed=range(1,4)", ["training.seed=1", "training.seed=2", "training.seed=3"]),
        ("training.seed=choice(1,5)", ["training.seed=1", "training.seed=5"]),
        ("lora=glob(r*)", ["lora=r16", "lora=r64", "lora=r8"]),
        ("training.lora.rank=4,8", ["++training.lora.rank=4", "++training.lora.rank=8"]),
        ("model=hf://a/b,hf://c/d", [r"model.name=hf\://a/b", r"model.name=hf\://c/d"]),
    ],
)
def test_hydras_ways_to_give_several_values(sweep: str, values: list[str]) -> None:
    checker = Checker()
    trials = expand_grid(hydra_arguments(["recipe=demo", sweep], checker.composer), {}, checker)
    assert trials == [["recipe=demo", value] for value in values]


def test_a_recipe_can_name_the_sweep(project: Project) -> None:
    project({"recipes/mine.yaml": "# @package _global_\ndefaults:\n  - demo\n  - _self_\n"
             "hydra:\n  sweeper:\n    params:\n      training.temperature: 0.5,1.0\n"})  # fmt: skip
    assert len(run_sweep(["recipe=mine"], run_trial=run_trial)) == 2


def test_a_used_directory_is_refused(project: Project) -> None:
    project({"here/file": ""})
    with pytest.raises(LauncherError, match="not empty"):
        run_sweep(["recipe=demo", "training.seed=1,2", "hydra.sweep.dir=here"], run_trial=run_trial)


@pytest.mark.parametrize(
    ("sweep", "path", "words"),
    [
        ("training.seed=range(0,5,0)", "training.seed", "range(0,5,0) has no value"),
        ("training.temperature=range(0.5,1,-0.1)", "training.temperature", "has no value"),
        ("lora=glob(x*)", "lora", "glob(x*) has no value"),
        ("training.seed=glob(*)", "training.seed", "glob(*) has no value"),
        ("training.seed=range(0,1000000000)", "hydra/sweeper", "more than 10,000 trials"),
    ],
)
def test_a_sweep_of_no_trial_or_of_too_many(project: Project, sweep: str, path: str, words: str) -> None:
    root = project({})
    with pytest.raises(LauncherError) as raised:
        run_sweep(["recipe=demo", sweep], run_trial=run_trial)
    assert [(p.code, p.path) for p in raised.value.problems] == [("bad-sweep", path)]
    assert words in raised.value.problems[0].message
    assert list(root.iterdir()) == []


def test_an_open_range_needs_an_adaptive_sweeper(project: Project) -> None:
    project({})
    with pytest.raises(LauncherError) as raised:
        run_sweep(["recipe=demo", "training.temperature=interval(0.5,1)"], run_trial=run_trial)
    assert "hydra/sweeper=optuna" in raised.value.problems[0].fix


@pytest.mark.parametrize(
    ("override", "path", "fix"),
    [
        ("hydra/sweeper=basik", "hydra/sweeper", "did you mean basic?"),
        (
            "hydra/launcher=slurm",
            "hydra/launcher",
            "install the package that provides it, such as hydra-slurm-launcher",
        ),
    ],
)
def test_a_plugin_that_is_not_there(project: Project, override: str, path: str, fix: str) -> None:
    root = project({})
    with pytest.raises(LauncherError) as raised:
        run_sweep(["recipe=demo", "training.seed=1,2", override], run_trial=run_trial)
    assert [(p.code, p.path, p.fix) for p in raised.value.problems] == [("unknown-choice", path, fix)]
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "check"])
def test_settings_of_hydra_are_refused_where_they_have_no_effect(
    project: Project, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project({})
    assert main([command, "recipe=demo", "hydra.run.dir=there"]) == 1
    assert "has an effect on sweeps only" in capsys.readouterr().err
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(("recipe", "fix"), [("demmo", "did you mean demo?"), ("0", "choose one of dapo_one_gpu, ")])
def test_an_unknown_recipe_of_a_sweep_gets_our_own_report(project: Project, recipe: str, fix: str) -> None:
    project({})
    with pytest.raises(LauncherError) as raised:
        run_sweep([f"recipe={recipe}", "training.seed=1,2"], run_trial=run_trial)
    assert [p.fix.startswith(fix) for p in raised.value.problems] == [True]


def test_a_sweep_over_a_job_json(project: Project, tmp_path: Path) -> None:
    file = project({}) / "job.json"
    file.write_text(json.dumps({"training": {"type": "grpo", "top_k": 50}}))
    trials = run_sweep(["recipe=demo", "training.seed=1,2"], run_trial=run_trial, job_json=file)
    assert all("top_k: 50" in (trial.directory / "config.yaml").read_text() for trial in trials)


def test_cfg_prints_what_hydra_composes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "recipe=demo", "training.seed=5", "--cfg", "job", "--package", "training"]) == 0
    shown = capsys.readouterr().out
    assert "policy_backend: dtensor" in shown
    assert "seed: 5" in shown
    assert "temperature: 1.0" in shown, "defaults of the schema are part of it"


def test_info_prints_the_defaults_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "recipe=demo", "--info", "defaults"]) == 0
    said = capsys.readouterr()
    assert "recipe/demo" in said.out + said.err


def test_a_refused_sweep_leaves_nothing_behind(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    root = project({})
    assert main(["train", "-m", "recipe=demo", "training.seed=1,2", "training.epochs=0"]) == 1
    assert list(root.iterdir()) == []


def test_a_trial_can_be_sent_to_another_process() -> None:
    task = SweepTask(reports_failure=True, resets=(), fixed=frozenset(), run_trial=run_trial_of_train, job_json=None)
    assert pickle.loads(pickle.dumps(task)) == task
    assert str(pickle.loads(pickle.dumps(NoReward("none")))) == "none"


def test_trial_problems_of_a_hundred_trials_share_files_and_compositions() -> None:
    checker = Checker()
    trials = [["recipe=demo", f"training.seed={n}"] for n in range(100)]
    assert trial_problems(trials, checker) == []
