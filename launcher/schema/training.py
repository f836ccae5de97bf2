"""The ``training`` section of a job, with the published field names."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from launcher.schema.base import Count, NonNegativeFloat, PositiveFloat, Probability, Section, Share, Texts

OptimizerType = Literal[
    "adamw_with_cosine_annealing", "adam_with_cosine_annealing", "adamw_with_flat_lr", "adam_with_flat_lr"
]


class ParallelismConfig(Section):
    """How ranks are laid out. On a CPU a rank is a process."""

    num_nodes: Count = 1
    """Machines."""
    num_gpus_per_node: Count = 1
    """Ranks per machine."""
    tensor_parallel_size: Count = 1
    """Ranks that share each layer's weights."""
    pipeline_parallel_size: Count = 1
    """Ranks that hold successive layers; only 1 is implemented by any backend."""
    context_parallel_size: Count = 1
    """Ranks that share each sequence."""
    expert_parallel_size: Count = 1
    """Ranks that share the experts of a mixture-of-experts model; lies inside the data-parallel size."""
    sequence_parallel: bool = False
    """Shard activations along the sequence between tensor-parallel ranks."""


class LoraConfig(Section):
    """The adapter. Its output is multiplied by alpha / rank."""

    rank: Count = 16
    """Inner dimension."""
    alpha: Count = 32
    """Numerator of the multiplier: changing the rank alone also changes the effective learning rate."""
    dropout: Share = 0.0
    """Dropout applied after the adapter."""
    target_modules: Texts | None = None
    """Names or patterns of the modules to adapt; unset adapts every linear layer but ``lm_head``."""
    exclude_modules: Texts | None = None
    """Names or patterns of modules to leave alone; every other linear layer is adapted."""
    use_triton: bool | None = None
    """Triton kernels; unset uses them on a GPU at tensor_parallel_size 1."""


class RewardShapingConfig(Section):
    """A penalty for length: either the three ``overlong`` settings together, or ``stop_properly_penalty_coef``."""

    overlong_buffer_length: Count | None = None
    """Tokens before ``max_response_length`` over which the penalty grows from 0 to its full size."""
    overlong_buffer_penalty: NonNegativeFloat | None = None
    """Penalty at ``max_response_length`` and beyond."""
    max_response_length: Count | None = None
    """Response length, in tokens, that gets the full penalty."""
    stop_properly_penalty_coef: Share | None = None
    """Factor on the reward of a truncated response."""


class RewardScalingConfig(Section):
    """Maps rewards linearly from the source range, after clamping to it, to the target range."""

    source_min: float = 0.0
    """Lowest raw reward."""
    source_max: float = 1.0
    """Highest raw reward."""
    target_min: float = 0.0
    """Value that ``source_min`` becomes."""
    target_max: float = 1.0
    """Value that ``source_max`` becomes."""


class TrainingConfig(Section):
    """All settings of a GRPO run."""

    type: Literal["grpo"]
    """Tag of the kind of training; required."""
    finetuning_type: Literal["all_weights", "lora", "lora_merged"] = "all_weights"
    """``all_weights`` yields a model, ``lora`` an adapter. GRPO refuses ``lora_merged``."""
    policy_backend: Literal["automodel", "dtensor"] = "automodel"
    """``automodel``: LoRA, expert parallel, Transformer Engine. ``dtensor``: stock modules under PyTorch FSDP2."""

    # Length of the run and optimizer
    epochs: Count = 1
    """Passes over the training rows."""
    max_steps: Count | None = None
    """Cap on steps; unset runs all epochs."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate; an adapter takes 10 to 20 times that of full weights."""
    min_learning_rate: NonNegativeFloat | None = None
    """Rate at the end of cosine annealing; unset is 0."""
    optimizer_type: OptimizerType = "adamw_with_cosine_annealing"
    """Optimizer and schedule."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled in adamw, added to the gradient in adam."""
    adam_beta1: Probability = 0.9
    """Decay of the mean of gradients."""
    adam_beta2: Probability = 0.999
    """Decay of the mean of squared gradients."""
    adam_eps: PositiveFloat = 1e-5
    """Added to the root of the mean of squared gradients."""
    warmup_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Steps over which the learning rate rises linearly."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradients are scaled down to this norm; 0 turns clipping off."""

    # Batches
    batch_size: Count = 32
    """Rollouts per optimizer step."""
    micro_batch_size: Count = 1
    """Rollouts per forward pass of a rank, read by ``static`` batching and by the default of train_mb_tokens."""
    max_seq_length: Count = 2048
    """Tokens of prompt and response together."""
    max_new_tokens: Count | None = None
    """Tokens of one response; unset is max_seq_length."""
    num_generations_per_prompt: Count = 8
    """Group size: the spread of rewards inside a group is the learning signal."""
    num_prompts_per_step: Count | None = None
    """Prompts per step; unset is batch_size // num_generations_per_prompt, at least 1."""

    # Sampling
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Divides the logits in the sampler and in the loss."""
    top_k: Count | None = None
    """Sample from the k likeliest tokens only; unset samples from all."""
    max_rollout_turns: Count | None = None
    """Model calls of one rollout; unset is the agent's own limit."""
    overlong_filtering: bool = False
    """Truncated responses give no loss."""

    # Validation
    val_at_start: bool = False
    """Validate before the first step, so that baseline and result come from one job."""
    val_at_end: bool = True
    """Validate after the last step."""
    val_check_interval: NonNegativeFloat | None = None
    """Up to 1: a fraction of an epoch; above 1: steps; unset or 0: once an epoch."""

    # Loss
    ref_policy_kl_penalty: NonNegativeFloat = 0.0
    """Weight of the KL divergence (k3 estimator) from the model before training; 0 loads no reference model."""
    ratio_clip_min: NonNegativeFloat = 0.2
    """The probability ratio is clipped below at 1 minus this."""
    ratio_clip_max: NonNegativeFloat = 0.28
    """The probability ratio is clipped above at 1 plus this."""
    ratio_clip_c: Annotated[float, Field(gt=1)] | None = None
    """Bound of the dual clip for negative advantages."""
    advantage_clip_low: float | None = None
    """Lower bound of advantages, at most 0."""
    advantage_clip_high: float | None = None
    """Upper bound of advantages, at least 0."""
    normalize_rewards: bool = True
    """Divide advantages by the standard deviation of their group."""
    use_leave_one_out_baseline: bool = True
    """A rollout's baseline is the mean reward of the others of its group."""
    use_on_policy_kl_approximation: bool = True
    """Weight the KL term by the ratio of trainer to sampler probability."""
    use_importance_sampling_correction: bool = True
    """Weight the loss by the ratio of trainer to sampler probability before the update."""
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = None
    """How large importance weights are cut: clamped, dropped per token, or dropped per sequence."""
    truncated_importance_sampling_ratio: PositiveFloat | None = None
    """Upper bound of importance weights."""
    truncated_importance_sampling_ratio_min: NonNegativeFloat | None = None
    """Lower bound of importance weights."""

    # Which groups are trained, and on what reward
    use_dynamic_sampling: bool = False
    """Sample on until a step has enough groups whose rewards differ."""
    dynamic_sampling_max_gen_batches: Count = 10
    """Batches sampled for one step before the run stops."""
    batch_multiplier: Annotated[float, Field(ge=1)] = 1.0
    """Prompts of one sampled batch over num_prompts_per_step, with dynamic sampling."""
    reward_shaping: RewardShapingConfig | None = None
    """Penalty for length."""
    reward_scaling: RewardScalingConfig | None = None
    """Linear map of rewards."""

    # Micro-batches
    batching_strategy: Literal["dynamic", "static", "sequence_packing"] = "dynamic"
    """``dynamic`` fills a token budget, ``static`` counts rollouts, ``sequence_packing`` concatenates rollouts."""
    train_mb_tokens: Count | None = None
    """Token budget of a micro-batch; unset is max_seq_length × micro_batch_size."""
    sequence_length_round: Count = 64
    """Lengths are rounded up to a multiple of this, in ``dynamic`` batching."""

    # Model and memory
    router_aux_loss_coef: NonNegativeFloat | None = None
    """Coefficient of the load-balancing loss of a mixture of experts, a top-level override of the model's config. 0.0
    turns that loss off; unset, engine=local adds none and engine=nemo_rl trains with the model's own coefficient."""
    hf_config_overrides: dict[str, Any] | None = None
    """Passed to the training model and to vLLM as it stands, nested keys included."""
    automodel_kwargs: dict[str, Any] | None = None
    """Passed to NeMo Automodel, such as ``{force_hf: true}``."""
    vllm_tensor_parallel_size: Count | None = None
    """GPUs per sampler; unset is tensor_parallel_size, at most num_gpus_per_node."""
    vllm_gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of GPU memory for the sampler."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    """Seed of row order, sampling and initialisation; unset is 42."""
    keep_top_k: Count = 1
    """Checkpoints kept: the best by validation reward; the newest always stays."""
    shuffle: bool = True
    """Shuffle the rows of each epoch; false keeps file order."""

    parallelism: ParallelismConfig = ParallelismConfig()
    """Layout of ranks."""
    lora: LoraConfig | None = None
    """Adapter settings; unset with ``finetuning_type: lora`` means all defaults."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_known_type(cls, value: Any) -> Any:
        if isinstance(value, dict):
            if "type" not in value:
                raise PydanticCustomError("union_tag_not_found", "training.type is missing; it has no default")
            if value["type"] != "grpo":
                raise PydanticCustomError("union_tag_invalid", "training.type must be 'grpo'")
        return value
