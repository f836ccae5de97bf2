"""``grpo check``: everything that can fail without a GPU, in one report, and the arithmetic of the run."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.checking import Checked, check_job, has_errors
from launcher.cli import print_problems
from launcher.commands.arguments import add_job_arguments as add_job_arguments
from launcher.plan_report import PlanLine, estimated_memory, length_problems, memory_problems, plan_lines
from launcher.prompt_lengths import TokenLengths, can_tokenize, prompt_lengths
from launcher.schema.problems import LauncherError, Problem

if TYPE_CHECKING:
    from rl.nemo_rl.differences import Difference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo check``."""
    add_job_arguments(parser)
    parser.add_argument("--config-only", action="store_true", help="look at no file that the job refers to")
    parser.add_argument(
        "--tokens", action="store_true", help="count prompt tokens even if the tokenizer must be fetched"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Check one job."""
    checked = check_job(options.overrides, job_json=options.job, config_only=options.config_only)
    lengths = _lengths(checked, fetch=options.tokens) if checked.plan is not None else None
    max_seq_length = checked.resolved.job.training.max_seq_length
    problems = [*checked.problems, *memory_problems(checked), *length_problems(lengths, max_seq_length)]
    differing: tuple[Difference, ...] = ()
    on_nemo_rl = checked.resolved.job.engine.name == "nemo_rl" and not options.config_only
    if on_nemo_rl:
        from launcher import nemo_rl  # reads rl, which no other check does

        problems += nemo_rl.checkout_problems(checked.resolved.job.engine.root)
        differing = nemo_rl.differences_of(checked)
    valid = not has_errors(problems)
    if options.json:
        print(json.dumps(_report(checked, problems, lengths, differing)))
        return 0 if valid else 1
    print_problems(problems, as_json=False)
    _print_plan(plan_lines(checked, lengths))
    if on_nemo_rl and checked.plan is not None:
        print(nemo_rl.difference_table(differing))
    if valid:
        print("The configuration is valid.")
    return 0 if valid else 1


def _report(
    checked: Checked,
    problems: Sequence[Problem],
    lengths: TokenLengths | None,
    differing: "Sequence[Difference]",
) -> dict[str, object]:
    memory = estimated_memory(checked)
    return {
        "valid": not has_errors(problems),
        "problems": [problem.to_json() for problem in problems],
        "plan": asdict(checked.plan) if checked.plan else None,
        "memory": asdict(memory) if memory else None,
        "prompt_tokens": asdict(lengths) if lengths else None,
        "differences": [difference.to_json() for difference in differing],
    }


def _print_plan(lines: Sequence[PlanLine]) -> None:
    names, values = (
        max((len(line.name) for line in lines), default=0),
        max((len(line.value) for line in lines), default=0),
    )
    for line in lines:
        print(f"{line.name:{names}}  {line.value:>{values}}  {line.how}")


def _lengths(checked: Checked, *, fetch: bool) -> TokenLengths | None:
    """Prompt lengths, when the tokenizer is on disk or may be fetched."""
    from launcher.dataset import find_dataset
    from launcher.references import resolve_reference

    job, plan = checked.resolved.job, checked.plan
    assert plan is not None
    folder = checked.facts.model.folder if checked.facts.model is not None else None
    if folder is None and fetch:
        folder = _fetched(job.model.name)
    if folder is None or not can_tokenize(folder):
        if fetch:
            fix = "install the engine's packages (the cpu or gpu extra), and a model with tokenizer.json"
            raise LauncherError([Problem(code="no-tokenizer", path="model.name", message="--tokens has no tokenizer to "
                                         "count with", fix=fix)])  # fmt: skip
        return None
    rows = find_dataset(resolve_reference("dataset", job.dataset).local_path()).training
    return prompt_lengths(
        rows,
        folder,
        num_rows=plan.num_training_rows,
        max_seq_length=job.training.max_seq_length,
        chat_template=job.model.chat_template,
    )


def _fetched(name: str) -> Path:
    from rl.model_files import cache_folder, model_folder  # converts or downloads a model: only when asked to

    return model_folder(name, cache=cache_folder())
