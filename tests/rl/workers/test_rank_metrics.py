"""Two ranks give the metrics of one, through the whole engine: the same scripted rollouts, policy ranks in Ray actors.

The model is a mixture of experts whose routers are balanced, and there is a KL penalty and a second optimizer step on
each rollout batch, so that everything that ranks add up is there.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from gym_bridge.types import Rollout, Turn
from launcher.compile import compile_plan
from launcher.run_directory import make_run_directory
from launcher.schema.job import JobConfig
from rl.display import PlainDisplay
from rl.generation.scripted import ScriptedSource
from rl.loop import Rows, TrainingLoop
from rl.report import Report
from rl.settings import loop_settings, rank_settings
from rl.workers.group import PolicyGroup

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

VOCABULARY, HIDDEN, NUM_ROWS = 61, 16, 12
OF_THE_SPLIT = ("timing", "performance/", "padding_share", "peak_memory_bytes")
"""Metrics of how the work is done, which differ by design."""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, vocab_size=VOCABULARY, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def scripted_rollouts(num_rollouts: int) -> list[Rollout]:
    """Random tokens with graded rewards, the same every time; prompts of a group of four are equal."""
    made = []
    for index in range(num_rollouts):
        numbers, length = random.Random(index), random.Random(index).randrange(2, 12)
        turn = Turn(
            prompt_token_ids=tuple(random.Random(index // 4).randrange(VOCABULARY) for _ in range(5)),
            token_ids=tuple(numbers.randrange(VOCABULARY) for _ in range(length)),
            logprobs=tuple(-4.1 + 0.2 * numbers.random() for _ in range(length)),
            finish_reason="length" if length > 9 else "stop",
        )
        made.append(Rollout(
            group_id=0, rollout_id=0, row_index=0, agent="agent", turns=(turn,), reward=(index * 5 % 7) / 6,
            failure=None, truncated=length > 9, policy_version=0, prompt="", response="",
        ))  # fmt: skip
    return made


async def run_job(model_folder: Path, path: Path, *, num_ranks: int) -> list[dict[str, float]]:
    job = JobConfig.model_validate({
        "model": {"name": str(model_folder), "dtype": "float32"}, "dataset": "d", "environment": "e",
        "training": {
            "type": "grpo", "policy_backend": "dtensor", "learning_rate": 0.01, "adam_eps": 1e-3, "batch_size": 8,
            "num_prompts_per_step": 4, "num_generations_per_prompt": 4, "max_steps": 3, "max_seq_length": 32,
            "ref_policy_kl_penalty": 0.1, "router_aux_loss_coef": 0.1, "val_at_start": True,
            "parallelism": {"num_gpus_per_node": num_ranks},
        },
    })  # fmt: skip
    plan = compile_plan(job, num_training_rows=NUM_ROWS, num_validation_rows=2)
    run, weights = make_run_directory(path), path / "weights"
    weights.mkdir()
    settings = rank_settings(job, plan, model_folder=model_folder, device="cpu")
    async with await PolicyGroup.start(settings, num_ranks=num_ranks, log_folder=run.logs) as policy:
        with (path / "output").open("w") as stream:
            loop = TrainingLoop(
                loop_settings(job, plan, hidden_size=HIDDEN),
                rows=Rows(training=[{"row": i} for i in range(NUM_ROWS)], validation=[{"row": 0}, {"row": 1}]),
                source=ScriptedSource(scripted_rollouts(3 * 16 + 2 * 2)), policy=policy,
                report=Report(run, plan, PlainDisplay(stream), backend="local", health=job.health),
                weights_folder=weights,
            )  # fmt: skip
            await loop.run()
    return run.read_metrics()


def test_two_ranks_give_the_metrics_of_one(runner: Any, scratch: Path, model_folder: Path, tmp_path: Path) -> None:
    one, two = (
        runner.run(run_job(model_folder, tmp_path / str(num_ranks), num_ranks=num_ranks)) for num_ranks in (1, 2)
    )
    assert [line["step"] for line in one] == [line["step"] for line in two] == [0, 1, 2, 3]
    compared = set()
    for line, other in zip(one, two, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            if not any(part in name for part in OF_THE_SPLIT):
                assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-3), (name, line["step"])
                compared.add(name)
    assert {"train_loss", "train_grad_norm", "train_kl_penalty", "train_entropy", "train_router_aux_loss"} <= compared
    assert one[-1]["train_kl_penalty"] > 5e-3, "the policy moves, or equality would say little"
