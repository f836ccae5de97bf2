"""``grpo compile``: the config with which NeMo RL runs a job, and what it will compute differently."""

import argparse
import json
import sys
from pathlib import Path

import yaml

from launcher.checking import check_job
from launcher.cli import print_problems
from launcher.commands.arguments import add_job_arguments
from launcher.schema.problems import LauncherError, Problem

OTHER_TOOLS: tuple[tuple[str, frozenset[str]], ...] = (
    ("NeMo RL", frozenset({"policy", "grpo", "loss_fn"})),
    ("verl", frozenset({"actor_rollout_ref", "algorithm"})),
    ("NeMo Gym", frozenset({"config_paths"})),
    ("TRL", frozenset({"model_name_or_path"})),
)
"""Tool -> keys that its config files have and that no job has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo compile``."""
    add_job_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the config there, not to stdout")
    parser.add_argument("--json", action="store_true", help="print one JSON object: config and differences")


def run(options: argparse.Namespace) -> int:
    """Compile one job; the engine is ``nemo_rl`` whatever the job says."""
    if options.job is not None:
        refuse_config_of_another_tool(options.job)
    checked = check_job([*options.overrides, "engine.name=nemo_rl"], job_json=options.job)
    plan = checked.require_valid()
    job = checked.resolved.job

    # The other commands of the launcher start without rl.
    from launcher.nemo_rl import difference_table, differences_of
    from rl.nemo_rl.config import master_config
    from rl.nemo_rl.inputs import run_files
    from rl.nemo_rl.omegaconf_yaml import to_yaml

    output = Path(job.engine.runs_dir) / plan.run_name
    files, _ = run_files(job, output=output, on_progress=lambda text: print(text, file=sys.stderr))
    config = master_config(job, plan, files)
    differing = differences_of(checked)
    if options.output is not None:
        _write(options.output, to_yaml(config))
    if options.json:
        print(json.dumps({"config": config, "differences": [difference.to_json() for difference in differing]}))
        return 0
    print_problems(checked.problems, as_json=False)
    print(difference_table(differing), file=sys.stderr)
    if options.output is None:
        print(to_yaml(config), end="")
    return 0


def refuse_config_of_another_tool(path: Path) -> None:
    """Tell what a file is that was given for a job and is the config of another tool.

    Raises:
        LauncherError: it is one.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return  # the check that follows says what is wrong with it
    if not isinstance(tree, dict) or "training" in tree:
        return
    for tool, keys in OTHER_TOOLS:
        if keys <= tree.keys():
            message = f"is a config of {tool} (it has {', '.join(sorted(keys))}), not a job"
            fix = f"run it with {tool}, or give a job JSON: model, dataset, environment, training"
            raise LauncherError([Problem(code="foreign-config", path=str(path), message=message, fix=fix)])


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"cannot be written: {error.strerror}"
        raise LauncherError(
            [Problem(code="output", path=str(path), message=message, fix="give a file in a folder that exists")]
        ) from error
