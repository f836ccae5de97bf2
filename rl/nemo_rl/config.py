"""JobConfig + RunPlan + files -> the master config of NeMo RL. Pure: nothing is read or written.

One output serves NeMo RL 0.7.0 and the main branch after it: each requires keys that the other ignores. Defaults of
NeMo RL are never relied on, because they differ from the published ones (``ratio_clip_max``, the KL penalty) and
between versions. Unknown keys are accepted there in silence, so a test checks the name of every key written here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.schema.groups import ModelConfig
from launcher.schema.job import JobConfig
from launcher.schema.plan import LoraPlan, RunPlan
from launcher.schema.training import RewardScalingConfig, RewardShapingConfig, TrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """Where the run's inputs lie and where its outputs go, as every node sees them.

    Example:
        RunFiles(model="/models/smollm2", chat_template=None, training_rows=Path("/data/training.jsonl"),
                 validation_rows=None, gym_configs=(Path("/env/configs/env.yaml"),), output=Path("/runs/demo/1"))
    """

    model: str
    """Folder of the model, or its name on the hub."""
    chat_template: str | None
    """Text of a Jinja template that replaces the tokenizer's own."""
    training_rows: Path
    """JSONL file."""
    validation_rows: Path | None
    """JSONL file; None turns validation off."""
    gym_configs: tuple[Path, ...]
    """Gym config files of the environment package. They stay files: their ``${...}`` are Gym's, not NeMo RL's."""
    output: Path
    """Folder that gets ``checkpoints`` and ``logs``."""


def master_config(job: JobConfig, plan: RunPlan, files: RunFiles) -> dict[str, Any]:
    """The config of ``examples/nemo_gym/run_grpo_nemo_gym.py`` that runs ``job``.

    Args:
        job: a job that ``launcher.rules`` accepts for ``engine=nemo_rl``.
        plan: what follows from it and from the number of rows.
        files: inputs and outputs.

    Returns:
        Nested plain values; strings as they are meant, before any escaping.
    """
    return {
        "grpo": _grpo(job.training, plan, with_validation=files.validation_rows is not None),
        "loss_fn": _loss_fn(job.training),
        "policy": _policy(job, plan, files),
        "data": _data(job.training, files),
        "env": {
            "should_use_nemo_gym": True,
            "should_mask_flagged_samples": True,
            "should_log_nemo_gym_responses": False,
            "nemo_gym": {"config_paths": [str(path) for path in files.gym_configs]},
        },
        "checkpointing": _checkpointing(job, plan, files),
        "logger": _logger(job, plan, files),
        "cluster": {
            "num_nodes": job.training.parallelism.num_nodes,
            "gpus_per_node": job.training.parallelism.num_gpus_per_node,
        },
    }


def _grpo(training: TrainingConfig, plan: RunPlan, *, with_validation: bool) -> dict[str, Any]:
    advantage_settings = {
        "normalize_rewards": training.normalize_rewards,
        "use_leave_one_out_baseline": training.use_leave_one_out_baseline,
    }
    return {
        "num_prompts_per_step": plan.num_prompts_per_step,
        "num_generations_per_prompt": training.num_generations_per_prompt,
        "max_num_epochs": training.epochs,
        "max_num_steps": plan.num_steps,
        "max_rollout_turns": 1,  # required, and without effect: the Gym agent's own limit counts
        "seed": plan.seed,
        # The advantages come from adv_estimator; logged baselines and dynamic sampling from the copy beside it.
        **advantage_settings,
        "adv_estimator": {"name": "grpo", **advantage_settings},
        "advantage_clip_low": training.advantage_clip_low,
        "advantage_clip_high": training.advantage_clip_high,
        "overlong_filtering": training.overlong_filtering,
        "use_dynamic_sampling": training.use_dynamic_sampling,
        "dynamic_sampling_max_gen_batches": training.dynamic_sampling_max_gen_batches,
        "batch_multiplier": training.batch_multiplier,
        "reward_shaping": _reward_shaping(training.reward_shaping),
        "reward_scaling": _reward_scaling(training.reward_scaling),
        "seq_logprob_error_threshold": None,
        "async_grpo": {"enabled": False, "max_trajectory_age_steps": 1},
        "val_at_start": training.val_at_start and with_validation,
        "val_at_end": training.val_at_end and with_validation,
        "val_period": plan.validation_interval or 0,
        # The script insists on null, and then sets both so that all rows are validated in one batch.
        "max_val_samples": None,
        "val_batch_size": max(plan.num_validation_rows, 1),
    }


def _reward_shaping(shaping: RewardShapingConfig | None) -> dict[str, Any]:
    return {"enabled": False} if shaping is None else {"enabled": True, **shaping.model_dump()}


def _reward_scaling(scaling: RewardScalingConfig | None) -> dict[str, Any]:
    return {"enabled": False} if scaling is None else {"enabled": True, **scaling.model_dump()}


def _loss_fn(training: TrainingConfig) -> dict[str, Any]:
    return {
        "reference_policy_kl_penalty": training.ref_policy_kl_penalty,
        "reference_policy_kl_type": "k3",
        "kl_input_clamp_value": 20.0,
        "kl_output_clamp_value": 10.0,
        "ratio_clip_min": training.ratio_clip_min,
        "ratio_clip_max": training.ratio_clip_max,
        "ratio_clip_c": training.ratio_clip_c,
        "use_on_policy_kl_approximation": training.use_on_policy_kl_approximation,
        "use_importance_sampling_correction": training.use_importance_sampling_correction,
        "truncated_importance_sampling_type": training.truncated_importance_sampling_type,
        "truncated_importance_sampling_ratio": training.truncated_importance_sampling_ratio,
        "truncated_importance_sampling_ratio_min": training.truncated_importance_sampling_ratio_min,
        "sequence_level_importance_ratios": False,
        "token_level_loss": True,
    }


def _policy(job: JobConfig, plan: RunPlan, files: RunFiles) -> dict[str, Any]:
    training = job.training
    # Tensor parallel sizes from 4 up demand that training and log-probability passes use one micro-batch size.
    micro_batch_size = training.micro_batch_size
    return {
        "model_name": files.model,
        "tokenizer": {"name": files.model}
        | ({} if files.chat_template is None else {"chat_template": files.chat_template}),
        "hf_config_overrides": (training.hf_config_overrides or {})
        | ({} if training.router_aux_loss_coef is None else {"router_aux_loss_coef": training.router_aux_loss_coef}),
        "train_global_batch_size": training.batch_size,
        "train_micro_batch_size": micro_batch_size,
        "logprob_batch_size": micro_batch_size,
        "generation_batch_size": 4 * micro_batch_size,
        "max_total_sequence_length": training.max_seq_length,
        "precision": job.model.dtype,
        "dtensor_cfg": _dtensor_cfg(training, plan),
        **_batching(training, plan),
        "make_sequence_length_divisible_by": training.parallelism.tensor_parallel_size,
        "max_grad_norm": training.max_grad_norm or None,
        "offload_optimizer_for_logprob": False,
        "optimizer": _optimizer(training),
        "scheduler": _scheduler(training, plan),
        "generation": _generation(job, plan),
    }


def _dtensor_cfg(training: TrainingConfig, plan: RunPlan) -> dict[str, Any]:
    parallelism = training.parallelism
    config: dict[str, Any] = {
        "enabled": True,
        "_v2": training.policy_backend == "automodel",
        "cpu_offload": False,
        "sequence_parallel": parallelism.sequence_parallel,
        "activation_checkpointing": training.activation_checkpointing,
        "tensor_parallel_size": parallelism.tensor_parallel_size,
        "context_parallel_size": parallelism.context_parallel_size,
        "custom_parallel_plan": None,
    }
    if parallelism.expert_parallel_size > 1:
        config["expert_parallel_size"] = parallelism.expert_parallel_size
        if training.activation_checkpointing:
            config["moe_parallelizer"] = {"ignore_router_for_ac": True}
    if training.automodel_kwargs is not None:
        config["automodel_kwargs"] = training.automodel_kwargs
    if plan.lora is not None:
        config["lora_cfg"] = _lora_cfg(plan.lora)
    return config


def _lora_cfg(lora: LoraPlan) -> dict[str, Any]:
    return {
        "enabled": True,
        "dim": lora.rank,
        "alpha": lora.alpha,
        "dropout": lora.dropout,
        "dropout_position": "post",
        "lora_A_init": "xavier",
        "target_modules": list(lora.target_modules or ()),
        # match_all_linear would adapt lm_head as well; a list of exclusions adapts every linear layer but these.
        "exclude_modules": [] if lora.target_modules else [*(lora.exclude_modules or ()), "lm_head"],
        "match_all_linear": False,
        "use_triton": lora.use_triton,
    }


def _batching(training: TrainingConfig, plan: RunPlan) -> dict[str, Any]:
    """Both blocks, which NeMo RL reads unconditionally; at most one enabled."""
    budget = {"train_mb_tokens": plan.train_mb_tokens, "logprob_mb_tokens": plan.train_mb_tokens}
    dynamic: dict[str, Any] = {"enabled": False}
    packing: dict[str, Any] = {"enabled": False}
    match training.batching_strategy:
        case "dynamic":
            dynamic = {"enabled": True, **budget, "sequence_length_round": training.sequence_length_round}
        case "sequence_packing":
            # sequence_length_round is required there, and read by dynamic batching only.
            packing = {
                "enabled": True,
                **budget,
                "algorithm": "modified_first_fit_decreasing",
                "sequence_length_round": training.sequence_length_round,
            }
    return {"dynamic_batching": dynamic, "sequence_packing": packing}


def _optimizer(training: TrainingConfig) -> dict[str, Any]:
    adamw = training.optimizer_type.startswith("adamw")
    return {
        "name": "torch.optim.AdamW" if adamw else "torch.optim.Adam",
        "kwargs": {
            "lr": training.learning_rate,
            "weight_decay": training.weight_decay,
            "betas": [training.adam_beta1, training.adam_beta2],
            "eps": training.adam_eps,
            "foreach": False,
            "fused": False,
        },
    }


def _scheduler(training: TrainingConfig, plan: RunPlan) -> list[dict[str, Any]]:
    """Schedulers in turn, and the steps at which one hands over to the next: the rates of ``rl.schedule``."""
    warmup_steps = plan.warmup_steps
    flat = training.optimizer_type.endswith("flat_lr")
    minimum = 0.0 if flat else plan.min_learning_rate
    if flat:
        parts = [("ConstantLR", {"factor": 1.0, "total_iters": plan.num_steps})]
    else:
        parts = [("CosineAnnealingLR", {"T_max": max(plan.num_steps - warmup_steps, 1), "eta_min": minimum})]
    if warmup_steps:
        start_factor = max(minimum / training.learning_rate, 1e-5)
        parts.insert(0, ("LinearLR", {"start_factor": start_factor, "end_factor": 1.0, "total_iters": warmup_steps}))
    return [
        *({"name": f"torch.optim.lr_scheduler.{name}", "kwargs": kwargs} for name, kwargs in parts),
        {"milestones": [warmup_steps] if warmup_steps else []},
    ]


def _generation(job: JobConfig, plan: RunPlan) -> dict[str, Any]:
    sampling = plan.sampling
    return {
        "backend": "vllm",
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": None,  # refused on the Gym path
        "val_temperature": sampling.temperature,
        "val_top_p": sampling.top_p,
        "val_top_k": None,
        "stop_token_ids": None,
        "stop_strings": None,
        "vllm_cfg": {
            "async_engine": True,
            "expose_http_server": True,
            "http_server_serving_chat_kwargs": _serving_chat_kwargs(job.model),
            "enforce_eager": True,
            "precision": job.model.dtype,
            "kv_cache_dtype": "auto",
            "tensor_parallel_size": plan.vllm_tensor_parallel_size,
            "pipeline_parallel_size": 1,
            "expert_parallel_size": 1,
            "gpu_memory_utilization": job.training.vllm_gpu_memory_utilization,
            "max_model_len": plan.max_model_len,
        },
        "vllm_kwargs": {},
        "colocated": {"enabled": True, "resources": {"gpus_per_node": None, "num_nodes": None}},
    }


def _serving_chat_kwargs(model: ModelConfig) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    if model.tool_call_parser is not None:
        kwargs |= {"enable_auto_tools": True, "tool_parser": model.tool_call_parser}
    if model.reasoning_parser is not None:
        kwargs["reasoning_parser"] = model.reasoning_parser
    return kwargs


def _data(training: TrainingConfig, files: RunFiles) -> dict[str, Any]:
    return {
        "max_input_seq_length": training.max_seq_length,
        "shuffle": training.shuffle,
        "num_workers": 1,
        "use_multiple_dataloader": False,
        "train": {"data_path": str(files.training_rows)},
        "validation": None if files.validation_rows is None else {"data_path": str(files.validation_rows)},
        "default": {
            "dataset_name": "NemoGymDataset",
            "env_name": "nemo_gym",
            "processor": "nemo_gym_data_processor",
        },
    }


def _checkpointing(job: JobConfig, plan: RunPlan, files: RunFiles) -> dict[str, Any]:
    config: dict[str, Any] = {
        "enabled": True,
        "checkpoint_dir": str(files.output / "checkpoints"),
        "metric_name": None if files.validation_rows is None else "val:total_reward/mean",
        "higher_is_better": True,
        "keep_top_k": job.training.keep_top_k,
        "save_period": job.checkpoint.save_interval or plan.num_steps,  # the last step is saved in any case
        "save_optimizer": True,
        "checkpoint_must_save_by": None,
    }
    if job.training.policy_backend == "automodel":  # the other worker refuses model_save_format
        config["save_consolidated"] = True
        if plan.output_type == "model":
            config["model_save_format"] = "safetensors"
    return config


def _logger(job: JobConfig, plan: RunPlan, files: RunFiles) -> dict[str, Any]:
    wandb = job.logger.wandb
    return {
        "log_dir": str(files.output / "logs" / "nemo_rl"),
        "num_val_samples_to_print": 0,
        "wandb_enabled": wandb.enabled,
        "wandb": {"name": plan.run_name, "mode": wandb.mode}
        | ({} if wandb.project is None else {"project": wandb.project})
        | ({} if wandb.entity is None else {"entity": wandb.entity}),
        "tensorboard_enabled": True,  # where our metrics.jsonl is read from
        "tensorboard": {},
        "mlflow_enabled": False,
        "swanlab_enabled": False,
        "monitor_gpus": True,
        "gpu_monitoring": {"collection_interval": 10, "flush_interval": 10},
    }
