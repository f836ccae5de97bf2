"""Arguments that several commands take, defined without importing what acts on them: ``--help`` is instant."""

import argparse
from pathlib import Path

_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command takes that works on a job: ``options.overrides`` and ``options.job``."""
    parser.add_argument("overrides", nargs="*", metavar="recipe=NAME|group=choice|key=value", help="what to compose")
    parser.add_argument("--job", type=Path, metavar="FILE", help="a job JSON, laid over groups and recipe")


def add_hydra_arguments(parser: argparse.ArgumentParser) -> None:
    """Hydra's flags, as ``hydra.main`` names them; ``launcher.commands.hydra_flags`` acts on them."""
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep: key=a,b key=range(1,4) key=choice(a,b)")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"), help="print what Hydra composes, and stop")
    parser.add_argument("-p", "--package", metavar="KEY", help="with --cfg: only this part of it")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: write values in place of ${...}")
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=_INFO, help="print what Hydra knows, and stop")
