"""``grpo check``: everything that can fail without a GPU, in one report, and the arithmetic of the run."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from launcher.checking import check_job, has_errors
from launcher.cli import print_problems
from launcher.commands.arguments import add_job_arguments as add_job_arguments
from launcher.schema.plan import RunPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo check``."""
    add_job_arguments(parser)
    parser.add_argument("--config-only", action="store_true", help="look at no file that the job refers to")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Check one job."""
    checked = check_job(options.overrides, job_json=options.job, config_only=options.config_only)
    problems = checked.problems
    differing: list[dict[str, Any]] = []
    table = ""
    if checked.resolved.job.engine.name == "nemo_rl" and not options.config_only:
        from launcher import nemo_rl  # reads rl, which no other check does

        problems += nemo_rl.checkout_problems(checked.resolved.job.engine.root)
        found = nemo_rl.differences_of(checked)
        differing, table = [difference.to_json() for difference in found], nemo_rl.difference_table(found)
    valid = not has_errors(problems)
    if options.json:
        report = {
            "valid": valid,
            "problems": [problem.to_json() for problem in problems],
            "plan": asdict(checked.plan) if checked.plan else None,
            "differences": differing,
        }
        print(json.dumps(report))
    else:
        print_problems(problems, as_json=False)
        if checked.plan:
            print_plan(checked.plan)
        elif valid:
            print("The configuration is valid.")
        if checked.plan and table:
            print(table)
    return 0 if valid else 1


def print_plan(plan: RunPlan) -> None:
    """One line per derived value, with its formula."""
    values = asdict(plan)
    width = max(map(len, plan.formulas))
    for name, formula in plan.formulas.items():
        print(f"{name:{width}}  {values[name]!s:>10}  {formula}")
