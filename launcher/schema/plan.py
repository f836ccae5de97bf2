"""What follows from a job and its number of rows: made once, by ``launcher.compile``, and read by the engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from launcher.schema.sampling import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraPlan:
    """The adapter to train; a job without one has none.

    Example:
        LoraPlan(rank=16, alpha=32, multiplier=2.0, dropout=0.0, target_modules=None, exclude_modules=None,
                 use_triton=False)
    """

    rank: int
    alpha: int
    multiplier: float
    """alpha / rank: factor on the adapter's output."""
    dropout: float
    target_modules: tuple[str, ...] | None
    exclude_modules: tuple[str, ...] | None
    use_triton: bool
    """Triton kernels on a GPU; a CPU has none, and runs PyTorch's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Derived values of a run, nothing that the job states itself.

    Example (batch_size 64, 8 generations, 230 rows, 16 steps at most): 8 prompts and 64 rollouts a step, 1 optimizer
    step a step, 28 steps an epoch with 6 rows left out, 16 steps in all.
    """

    sampling: Sampling
    num_prompts_per_step: int
    num_prompts_per_batch: int
    """Prompts sampled at a time: more than a step needs when dynamic sampling has a batch_multiplier."""
    num_generations_per_prompt: int
    rollouts_per_step: int
    optimizer_steps_per_step: int
    num_training_rows: int
    num_validation_rows: int
    steps_per_epoch: int
    num_steps: int
    rows_left_out_per_epoch: int
    """Rows of the last, partial step of an epoch; a shuffle leaves out others in each epoch."""
    num_validation_rollouts: int
    """Rollouts of one validation pass: one per row."""
    validation_interval: int | None
    """Steps between validations; None when there are no validation rows."""
    num_ranks: int
    data_parallel_size: int
    train_mb_tokens: int
    vllm_tensor_parallel_size: int
    max_model_len: int
    """Tokens of prompt and response that the sampler accepts."""
    seed: int
    warmup_steps: int
    min_learning_rate: float
    """Rate at the end of the schedule; the peak itself when the schedule is flat."""
    lora: LoraPlan | None
    output_name: str
    output_type: Literal["model", "adapter"]
    run_name: str
    formulas: Mapping[str, str]
    """Field -> how it was made, with the numbers put in."""
