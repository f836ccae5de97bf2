"""``grpo eval``: rewards of a model on the rows, no training."""

import argparse
import json
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What is asked: a job's model, maybe with an adapter on top of it."""

    job: JobConfig
    plan: RunPlan
    adapter: Path | None = None
    """Folder of an adapter that a run has exported."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo eval``."""
    add_job_arguments(parser)
    parser.epilog = "A run directory instead of overrides evaluates the model or adapter that the run exported."
    parser.add_argument("--samples", type=int, default=4, metavar="K", help="responses per distinct row (4)")
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N distinct rows")
    parser.add_argument("--split", choices=["validation", "training"], help="default: validation when there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Evaluate a recipe's model, or the trained model of a run directory."""
    for flag in ("samples", "rows"):
        if (value := getattr(options, flag)) is not None and value < 1:
            raise UsageError(f"--{flag} is {value}; at least 1 is needed")
    evaluated = _evaluated(options)
    from rl import entry  # needs the engine's packages, which a machine that only checks lacks

    summary = entry.evaluate(
        evaluated.job, evaluated.plan, adapter=evaluated.adapter, num_samples=options.samples, max_rows=options.rows,
        split=options.split,
    )  # fmt: skip
    if options.json:
        adapter = None if evaluated.adapter is None else str(evaluated.adapter)
        print(json.dumps({"model": evaluated.job.model.name, "adapter": adapter, **summary.to_json()}))
    else:
        _print(evaluated, summary)
    return 0


def _evaluated(options: argparse.Namespace) -> Evaluated:
    first = options.overrides[0] if options.overrides else ""
    if "=" not in first and Path(first).is_dir() and first:
        if options.overrides[1:] or options.job:
            raise UsageError("a run directory stands alone: its own config is evaluated")
        return run_job(Path(first))
    checked = check_job(options.overrides, job_json=options.job)
    plan = checked.require_valid()
    print_problems(checked.problems, as_json=False)
    return Evaluated(job=checked.resolved.job, plan=plan)


def run_job(path: Path) -> Evaluated:
    """The job of a run directory with what it exported: its model in place of the one it started from, or its adapter
    on top of that one.

    Raises:
        LauncherError: it is no run directory, has exported no model, or its files are gone.
    """
    directory = open_run_directory(path)
    is_adapter = (directory.export / "adapter_config.json").exists()
    if not is_adapter and not (directory.export / "config.json").exists():
        raise LauncherError([Problem(
            code="no-export", path=str(directory.export), message="this run has exported no model and no adapter",
            fix="evaluate a run that has completed (status.json says so)",
        )])  # fmt: skip
    job = read_config(directory.path / "config.yaml").job
    if not is_adapter:
        job = job.model_copy(update={"model": job.model.model_copy(update={"name": str(directory.export)})})
    gathered = FactReader().gather(job)
    facts = gathered.facts
    problems = (*check_rules(job, facts), *gathered.problems)
    if has_errors(problems) or facts.num_training_rows is None:
        raise LauncherError(problems)
    plan = compile_plan(
        job, num_training_rows=facts.num_training_rows, num_validation_rows=facts.num_validation_rows or 0
    )
    return Evaluated(job=job, plan=plan, adapter=directory.export if is_adapter else None)


def _print(evaluated: Evaluated, summary: "RewardSummary") -> None:
    console = Console(highlight=False)
    lora = evaluated.plan.lora
    on_top = (
        ""
        if evaluated.adapter is None or lora is None
        else (f", with the adapter {evaluated.adapter} (rank {lora.rank}, alpha {lora.alpha})")
    )
    console.print(f"model {evaluated.job.model.name}{on_top}", markup=False, soft_wrap=True)
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
