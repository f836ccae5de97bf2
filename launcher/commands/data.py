"""``grpo data check``: every row of a dataset, before a job costs a start."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from launcher.cli import print_problems
from launcher.dataset import DatasetFiles, RowReport, check_rows, find_dataset
from launcher.environment.package import inspect_package, reference_source, row_expectations
from launcher.references import resolve_reference
from launcher.row_faults import RowExpectations
from launcher.schema.problems import LauncherError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo data``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="check")
    check = actions.add_parser("check", help="check every row; a folder's training.jsonl and validation.jsonl")
    check.add_argument("dataset", metavar="PATH", help="a file, a folder, a URL or a FileSet")
    check.add_argument("--env", metavar="DIR", help="the environment package the rows are for (or its FileSet)")
    check.add_argument(
        "--fix", type=Path, metavar="OUT", help="write a copy with mechanical faults corrected, check that"
    )
    check.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Check, or correct and check, a dataset."""
    expected = _expectations(options.env) if options.env else None
    dataset = find_dataset(resolve_reference("dataset", options.dataset).local_path())
    corrections: dict[str, int] = {}
    if options.fix:
        from launcher.row_repair import repair_dataset

        corrections = dict(repair_dataset(dataset, options.fix, expected=expected))
        dataset = find_dataset(options.fix)
    reports = _reports(dataset, expected)
    problems = [problem for report in reports for problem in report.problems]
    is_valid = all(problem.severity == "warning" for problem in problems)
    if options.json:
        answer: dict[str, Any] = {"valid": is_valid, "files": [report.to_json() for report in reports]}
        answer |= {"corrections": corrections, "problems": [problem.to_json() for problem in problems]}
        print(json.dumps(answer))
        return 0 if is_valid else 1
    print_problems(problems, as_json=False)
    sys.stderr.flush()
    for name, count in sorted(corrections.items()):
        print(f"corrected: {name}: {count}")
    for report in reports:
        print(_text(report))
    return 0 if is_valid else 1


def _expectations(environment: str) -> RowExpectations:
    """What the package demands; a package that cannot be read is the first thing to correct."""
    inspection = inspect_package(reference_source(resolve_reference("environment", environment)))
    if inspection.package is None or not inspection.package.agents:
        raise LauncherError(inspection.problems)
    return row_expectations(inspection.package)


def _reports(dataset: DatasetFiles, expected: RowExpectations | None) -> list[RowReport]:
    reports = [check_rows(dataset.training, expected=expected)]
    if dataset.validation is not None:
        reports.append(check_rows(dataset.validation, expected=expected, find_repeated=False))
    return reports


def _text(report: RowReport) -> str:
    lengths = report.prompt_characters
    agents = ", ".join(f"{name} {count:,}" for name, count in report.agents.items()) or "none"
    share = report.num_rows_with_tools / report.num_rows if report.num_rows else 0.0
    return (
        f"{report.path}: {report.num_rows:,} rows, {report.num_bad_rows:,} bad\n"
        f"  agents: {agents}; with tools: {share:.0%}\n"
        f"  prompt characters: p50 {lengths.p50:,}, p99 {lengths.p99:,}, max {lengths.max:,}"
    )
