"""``grpo train``: compose, check and run a job, or with -m a sweep of jobs."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launcher.checking import Checked, check_job
from launcher.cli import print_problems
from launcher.commands.check import add_job_arguments
from launcher.run_directory import RunDirectory, create_run_directory, make_run_directory
from launcher.schema.problems import LauncherError, Problem, UsageError
from launcher.sweep import TrialResult, run_sweep, trial_table
from launcher.sweep_checks import composition_problems

INFO_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo train``; those of Hydra keep Hydra's names."""
    add_job_arguments(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep: key=a,b runs a job for each value")
    parser.add_argument("-c", "--cfg", choices=["job", "hydra", "all"], help="print the composed config, run nothing")
    parser.add_argument("-p", "--package", metavar="KEY", help="with --cfg: only this part")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: with interpolations resolved")
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=INFO_TOPICS, help="print what Hydra knows")


def run(options: argparse.Namespace) -> int:
    """Train one job, run a sweep, or show what Hydra composes."""
    if options.cfg or options.info:
        return _show(options)
    if options.multirun:
        trials = run_sweep(options.overrides, run_trial=run_trial, job_json=options.job, on_warnings=_show_warnings)
        print(trial_table(trials))
        return 0 if all(trial.result.status == "completed" for trial in trials) else 3
    checked = check_job(options.overrides, job_json=options.job)
    plan = checked.require_valid()
    print_problems(checked.problems, as_json=False)
    directory = create_run_directory(Path(checked.resolved.job.engine.runs_dir), plan.run_name)
    print(train(checked, directory))
    return 0


def run_trial(checked: Checked, path: Path) -> TrialResult:
    """Run one trial of a sweep in the directory that the sweep gives it."""
    directory = make_run_directory(path)
    train(checked, directory)
    metrics = directory.read_metrics()
    validated = [line for line in metrics if "val_accuracy" in line]
    before = validated[0]["val_accuracy"] if validated and validated[0]["step"] == 0 else None
    after = validated[-1]["val_accuracy"] if validated and validated[-1]["step"] > 0 else None
    return TrialResult(
        status="completed",
        num_steps=max((int(line["step"]) for line in metrics), default=0),
        reward_before=before,
        reward_after=after,
    )


def train(checked: Checked, directory: RunDirectory) -> str:
    """Write down what is run, then run it; gives a summary for a person."""
    plan = checked.require_valid()
    directory.write_text("config.yaml", checked.resolved.to_yaml())
    directory.write_text("origins.json", checked.resolved.origins_json(plan))
    directory.write_json("plan.json", asdict(plan))
    print(f"run directory: {directory.path}", file=sys.stderr)
    from rl import entry  # needs the engine's packages, which a machine that only checks lacks

    return entry.train(checked.resolved.job, plan, directory)


def _show_warnings(warnings: Sequence[Problem]) -> None:
    print_problems(warnings, as_json=False)


def _show(options: argparse.Namespace) -> int:
    from launcher.compose import Composer
    from launcher.hydra_app import show_config, show_info
    from launcher.paths import config_roots

    if options.job:
        raise UsageError("--cfg and --info show what Hydra composes; a job JSON is no part of it (grpo explain is)")
    composer = Composer(config_roots())
    try:
        if options.cfg:
            show_config(
                options.overrides, part=options.cfg, package=options.package, resolve=options.resolve, composer=composer
            )
        else:
            show_info(options.overrides, topic=options.info, composer=composer)
    except LauncherError as error:
        raise LauncherError(composition_problems(options.overrides, composer) or error.problems) from None
    return 0
