"""Rules about lengths, batches, rows and the schedule."""

from collections.abc import Iterator
from math import gcd

from launcher.compile import data_parallel_size, prompts_per_step
from launcher.facts import Facts
from launcher.rules.base import Finding, nearest_divisors, nearest_multiples
from launcher.schema.job import JobConfig


def response_fits(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A response is part of a sequence: max_new_tokens may not exceed max_seq_length, which also holds the prompt."""
    training = job.training
    if training.max_new_tokens is not None and training.max_new_tokens > training.max_seq_length:
        yield Finding(
            path="training.max_new_tokens",
            message=f"{training.max_new_tokens} is above max_seq_length ({training.max_seq_length})",
            fix=f"set training.max_new_tokens={training.max_seq_length} or less, or raise training.max_seq_length",
        )


def micro_batch_holds_a_sequence(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A micro-batch must hold the longest sequence, or a full-length rollout could not be trained."""
    training = job.training
    if training.train_mb_tokens is not None and training.train_mb_tokens < training.max_seq_length:
        yield Finding(
            path="training.train_mb_tokens",
            message=f"{training.train_mb_tokens} is below max_seq_length ({training.max_seq_length})",
            fix=f"set training.train_mb_tokens={training.max_seq_length} or more, or leave it out",
        )


def step_is_whole_batches(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A step samples prompts × generations rollouts and trains them in batches of batch_size.

    Each rollout is trained exactly once, so the product must be a multiple of batch_size. Left unset,
    num_prompts_per_step is batch_size // num_generations_per_prompt, which fits when the generations divide the batch.
    """
    training = job.training
    prompts, generations, batch = prompts_per_step(training), training.num_generations_per_prompt, training.batch_size
    if prompts * generations % batch == 0:
        return
    step = batch // gcd(batch, generations)
    if training.num_prompts_per_step is None:
        fixes = [f"training.num_generations_per_prompt={nearest_divisors(generations, batch)}",
                 f"training.batch_size={nearest_multiples(batch, generations)}"]  # fmt: skip
        path = "training.batch_size"
    else:
        fixes = [f"training.num_prompts_per_step={nearest_multiples(prompts, step)}"]
        path = "training.num_prompts_per_step"
    yield Finding(
        path=path,
        message=f"{prompts} prompts × {generations} generations = {prompts * generations} rollouts a step, "
        f"which is not a multiple of batch_size ({batch})",
        fix="set " + ", or ".join(fixes),
    )


def batch_splits_over_ranks(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Every data-parallel rank gets the same number of whole micro-batches of an optimizer step.

    data-parallel size = ranks / (tensor parallel × context parallel). Expert parallel lies inside it and does not
    divide it further.
    """
    training = job.training
    data_parallel = data_parallel_size(training)
    unit = training.micro_batch_size * data_parallel
    if training.batch_size % unit:
        yield Finding(
            path="training.batch_size",
            message=f"{training.batch_size} is not divisible by micro_batch_size × data-parallel size "
            f"({training.micro_batch_size} × {data_parallel} = {unit})",
            fix=f"set training.batch_size={nearest_multiples(training.batch_size, unit)}, "
            "or lower training.micro_batch_size",
        )


def schedule_fits(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """The learning rate rises during warm-up, then falls to min_learning_rate: the low must lie below the peak, and
    warm-up must leave steps to train at the peak.
    """
    training = job.training
    if training.min_learning_rate is not None and training.min_learning_rate > training.learning_rate:
        yield Finding(
            path="training.min_learning_rate",
            reads=("training.learning_rate",),
            message=f"{training.min_learning_rate:g} is above learning_rate ({training.learning_rate:g})",
            fix=f"set training.min_learning_rate={training.learning_rate / 10:g}, or leave it out for 0",
        )
    steps = training.max_steps
    if facts.num_training_rows is not None:
        per_epoch = facts.num_training_rows // int(prompts_per_step(training) * training.batch_multiplier)
        steps = min(training.epochs * per_epoch, steps or training.epochs * per_epoch)
    if steps and training.warmup_steps >= steps:
        yield Finding(
            path="training.warmup_steps",
            message=f"{training.warmup_steps} is not below the {steps} steps of the run: the peak is never reached",
            fix=f"set training.warmup_steps={max(steps // 10, 0)}, or train longer",
        )


def rows_fill_a_step(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A step takes num_prompts_per_step different rows (times batch_multiplier), and a partial step is not trained:
    with fewer rows nothing would train.
    """
    prompts = int(prompts_per_step(job.training) * job.training.batch_multiplier)
    rows = facts.num_training_rows
    if rows is not None and rows < prompts:
        generations = job.training.num_generations_per_prompt
        yield Finding(
            path="dataset",
            message=f"training.jsonl has {rows} rows and a step takes {prompts}: nothing would train",
            fix=f"add rows, or lower training.batch_size to {max(rows, 1) * generations} or less",
        )


def validation_has_rows(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Validation scores the rows of validation.jsonl, one rollout each; without the file it is off."""
    if facts.num_validation_rows != 0:
        return
    training = job.training
    asked = {
        "training.val_at_start": training.val_at_start,
        "training.val_check_interval": bool(training.val_check_interval),
    }
    for path, wanted in asked.items():
        if wanted:
            yield Finding(
                path=path,
                reads=("dataset",),
                message="the dataset has no rows in validation.jsonl: validation is off",
                fix="add validation.jsonl to the dataset, or drop the setting",
                severity="warning",
            )
