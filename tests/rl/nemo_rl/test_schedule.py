"""The schedulers that NeMo RL builds from our config give the learning rates of our engine."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.compile import compile_plan
from launcher.schema.job import JobConfig
from launcher.schema.training import OptimizerType
from rl.nemo_rl.config import RunFiles, master_config
from rl.schedule import ScheduleSettings, learning_rate


def rates(scheduler: list[dict[str, Any]], *, peak: float, num_steps: int) -> list[float]:
    """Rates of steps 1, 2, ...: NeMo RL chains the parts in a SequentialLR and steps it once per step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    *parts, last = scheduler
    built = [
        getattr(torch.optim.lr_scheduler, part["name"].rpartition(".")[2])(optimizer, **part["kwargs"])
        for part in parts
    ]
    sequence = torch.optim.lr_scheduler.SequentialLR(optimizer, built, last["milestones"])
    found = []
    with warnings.catch_warnings():  # it warns that a milestone resets a scheduler by number
        warnings.simplefilter("ignore")
        for _ in range(num_steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            sequence.step()
    return found


@pytest.mark.parametrize("optimizer_type", ["adamw_with_cosine_annealing", "adam_with_flat_lr"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 4])
@pytest.mark.parametrize("minimum", [None, 2e-6])
def test_rates_are_equal(optimizer_type: OptimizerType, warmup_steps: int, minimum: float | None):
    training = {
        "type": "grpo", "optimizer_type": optimizer_type, "learning_rate": 1e-5, "min_learning_rate": minimum,
        "warmup_steps": warmup_steps, "max_steps": 10,
    }  # fmt: skip
    job = JobConfig.model_validate({"model": "m", "dataset": "d", "environment": "e", "training": training})
    plan = compile_plan(job, num_training_rows=100, num_validation_rows=0)
    files = RunFiles(
        model="m", chat_template=None, training_rows=Path("x"), validation_rows=None, gym_configs=(), output=Path("x")
    )
    config = master_config(job, plan, files)
    settings = ScheduleSettings(
        optimizer_type=optimizer_type, learning_rate=1e-5, min_learning_rate=plan.min_learning_rate,
        warmup_steps=warmup_steps, num_steps=plan.num_steps,
    )  # fmt: skip
    ours = [learning_rate(step, settings) for step in range(1, 11)]
    assert rates(config["policy"]["scheduler"], peak=1e-5, num_steps=10) == pytest.approx(ours, rel=1e-9, abs=1e-15)
