"""``grpo eval``: rewards of a model on the rows, no training."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from launcher.checking import check_job, has_errors
from launcher.cli import print_problems
from launcher.commands.check import add_job_arguments
from launcher.compile import compile_plan
from launcher.gathering import FactReader
from launcher.resolve import read_config
from launcher.rules import check_rules
from launcher.run_directory import open_run_directory
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import LauncherError, Problem, UsageError

if TYPE_CHECKING:
    from rl.reward_summary import RewardSummary

MOST_ROWS_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo eval``."""
    add_job_arguments(parser)
    parser.epilog = "A run directory instead of overrides evaluates the model that the run exported."
    parser.add_argument("--samples", type=int, default=4, metavar="K", help="responses per distinct row (4)")
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N distinct rows")
    parser.add_argument("--split", choices=["validation", "training"], help="default: validation when there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Evaluate a recipe's model, or the trained model of a run directory."""
    for flag in ("samples", "rows"):
        if (value := getattr(options, flag)) is not None and value < 1:
            raise UsageError(f"--{flag} is {value}; at least 1 is needed")
    job, plan = _job_and_plan(options)
    from rl import entry  # needs the engine's packages, which a machine that only checks lacks

    summary = entry.evaluate(job, plan, num_samples=options.samples, max_rows=options.rows, split=options.split)
    if options.json:
        print(json.dumps(summary.to_json()))
    else:
        _print(summary)
    return 0


def _job_and_plan(options: argparse.Namespace) -> tuple[JobConfig, RunPlan]:
    first = options.overrides[0] if options.overrides else ""
    if "=" not in first and Path(first).is_dir() and first:
        if options.overrides[1:] or options.job:
            raise UsageError("a run directory stands alone: its own config is evaluated")
        return run_job(Path(first))
    checked = check_job(options.overrides, job_json=options.job)
    plan = checked.require_valid()
    print_problems(checked.problems, as_json=False)
    return checked.resolved.job, plan


def run_job(path: Path) -> tuple[JobConfig, RunPlan]:
    """The job of a run directory with the exported model in place of the one it started from.

    Raises:
        LauncherError: it is no run directory, has exported no model, or its files are gone.
    """
    directory = open_run_directory(path)
    if (directory.export / "adapter_config.json").exists():
        raise LauncherError([Problem(
            code="adapter-export", path=str(directory.export), message="this run has exported an adapter, no model",
            fix="merge it (peft: AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()), save model and "
            "tokenizer, and evaluate that: grpo eval recipe=NAME model.name=MERGED",
        )])  # fmt: skip
    if not (directory.export / "config.json").exists():
        raise LauncherError([Problem(
            code="no-export", path=str(directory.export), message="this run has exported no model",
            fix="evaluate a run that has completed (status.json says so)",
        )])  # fmt: skip
    trained = read_config(directory.path / "config.yaml").job
    job = trained.model_copy(update={"model": trained.model.model_copy(update={"name": str(directory.export)})})
    gathered = FactReader().gather(job)
    facts = gathered.facts
    problems = (*check_rules(job, facts), *gathered.problems)
    if has_errors(problems) or facts.num_training_rows is None:
        raise LauncherError(problems)
    plan = compile_plan(
        job, num_training_rows=facts.num_training_rows, num_validation_rows=facts.num_validation_rows or 0
    )
    return job, plan


def _print(summary: "RewardSummary") -> None:
    console = Console(highlight=False)
    console.print(
        f"{summary.num_rows} rows, {summary.num_rollouts} rollouts"
        + (f", {summary.num_failed} failed" if summary.num_failed else "")
    )
    if summary.mean is not None:
        console.print(
            f"reward {summary.mean:.3f} (deviation {summary.deviation:.3f}, "
            f"quartiles {summary.p25:.2f} to {summary.p75:.2f})"
        )
        passes = "  ".join(f"pass@{k} {value:.2f}" for k, value in summary.pass_at_k.items())
        console.print(f"mixed groups {summary.mixed_share:.0%}   {passes}   (a pass is reward >= 1)")
    table = Table("row", "mean", "pass@k", "rewards", "prompt", box=None, header_style="dim")
    for row in summary.rows[:MOST_ROWS_SHOWN]:
        mean = "-" if row.mean is None else f"{row.mean:.2f}"
        passes = " ".join(f"{value:.2f}" for value in row.pass_at_k.values())
        rewards = " ".join("failed" if reward is None else f"{reward:.2f}" for reward in row.rewards)
        table.add_row(str(row.row_index), mean, passes, rewards, row.prompt.replace("\n", " ")[:60])
    console.print(table)
    if len(summary.rows) > MOST_ROWS_SHOWN:
        console.print(f"... and {len(summary.rows) - MOST_ROWS_SHOWN} more rows (--json has all)")
    for reason, count in summary.failures.items():
        console.print(f"failed {count}x: {reason}", style="red", markup=False)
