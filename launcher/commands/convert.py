"""``pi-to-gym-conversion``: the published converter command. ``--validate-only`` checks a package of any format."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.cli import run_reporting
from launcher.commands.env import validity
from launcher.environment.package import inspect_package
from launcher.environment.source import FolderSource
from launcher.schema.problems import LauncherError, Problem


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``pi-to-gym-conversion``.

    Args:
        argv: arguments without the program name; ``sys.argv`` when None.

    Returns:
        0 for a valid package, 1 for one that is not, 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(prog="pi-to-gym-conversion", description="check an environment package")
    parser.add_argument("--validate-only", type=Path, required=True, metavar="DIR", help="package of any format")
    try:
        options = parser.parse_args(argv)
    except SystemExit as stop:  # argparse exits by itself; a caller in this process wants a status
        return int(stop.code or 0)
    return run_reporting(lambda: _validate(options.validate_only), as_json=False)


def _validate(folder: Path) -> int:
    """Print the published line: nothing else may stand on stdout."""
    inspection = inspect_package(FolderSource(folder), prove=True)
    if not inspection.is_valid:
        raise LauncherError(inspection.problems)
    print(json.dumps(validity(inspection)))
    for problem in inspection.problems:
        print(_line(problem), file=sys.stderr)
    return 0


def _line(problem: Problem) -> str:
    return f"{problem.severity}: {problem.path}: {problem.message}. {problem.fix}"
