"""``grpo env``: validate, scaffold, vendor and convert environment packages."""

import argparse
import json
import sys
from pathlib import Path

from launcher.cli import print_problems
from launcher.commands import convert
from launcher.environment.package import Inspection, inspect_package, load_package, reference_source
from launcher.environment.wheels import ARCHES, Target
from launcher.references import resolve_reference
from launcher.schema.problems import UsageError

GLIBC_MINORS = (17, 28, *range(31, 41))
"""Versions 2.x of glibc that uv resolves for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo env``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="validate | new | vendor | convert")
    validate = actions.add_parser("validate", help="check a package; starts nothing and runs none of its code")
    validate.add_argument("package", metavar="DIR", help="a folder; also a FileSet, which is looked at where it is")
    _add_target(validate, required=False)
    validate.add_argument("--offline", action="store_true", help="the package must start without a network")
    vendor = actions.add_parser("vendor", help="clear wheels/ and rebuild it as one closure for a target")
    vendor.add_argument("folder", type=Path, metavar="DIR")
    _add_target(vendor, required=True)
    new = actions.add_parser("new", help="write a package that validates, with rows beside it")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--format", required=True, choices=("native-v1", "wheels-v1", "adapter-wheels-v1"))
    new.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="folder to write it into (here)")
    converted = actions.add_parser("convert", help="make a package and rows of a hub's verifiers environment")
    convert.add_arguments(converted)
    for action in (validate, vendor, new, converted):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run one action of ``grpo env``."""
    match options.action:
        case "validate":
            return _validate(options)
        case "vendor":
            return _vendor(options)
        case "convert":
            return convert.run(options)
        case _:
            return _new(options)


def validity(inspection: Inspection) -> dict[str, object]:
    """The answer that the published validator prints for a valid package."""
    assert inspection.package is not None
    manifest = inspection.package.manifest
    return {"valid": True, "format": manifest.format, "name": manifest.metadata.name}


def _validate(options: argparse.Namespace) -> int:
    target = _target(options) if options.arch else None
    source = reference_source(resolve_reference("environment", options.package))
    inspection = inspect_package(source, target=target, offline=options.offline, prove=True)
    if not inspection.is_valid:
        print_problems(inspection.problems, as_json=options.json)
        return 1
    if options.json:
        warnings = [problem.to_json() for problem in inspection.problems]
        print(json.dumps({**validity(inspection), "network": inspection.network, "problems": warnings}))
        return 0
    print_problems(inspection.problems, as_json=False)
    print(json.dumps(validity(inspection)))
    print(f"network: {inspection.network}", file=sys.stderr)
    return 0


def _vendor(options: argparse.Namespace) -> int:
    from gym_bridge.versions import DEFAULT_GYM_VERSION, gym_version
    from launcher.environment.vendor import vendor_closure

    report = vendor_closure(
        load_package(options.folder),
        _target(options),
        gym=gym_version(DEFAULT_GYM_VERSION),
        on_progress=lambda text: print(text, file=sys.stderr),
    )
    if options.json:
        print(json.dumps(report.to_json()))
        return 0
    print(f"{report.num_wheels} wheels, {report.num_bytes / 1e6:.0f} MB, for {_target(options)}")
    for what, names in (("built from source", report.built), ("added", report.added), ("removed", report.removed)):
        if names:
            print(f"{what}: {len(names)}: {', '.join(names)}")
    return 0


def _new(options: argparse.Namespace) -> int:
    from launcher.environment.scaffold import scaffold_package

    scaffold = scaffold_package(options.name, format=options.format, into=options.into)
    if options.json:
        print(json.dumps(scaffold.to_json()))
        return 0
    print(f"package: {scaffold.package}\nrows:    {scaffold.dataset}")
    for step in scaffold.next_steps:
        print(f"next: {step}")
    return 0


def _add_target(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--arch", choices=ARCHES, required=required, help="architecture of the machines that train")
    parser.add_argument("--glibc", default="2.39", metavar="2.N", help="their glibc (2.39, the training image's)")


def _target(options: argparse.Namespace) -> Target:
    major, _, minor = options.glibc.partition(".")
    if major != "2" or not minor.isdecimal() or int(minor) not in GLIBC_MINORS:
        allowed = ", ".join(f"2.{known}" for known in GLIBC_MINORS)
        raise UsageError(f"--glibc is {options.glibc!r}; allowed: {allowed}")
    return Target(arch=options.arch, glibc=(2, int(minor)))
