"""``grpo check``: everything that can fail without a GPU, in one report, and the arithmetic of the run."""

import argparse
import json
from dataclasses import asdict

from launcher.checking import check_job
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
    if options.json:
        report = {
            "valid": checked.valid,
            "problems": [problem.to_json() for problem in checked.problems],
            "plan": asdict(checked.plan) if checked.plan else None,
        }
        print(json.dumps(report))
    else:
        print_problems(checked.problems, as_json=False)
        if checked.plan:
            print_plan(checked.plan)
        elif checked.valid:
            print("The configuration is valid.")
    return 0 if checked.valid else 1


def print_plan(plan: RunPlan) -> None:
    """One line per derived value, with its formula."""
    values = asdict(plan)
    width = max(map(len, plan.formulas))
    for name, formula in plan.formulas.items():
        print(f"{name:{width}}  {values[name]!s:>10}  {formula}")
