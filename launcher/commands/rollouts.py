"""``grpo rollouts RUN_DIR``: read what a run sampled, scored and trained."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from launcher.run_directory import RunDirectory, open_run_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo rollouts``."""
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="a run directory")
    parser.add_argument("--step", type=int, metavar="N", help="which step; the last one when absent")
    parser.add_argument("--validation", action="store_true", help="the rollouts of a validation pass")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--best", action="store_true", help="highest reward first")
    chosen.add_argument("--worst", action="store_true", help="lowest reward first")
    chosen.add_argument("--failed", action="store_true", help="only rollouts that failed, with the reason")
    parser.add_argument("-n", "--limit", type=int, default=8, metavar="N", help="how many to show (8; 0 shows all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Show rollouts."""
    directory = open_run_directory(options.run)
    step = options.step if options.step is not None else _last_step(directory, validation=options.validation)
    records = directory.read_rollouts(step, validation=options.validation)
    chosen = chosen_rollouts(records, best=options.best, worst=options.worst, failed=options.failed)
    shown = chosen[: options.limit] if options.limit > 0 else chosen
    if options.json:
        print(json.dumps({"step": step, "num_rollouts": len(records), "rollouts": shown}, ensure_ascii=False))
        return 0
    console = Console(highlight=False)
    what = "validation after step" if options.validation else "step"
    console.print(f"{what} {step}: {len(shown)} of {len(records)} rollouts")
    for record in shown:
        _show(console, record)
    return 0


def chosen_rollouts(
    records: Sequence[dict[str, Any]], *, best: bool = False, worst: bool = False, failed: bool = False
) -> list[dict[str, Any]]:
    """Select and order rollout records; in sampling order when nothing is asked for."""
    if failed:
        return [record for record in records if record["failure"] is not None]
    if best or worst:
        scored = [record for record in records if record["failure"] is None]
        return sorted(scored, key=lambda record: record["reward"], reverse=best)
    return sorted(records, key=lambda record: (record["group_id"], record["rollout_id"]))


def _last_step(directory: RunDirectory, *, validation: bool) -> int:
    steps = directory.rollout_steps(validation=validation)
    return steps[-1] if steps else 0


def _show(console: Console, record: Mapping[str, Any]) -> None:
    score = "failed" if record["failure"] is not None else f"reward {record['reward']:.3f}"
    if "advantage" in record:
        advantage = record["advantage"]
        score += "  group not trained" if advantage is None else f"  advantage {advantage:+.3f}"
    num_tokens = sum(len(turn["token_ids"]) for turn in record["turns"])
    length = f"{num_tokens} tokens{', truncated' if record['truncated'] else ''}"
    title = f"row {record['row_index']} #{record['rollout_id']}  {score}  {length}"
    console.print(Rule(Text(title), align="left"))
    console.print(Text(record["prompt"], style="bold"))
    console.print(Text(record["response"] or "(no response)"))
    if record["failure"] is not None:
        console.print(Text(f"failed: {record['failure']}", style="red"))
