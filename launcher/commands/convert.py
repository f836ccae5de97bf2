"""``pi-to-gym-conversion`` and ``grpo env convert``: a hub's ``verifiers`` environment becomes a package and rows.

``--validate-only`` checks a package of any format instead.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli import print_problems, run_reporting
from launcher.environment.package import inspect_package
from launcher.environment.source import FolderSource
from launcher.environment.wheels import ARCHES
from launcher.schema.filesets import DEFAULT_WORKSPACE
from launcher.schema.problems import LauncherError, Problem, UsageError

if TYPE_CHECKING:
    from launcher.environment.convert import Conversion

HUB_INDEX = "https://hub.primeintellect.ai/{owner}/simple/"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``pi-to-gym-conversion``.

    Args:
        argv: arguments without the program name; ``sys.argv`` when None.

    Returns:
        0 when done (or the package is valid), 1 for problems in what was given, 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(prog="pi-to-gym-conversion", description="convert or check an environment package")
    parser.add_argument("--validate-only", type=Path, metavar="DIR", help="only check this package, of any format")
    add_arguments(parser)
    try:
        options = parser.parse_args(argv)
    except SystemExit as stop:  # argparse exits by itself; a caller in this process wants a status
        return int(stop.code or 0)
    if options.validate_only is not None:
        return run_reporting(lambda: _validate(options.validate_only), as_json=False)
    return run_reporting(lambda: run(options), as_json=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the conversion."""
    hub = parser.add_argument_group("environment")
    hub.add_argument("--hub-id", metavar="OWNER/NAME", help="the hub's package (required)")
    hub.add_argument("--hub-version", metavar="V", help="its version; unset takes what the index offers now")
    hub.add_argument("--index-url", metavar="URL", help="simple index that has it (the hub's)")
    hub.add_argument("--vf-env-id", metavar="ID", help="for verifiers.load_environment() (NAME)")
    hub.add_argument("--vf-env-args", default="{}", metavar="JSON", help="its keyword arguments")
    hub.add_argument("--verifiers-version", metavar="V", help="release of verifiers (what NeMo Gym was written for)")
    package = parser.add_argument_group("package")
    package.add_argument("--out-dir", type=Path, metavar="DIR", help="folder of the package (required)")
    package.add_argument("--environment-name", metavar="NAME", help="name of the package and its FileSet (NAME)")
    package.add_argument(
        "--arch", action="append", choices=ARCHES, help="machines that train (x86_64); give it twice for both"
    )
    package.add_argument("--wheels-dir", type=Path, metavar="DIR", help="take this closure instead of vendoring one")
    rows = parser.add_argument_group("rows")
    rows.add_argument("--dataset-dir", type=Path, metavar="DIR", help="folder of the rows (required)")
    rows.add_argument("--dataset-size", type=int, default=-1, metavar="N", help="number of rows (-1: all)")
    rows.add_argument("--dataset-seed", type=int, metavar="N", help="shuffle with this seed; unset keeps the order")
    rows.add_argument("--validation-fraction", type=float, default=0.0, metavar="F", help="share held out (0)")
    upload = parser.add_argument_group("upload")
    upload.add_argument("--upload", action="store_true", help="create both FileSets and upload them")
    upload.add_argument("--workspace", default=DEFAULT_WORKSPACE, metavar="W", help=f"theirs ({DEFAULT_WORKSPACE})")
    upload.add_argument("--dataset-name", metavar="NAME", help="FileSet of the rows (the package's name + -dataset)")


def run(options: argparse.Namespace) -> int:
    """Convert, upload when asked to, and print one JSON object."""
    from gym_bridge.versions import DEFAULT_GYM_VERSION, gym_version
    from launcher.environment.convert import convert_environment
    from launcher.environment.scaffold import first_training

    gym = gym_version(DEFAULT_GYM_VERSION)
    conversion = _conversion(options, verifiers=gym.verifiers)
    done = convert_environment(conversion, gym=gym, on_progress=lambda text: print(text, file=sys.stderr))
    print_problems(done.warnings, as_json=False)
    answer: dict[str, Any] = {
        "valid": True,
        "format": "adapter-wheels-v1",
        "name": conversion.name,
        "hub_id": conversion.hub_id,
        "hub_version": done.hub_version,
        "out_dir": str(conversion.out_dir),
        "dataset_dir": str(conversion.dataset_dir),
        "num_training_rows": done.num_training_rows,
        "num_validation_rows": done.num_validation_rows,
        "num_wheels": done.num_wheels,
    }
    if options.upload:
        answer |= _upload(conversion, options)
    print(json.dumps(answer))
    command = first_training(
        conversion.name, format="adapter-wheels-v1", package=conversion.out_dir, dataset=conversion.dataset_dir
    )
    print(f"next: {command}", file=sys.stderr)
    return 0


def _conversion(options: argparse.Namespace, *, verifiers: str) -> "Conversion":
    """The flags as one checked value."""
    from launcher.environment.convert import Conversion

    required = {"--hub-id": options.hub_id, "--out-dir": options.out_dir, "--dataset-dir": options.dataset_dir}
    if missing := [flag for flag, value in required.items() if value is None]:
        raise UsageError(f"a conversion needs {', '.join(missing)}")
    if not _HUB_ID.fullmatch(options.hub_id):
        raise UsageError(f"--hub-id is {options.hub_id!r}; it is OWNER/NAME, such as primeintellect/ascii-tree")
    if not 0 <= options.validation_fraction < 1:
        raise UsageError(f"--validation-fraction is {options.validation_fraction}; allowed: 0 to below 1")
    if options.dataset_size != -1 and options.dataset_size < 1:
        raise UsageError(f"--dataset-size is {options.dataset_size}; allowed: 1 or more, or -1 for all")
    owner, name = options.hub_id.split("/")
    return Conversion(
        hub_id=options.hub_id,
        hub_version=options.hub_version,
        vf_env_id=options.vf_env_id or name,
        vf_env_args=_environment_arguments(options.vf_env_args),
        index_url=options.index_url or HUB_INDEX.format(owner=owner),
        verifiers_version=options.verifiers_version or verifiers,
        arches=tuple(dict.fromkeys(options.arch or ["x86_64"])),
        wheels_dir=options.wheels_dir,
        name=options.environment_name or name,
        dataset_size=options.dataset_size,
        dataset_seed=options.dataset_seed,
        validation_fraction=options.validation_fraction,
        out_dir=options.out_dir,
        dataset_dir=options.dataset_dir,
    )


def _environment_arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--vf-env-args is no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise UsageError(f"--vf-env-args is {text}; it is a JSON object of keyword arguments")
    return arguments


def _upload(conversion: "Conversion", options: argparse.Namespace) -> dict[str, str]:
    """Both FileSets hold exactly what was converted afterwards."""
    from launcher.filesets import FileSetStore

    store = FileSetStore()
    dataset = options.dataset_name or f"{conversion.name}-dataset"
    store.create(conversion.name, workspace=options.workspace, purpose="environment", exist_ok=True)
    store.create(dataset, workspace=options.workspace, purpose="dataset", exist_ok=True)
    store.upload(conversion.out_dir, conversion.name, workspace=options.workspace, replace=True)
    store.upload(conversion.dataset_dir, dataset, workspace=options.workspace, replace=True)
    return {"environment": f"{options.workspace}/{conversion.name}", "dataset": f"{options.workspace}/{dataset}"}


def _validate(folder: Path) -> int:
    """Print the published line: nothing else may stand on stdout."""
    from launcher.commands.env import validity

    inspection = inspect_package(FolderSource(folder), prove=True)
    if not inspection.is_valid:
        raise LauncherError(inspection.problems)
    print(json.dumps(validity(inspection)))
    for problem in inspection.problems:
        print(_line(problem), file=sys.stderr)
    return 0


def _line(problem: Problem) -> str:
    return f"{problem.severity}: {problem.path}: {problem.message}. {problem.fix}"
