"""What ``grpo train`` does for Hydra's flags: ``-m`` sweeps, ``--cfg`` and ``--info`` print and stop."""

import argparse
import json
import sys
from dataclasses import asdict

from launcher.compose import Composer
from launcher.hydra_app import show_config, show_info
from launcher.paths import config_roots
from launcher.schema.problems import UsageError
from launcher.sweep import RunTrial, Trial, run_sweep, trial_table


def hydra_flags_given(options: argparse.Namespace) -> bool:
    """Whether one of the flags takes over from a plain run."""
    return bool(options.multirun or options.cfg or options.info)


def run_hydra_flags(options: argparse.Namespace, run_trial: RunTrial) -> int:
    """Do what the flags ask for.

    Args:
        options: parsed by ``add_job_arguments`` and ``add_hydra_arguments``.
        run_trial: runs one trial of a sweep.

    Returns:
        0, or 3 when a trial failed.
    """
    if options.job is not None and not options.multirun:
        raise UsageError("--cfg and --info show groups and recipes; `grpo explain KEY --job FILE` shows a job JSON")
    if options.cfg:
        show_config(
            options.overrides,
            part=options.cfg,
            package=options.package,
            resolve=options.resolve,
            composer=Composer(config_roots()),
        )
        return 0
    if options.info:
        show_info(options.overrides, topic=options.info, composer=Composer(config_roots()))
        return 0
    trials = run_sweep(options.overrides, run_trial=run_trial, job_json=options.job)
    _print_trials(trials, as_json=options.json)
    return 3 if any(trial.result.status == "failed" for trial in trials) else 0


def _print_trials(trials: list[Trial], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(trial) for trial in trials], default=str))
        return
    print(trial_table(trials))
    best = max((t for t in trials if t.result.reward_after is not None), key=_reward_after, default=None)
    if best is not None:
        print(f"best: trial {best.number}, {best.directory}", file=sys.stderr)


def _reward_after(trial: Trial) -> float:
    assert trial.result.reward_after is not None
    return trial.result.reward_after
