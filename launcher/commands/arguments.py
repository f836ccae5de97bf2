"""Arguments that several commands take, defined without importing what acts on them: ``--help`` is instant."""

import argparse
from pathlib import Path


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command takes that works on a job: ``options.overrides`` and ``options.job``."""
    parser.add_argument("overrides", nargs="*", metavar="recipe=NAME|group=choice|key=value", help="what to compose")
    parser.add_argument("--job", type=Path, metavar="FILE", help="a job JSON, laid over groups and recipe")
