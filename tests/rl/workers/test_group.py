"""Which rank of the policy gets what, and whose answer counts; without processes."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from launcher.compile import compile_plan
from launcher.schema.job import JobConfig
from rl.settings import loop_settings, rank_settings
from rl.workers.group import PolicyGroup


def fake_rank(calls: list[tuple[int, Any]], rank: int) -> Any:
    async def logprobs(batch: Any) -> str:
        calls.append((rank, batch))
        return f"of {batch} by rank {rank}"

    return SimpleNamespace(logprobs=SimpleNamespace(remote=logprobs))


def test_ranks_of_a_tensor_group_get_the_same_batch_and_answer_once() -> None:
    calls: list[tuple[int, Any]] = []
    group = PolicyGroup([fake_rank(calls, rank) for rank in range(4)], tensor_parallel_size=2, log_files=(), pids=())
    answers = asyncio.run(group.logprobs(["first", "second"]))  # type: ignore[list-item]
    assert calls == [(0, "first"), (1, "first"), (2, "second"), (3, "second")]
    assert answers == ["of first by rank 0", "of second by rank 2"]


def test_the_job_says_how_ranks_are_grouped() -> None:
    found = []
    for size in (1, 2, 4):
        parallelism = {"num_gpus_per_node": 4, "tensor_parallel_size": size}
        job = JobConfig.model_validate({
            "model": "m", "dataset": "d", "environment": "e", "training": {"type": "grpo", "parallelism": parallelism},
        })  # fmt: skip
        plan = compile_plan(job, num_training_rows=64, num_validation_rows=0)
        settings = rank_settings(job, plan, model_folder=Path("m"), device="cpu")
        layout = loop_settings(job, plan, hidden_size=8).layout
        found.append((plan.num_ranks, settings.tensor_parallel_size, layout.data_parallel_size))
    assert found == [(4, 1, 4), (4, 2, 2), (4, 4, 1)]
