"""What ``grpo check`` and ``grpo compile`` say about a job on NeMo RL before it starts.

Nothing here needs the engine's packages: the modules of ``rl.nemo_rl`` it reads are torch-free.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from launcher.checking import Checked
from launcher.dataset import find_dataset, read_rows
from launcher.gathering import LARGEST_CHECKED_BYTES
from launcher.references import resolve_reference
from launcher.schema.problems import LauncherError, Problem
from rl.nemo_rl.checkout import open_checkout
from rl.nemo_rl.differences import Difference, differences


def differences_of(checked: Checked) -> tuple[Difference, ...]:
    """What NeMo RL computes differently for a job; empty while the job has no plan."""
    job, plan, model = checked.resolved.job, checked.plan, checked.facts.model
    if plan is None:
        return ()
    return differences(
        job,
        plan,
        repeated_prompts=has_repeated_prompts(
            find_dataset(resolve_reference("dataset", job.dataset).local_path()).training
        ),
        model_ships_code=None if model is None else "auto_map" in model.config,
    )


def has_repeated_prompts(rows: Path) -> bool | None:
    """Whether two rows ask the model the same; None for a file too large to look into."""
    if rows.stat().st_size > LARGEST_CHECKED_BYTES:
        return None
    seen: set[str] = set()
    for number, (_, row) in enumerate(read_rows(rows), start=1):
        request = row["responses_create_params"]
        seen.add(json.dumps([request["input"], request.get("instructions"), request.get("tools")], sort_keys=True))
        if len(seen) < number:
            return True
    return False


def checkout_problems(root: str | None) -> tuple[Problem, ...]:
    """What is wrong with the NeMo RL checkout, or worth knowing about it; a job may be checked before there is one."""
    if root is None:
        message = "is unset: the job can be checked and compiled, and not trained"
        fix = "set it to a checkout of NeMo RL"
        return (Problem(code="nemo-rl-checkout", path="engine.root", message=message, fix=fix, severity="warning"),)
    try:
        return open_checkout(root)[1]
    except LauncherError as error:
        return error.problems


def difference_table(differing: Sequence[Difference]) -> str:
    """What NeMo RL computes differently for a job, one block each."""
    if not differing:
        return "NeMo RL computes what engine=local would."
    lines = ["NeMo RL computes something else than engine=local:"]
    for difference in differing:
        lines += [
            f"  {difference.setting}: {', '.join(difference.affects)}",
            f"    engine=local  {difference.local}",
            f"    NeMo RL       {difference.nemo_rl}",
            f"    to avoid it   {difference.avoided_by}",
        ]
    return "\n".join(lines)
