"""Everything derived from a job, against numbers worked by hand and against the platform's own arithmetic."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.compile import compile_plan, validation_interval
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan

VECTORS = Path(__file__).parents[2] / "vectors"
MakeJob = Callable[[dict[str, Any]], JobConfig]
T, P = "training.", "training.parallelism."


def plan_of(job: JobConfig, rows: int = 100, validation_rows: int = 0) -> RunPlan:
    return compile_plan(job, num_training_rows=rows, num_validation_rows=validation_rows)


def test_a_plan_worked_by_hand(make_job: MakeJob) -> None:
    job = make_job({"name": "run", "model.name": "hf://org/Model-1B", "dataset": "team/my rows",
                    T + "batch_size": 64, T + "num_prompts_per_step": 16, T + "epochs": 2, T + "max_steps": 10,
                    T + "max_seq_length": 1000, T + "micro_batch_size": 4, T + "val_check_interval": 0.5,
                    P + "num_gpus_per_node": 4, P + "tensor_parallel_size": 2})  # fmt: skip
    plan = plan_of(job, rows=100, validation_rows=7)
    assert plan.rollouts_per_step == 128  # 16 prompts × 8
    assert plan.optimizer_steps_per_step == 2  # 128 / 64
    assert plan.steps_per_epoch == 6  # 100 // 16
    assert plan.rows_left_out_per_epoch == 4  # 100 - 6 × 16
    assert plan.num_steps == 10  # 2 × 6, at most 10
    assert plan.num_validation_rollouts == 7
    assert plan.validation_interval == 3  # half of 6
    assert (plan.num_ranks, plan.data_parallel_size, plan.vllm_tensor_parallel_size) == (4, 2, 2)
    assert plan.train_mb_tokens == 4000
    assert plan.sampling.max_new_tokens == plan.max_model_len == 1000
    assert (plan.run_name, plan.output_name, plan.output_type) == ("run", "Model-1B-my-rows", "model")
    assert (plan.seed, plan.min_learning_rate, plan.lora) == (42, 0.0, None)


def test_every_derived_value_has_a_formula_with_its_numbers(make_job: MakeJob) -> None:
    formulas = plan_of(make_job({T + "max_steps": 3})).formulas
    assert formulas["num_prompts_per_step"] == "batch_size // num_generations_per_prompt = 32 // 8, at least 1"
    assert formulas["num_steps"] == "epochs × steps_per_epoch = 1 × 25, at most max_steps = 3"
    assert formulas["validation_interval"] == "no validation rows"


def test_lora_without_a_block_has_all_defaults(make_job: MakeJob) -> None:
    lora = plan_of(make_job({T + "finetuning_type": "lora"})).lora
    assert lora is not None
    assert (lora.rank, lora.alpha, lora.multiplier, lora.dropout, lora.use_triton) == (16, 32, 2.0, 0.0, True)
    sharded = make_job({T + "finetuning_type": "lora", P + "tensor_parallel_size": 2, P + "num_gpus_per_node": 2})
    plan = plan_of(sharded)
    assert plan.lora is not None
    assert plan.lora.use_triton is False
    assert plan.output_type == "adapter"


def test_a_flat_schedule_ends_where_it_starts(make_job: MakeJob) -> None:
    plan = plan_of(make_job({T + "optimizer_type": "adamw_with_flat_lr", T + "learning_rate": 3e-6}))
    assert plan.min_learning_rate == 3e-6


def test_batch_multiplier_takes_more_rows_a_step(make_job: MakeJob) -> None:
    plan = plan_of(make_job({T + "use_dynamic_sampling": True, T + "batch_multiplier": 2.5}))
    assert (plan.num_prompts_per_step, plan.num_prompts_per_batch, plan.steps_per_epoch) == (4, 10, 10)


def test_validation_interval_is_the_platforms() -> None:
    cases = json.loads((VECTORS / "val_check_interval.json").read_text())["cases"]
    for case in cases:
        interval = validation_interval(
            case["val_check_interval"], steps_per_epoch=case["steps_per_epoch"], num_steps=case["max_steps"]
        )
        assert interval == case["out"], case
    assert len(cases) == 360


def test_steps_per_epoch_are_nemo_rls(make_job: MakeJob) -> None:
    cases = json.loads((VECTORS / "steps_per_epoch.json").read_text())["cases"]
    for case in cases:
        keys = ("batch_size", "num_generations_per_prompt", "num_prompts_per_step")
        plan = plan_of(make_job({T + key: case[key] for key in keys}), rows=case["rows"])
        assert plan.num_prompts_per_step == case["prompts"]
        assert plan.steps_per_epoch == case["batches_per_epoch_nemo_rl (floor, drop_last)"]
        assert plan.steps_per_epoch * plan.num_prompts_per_batch + plan.rows_left_out_per_epoch == case["rows"]
    assert len(cases) == 45
