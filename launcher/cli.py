"""The ``grpo`` command: finds the subcommand, imports only that, and turns exceptions into exit statuses.

0 fine · 1 problems found in what the user gave · 2 wrong usage · 3 the run failed · 130 interrupted.
A subcommand is a module with ``SUMMARY: str``, ``add_arguments(parser)`` and ``run(arguments) -> int``; it may raise
``LauncherError``, ``UsageError`` and ``RunFailed``. Results go to stdout (one JSON object with --json), logs to stderr.
"""

import argparse
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence

from launcher.schema.problems import LauncherError, Problem, RunFailed, UsageError

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("launcher.commands.train", "compose, check and run a job (-m sweeps)"),
    "check": ("launcher.commands.check", "everything that can fail without a GPU, in one report"),
    "eval": ("launcher.commands.evaluate", "rewards of a model on the rows, no training"),
    "rollouts": ("launcher.commands.rollouts", "read what a run sampled, scored and trained"),
    "explain": ("launcher.commands.explain", "a key, a rule or a metric: value, origin, meaning"),
    "schema": ("launcher.commands.schema", "JSON Schema of job, recipe, manifest or row, for editors"),
    "completion": ("launcher.commands.completion", "shell completion for bash and zsh"),
    "compile": ("launcher.commands.compile", "the NeMo RL config of a job"),
    "env": ("launcher.commands.env", "validate, scaffold, vendor or convert an environment package"),
    "data": ("launcher.commands.data", "check prompt rows"),
    "files": ("launcher.commands.files", "create, upload, list, download and delete FileSets"),
}
"""Subcommand -> module and one-line summary; the summary stands here so that --help imports nothing."""

INSTANT_COMMANDS = frozenset({"check", "explain", "schema", "completion"})
"""They end before collecting garbage, of which imports make little, would pay: a twentieth of their time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: arguments without the program name; ``sys.argv`` when None.

    Returns:
        The exit status described at the top of this file.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(f"grpo: no command {name!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if name in INSTANT_COMMANDS and argv is None:  # with argv this is somebody else's process
        gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")  # else it reads the metadata of every installed package
    module = importlib.import_module(COMMANDS[name][0])
    parser = argparse.ArgumentParser(prog=f"grpo {name}", description=COMMANDS[name][1])
    module.add_arguments(parser)
    try:
        options = _parse(parser, rest)
    except SystemExit as stop:  # argparse exits by itself; a caller in this process wants a status
        return int(stop.code or 0)
    return run_reporting(lambda: module.run(options), as_json="--json" in rest)


def _parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    try:
        return parser.parse_intermixed_args(arguments)  # options may stand between key=value arguments
    except TypeError:  # argparse's answer for a parser that has subcommands of its own
        return parser.parse_args(arguments)


def run_reporting(command: Callable[[], int], *, as_json: bool) -> int:
    """Run ``command`` and print what it raises the way every command does."""
    try:
        return command()
    except LauncherError as error:
        print_problems(error.problems, as_json=as_json)
        return 1
    except UsageError as error:
        print(f"grpo: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"grpo: run failed: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("grpo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def print_problems(problems: Sequence[Problem], *, as_json: bool) -> None:
    """Print all problems: one JSON object on stdout, or lines on stderr."""
    if as_json:
        invalid = any(p.severity == "error" for p in problems)
        print(json.dumps({"valid": not invalid, "problems": [p.to_json() for p in problems]}))
        return
    for problem in problems:
        print(f"{problem.severity}: {problem.path}: {problem.message} [{problem.code}]", file=sys.stderr)
        print(f"  fix: {problem.fix}", file=sys.stderr)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: grpo COMMAND [recipe=NAME] [group=choice] [key=value ...]", "", *lines, "",
                      "grpo COMMAND --help says more."])  # fmt: skip
