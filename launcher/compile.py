"""JobConfig + row counts -> RunPlan: arithmetic only, each derived value with its formula."""

import re
from typing import Any

from launcher.schema.job import JobConfig
from launcher.schema.plan import LoraPlan, RunPlan
from launcher.schema.sampling import Sampling
from launcher.schema.training import LoraConfig, TrainingConfig

DEFAULT_SEED = 42
_LONGEST_NAME = 255
DERIVED_SETTINGS = {
    "training.num_prompts_per_step": "num_prompts_per_step",
    "training.train_mb_tokens": "train_mb_tokens",
    "training.vllm_tensor_parallel_size": "vllm_tensor_parallel_size",
    "training.seed": "seed",
    "training.min_learning_rate": "min_learning_rate",
    "training.val_check_interval": "validation_interval",
    "output.name": "output_name",
    "name": "run_name",
}
"""Setting that may be left out -> field of the plan that is then made for it."""


def compile_plan(job: JobConfig, *, num_training_rows: int, num_validation_rows: int) -> RunPlan:
    """Derive a run from a job that has passed ``launcher.rules``.

    Args:
        job: the job.
        num_training_rows: rows of training.jsonl.
        num_validation_rows: rows of validation.jsonl, 0 when there is none.
    """
    training = job.training
    prompts = prompts_per_step(training)
    batch = int(prompts * training.batch_multiplier)
    rollouts = prompts * training.num_generations_per_prompt
    per_epoch = num_training_rows // batch
    steps = training.epochs * per_epoch
    if training.max_steps is not None:
        steps = min(training.max_steps, steps)
    interval = None
    if num_validation_rows:
        interval = validation_interval(training.val_check_interval, steps_per_epoch=per_epoch, num_steps=steps)
    ranks, data_parallel = num_ranks(training), data_parallel_size(training)
    values: dict[str, Any] = {
        "num_prompts_per_step": prompts,
        "num_prompts_per_batch": batch,
        "rollouts_per_step": rollouts,
        "optimizer_steps_per_step": rollouts // training.batch_size,
        "steps_per_epoch": per_epoch,
        "num_steps": steps,
        "rows_left_out_per_epoch": num_training_rows - per_epoch * batch,
        "num_validation_rollouts": num_validation_rows,
        "validation_interval": interval,
        "num_ranks": ranks,
        "data_parallel_size": data_parallel,
        "train_mb_tokens": train_mb_tokens(training),
        "vllm_tensor_parallel_size": vllm_tensor_parallel_size(training),
        "max_model_len": training.max_seq_length,
        "seed": DEFAULT_SEED if training.seed is None else training.seed,
        "warmup_steps": training.warmup_steps,
        "min_learning_rate": _last_learning_rate(training),
        "output_name": output_name(job),
        "output_type": "adapter" if training.finetuning_type == "lora" else "model",
        "run_name": job.name or output_name(job),
    }
    return RunPlan(
        **values,
        sampling=sampling(training),
        num_generations_per_prompt=training.num_generations_per_prompt,
        num_training_rows=num_training_rows,
        num_validation_rows=num_validation_rows,
        lora=_lora_plan(training),
        formulas=_formulas(job, values, num_training_rows, num_validation_rows),
    )


def sampling(training: TrainingConfig) -> Sampling:
    """The distribution that tokens are drawn from, and that the loss models."""
    return Sampling(
        temperature=training.temperature,
        top_p=1.0,
        top_k=training.top_k,
        max_new_tokens=training.max_new_tokens or training.max_seq_length,
    )


def prompts_per_step(training: TrainingConfig) -> int:
    """As set, else ``batch_size // num_generations_per_prompt``, at least 1."""
    return training.num_prompts_per_step or max(training.batch_size // training.num_generations_per_prompt, 1)


def num_ranks(training: TrainingConfig) -> int:
    """Processes that train."""
    return training.parallelism.num_nodes * training.parallelism.num_gpus_per_node


def data_parallel_size(training: TrainingConfig) -> int:
    """Ranks that see different rollouts: all over tensor and context parallel, at least 1."""
    layout = training.parallelism
    return max(num_ranks(training) // (layout.tensor_parallel_size * layout.context_parallel_size), 1)


def train_mb_tokens(training: TrainingConfig) -> int:
    """Token budget of a micro-batch."""
    return training.train_mb_tokens or training.max_seq_length * training.micro_batch_size


def vllm_tensor_parallel_size(training: TrainingConfig) -> int:
    """GPUs that one sampler spans."""
    layout = training.parallelism
    return training.vllm_tensor_parallel_size or min(layout.tensor_parallel_size, layout.num_gpus_per_node)


def validation_interval(val_check_interval: float | None, *, steps_per_epoch: int, num_steps: int) -> int:
    """Steps between validations.

    Args:
        val_check_interval: up to 1 a fraction of an epoch, above 1 steps, None or 0 once an epoch.
        steps_per_epoch: steps of one epoch.
        num_steps: steps of the run.

    Returns:
        At least 1, at most an epoch; an interval that was asked for also ends before the last step, so that it
        yields a validation of its own besides the one at the end.
    """
    if not val_check_interval:
        return max(min(steps_per_epoch, num_steps), 1)
    steps = steps_per_epoch * val_check_interval if val_check_interval <= 1 else val_check_interval
    return max(min(int(steps), steps_per_epoch, num_steps - 1), 1)


def output_name(job: JobConfig) -> str:
    """As set, else the last parts of the names of model and dataset."""
    if job.output.name:
        return job.output.name
    parts = [re.sub(r"[^A-Za-z0-9._-]+", "-", name.rstrip("/").rpartition("/")[2]) for name in
             (job.model.name, job.dataset)]  # fmt: skip
    joined = "-".join(part.strip("-.") for part in parts if part.strip("-."))
    return joined[:_LONGEST_NAME] or "model"


def _last_learning_rate(training: TrainingConfig) -> float:
    if training.optimizer_type.endswith("flat_lr"):
        return training.learning_rate
    return training.min_learning_rate or 0.0


def _lora_plan(training: TrainingConfig) -> LoraPlan | None:
    if training.finetuning_type != "lora":
        return None
    lora = training.lora or LoraConfig()
    on_one_rank = training.parallelism.tensor_parallel_size == 1
    return LoraPlan(
        rank=lora.rank,
        alpha=lora.alpha,
        multiplier=lora.alpha / lora.rank,
        dropout=lora.dropout,
        target_modules=lora.target_modules,
        exclude_modules=lora.exclude_modules,
        use_triton=on_one_rank if lora.use_triton is None else lora.use_triton,
    )


def _formulas(job: JobConfig, values: dict[str, Any], training_rows: int, validation_rows: int) -> dict[str, str]:
    training, layout = job.training, job.training.parallelism
    prompts, batch, per_epoch = (
        values[key] for key in ("num_prompts_per_step", "num_prompts_per_batch", "steps_per_epoch")
    )
    given = "as set"
    batch_by_group = f"batch_size // num_generations_per_prompt = {training.batch_size} // {training.num_generations_per_prompt}, at least 1"  # noqa: E501
    texts = {
        "num_prompts_per_step": given if training.num_prompts_per_step else batch_by_group,
        "num_prompts_per_batch": f"num_prompts_per_step × batch_multiplier = {prompts} × {training.batch_multiplier:g}",
        "rollouts_per_step": f"prompts × generations = {prompts} × {training.num_generations_per_prompt}",
        "optimizer_steps_per_step": f"rollouts // batch_size = {values['rollouts_per_step']} // {training.batch_size}",
        "steps_per_epoch": f"training rows // prompts = {training_rows} // {batch}",
        "num_steps": f"epochs × steps_per_epoch = {training.epochs} × {per_epoch}"
        + (f", at most max_steps = {training.max_steps}" if training.max_steps else ""),
        "rows_left_out_per_epoch": f"training rows - steps × prompts = {training_rows} - {per_epoch} × {batch}",
        "num_validation_rollouts": f"one per validation row = {validation_rows}",
        "validation_interval": _interval_formula(training, values, validation_rows),
        "num_ranks": f"num_nodes × num_gpus_per_node = {layout.num_nodes} × {layout.num_gpus_per_node}",
        "data_parallel_size": "ranks // (tensor parallel × context parallel) = "
        f"{values['num_ranks']} // ({layout.tensor_parallel_size} × {layout.context_parallel_size})",
        "train_mb_tokens": given
        if training.train_mb_tokens
        else f"max_seq_length × micro_batch_size = {training.max_seq_length} × {training.micro_batch_size}",
        "vllm_tensor_parallel_size": given
        if training.vllm_tensor_parallel_size
        else "min(tensor_parallel_size, num_gpus_per_node) = "
        f"min({layout.tensor_parallel_size}, {layout.num_gpus_per_node})",
        "max_model_len": "max_seq_length",
        "seed": f"{DEFAULT_SEED} when unset" if training.seed is None else given,
        "warmup_steps": given,
        "min_learning_rate": "learning_rate" if training.optimizer_type.endswith("flat_lr") else "0 when unset",
        "output_name": given if job.output.name else "names of model and dataset",
        "output_type": f"finetuning_type = {training.finetuning_type}",
        "run_name": given if job.name else "output_name",
    }
    assert texts.keys() == values.keys(), "every derived value has a formula"
    return texts


def _interval_formula(training: TrainingConfig, values: dict[str, Any], validation_rows: int) -> str:
    if not validation_rows:
        return "no validation rows"
    per_epoch, steps, wanted = values["steps_per_epoch"], values["num_steps"], training.val_check_interval
    if not wanted:
        return f"once an epoch, min(steps_per_epoch, num_steps) = min({per_epoch}, {steps})"
    amount = f"{wanted:g} of an epoch" if wanted <= 1 else f"{wanted:g} steps"
    return f"{amount}, at most an epoch ({per_epoch}) and num_steps - 1 ({steps - 1}), at least 1"
