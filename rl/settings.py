"""From a job and its plan to what each part of the engine needs; nothing else reads the whole job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.training import TrainingConfig
from rl.advantages import AdvantageSettings
from rl.generation.actor import GenerationSettings
from rl.generation.live import GymSettings
from rl.generation.transfer import TransferTarget, transfer_target
from rl.gpus import NO_GPUS, GpuLayout
from rl.layout import LayoutSettings
from rl.loop import LoopSettings
from rl.loss import LossSettings
from rl.optimizer import OptimizerSettings
from rl.schedule import ScheduleSettings
from rl.workers.settings import ModelSettings, RankSettings


def rank_settings(
    job: JobConfig,
    plan: RunPlan,
    *,
    model_folder: Path,
    device: Literal["cpu", "cuda"],
    transfer: TransferTarget | None = None,
) -> RankSettings:
    """What each rank of the policy needs."""
    training = job.training
    return RankSettings(
        model=ModelSettings(
            folder=model_folder,
            trust_remote_code=job.model.trust_remote_code,
            activation_checkpointing=training.activation_checkpointing,
            config_overrides=config_overrides(training),
            router_aux_loss_coef=router_aux_loss_coef(training),
            backend=training.policy_backend,
            automodel_kwargs=training.automodel_kwargs or {},
            lora=plan.lora,
        ),
        optimizer=OptimizerSettings(
            optimizer_type=training.optimizer_type,
            weight_decay=training.weight_decay,
            adam_beta1=training.adam_beta1,
            adam_beta2=training.adam_beta2,
            adam_eps=training.adam_eps,
        ),
        loss=LossSettings(
            ratio_clip_min=training.ratio_clip_min,
            ratio_clip_max=training.ratio_clip_max,
            ratio_clip_c=training.ratio_clip_c,
            ref_policy_kl_penalty=training.ref_policy_kl_penalty,
            use_on_policy_kl_approximation=training.use_on_policy_kl_approximation,
            use_importance_sampling_correction=training.use_importance_sampling_correction,
            truncated_importance_sampling_type=training.truncated_importance_sampling_type,
            truncated_importance_sampling_ratio=training.truncated_importance_sampling_ratio,
            truncated_importance_sampling_ratio_min=training.truncated_importance_sampling_ratio_min,
        ),
        sampling=plan.sampling,
        device=device,
        compute_dtype=job.model.dtype,
        max_grad_norm=training.max_grad_norm,
        seed=plan.seed,
        tensor_parallel_size=training.parallelism.tensor_parallel_size,
        transfer=transfer,
    )


def config_overrides(training: TrainingConfig) -> dict[str, Any]:
    """Keys to replace in the model's config, of the trained model and of vLLM's."""
    overrides = dict(training.hf_config_overrides or {})
    if training.router_aux_loss_coef is not None:
        overrides["router_aux_loss_coef"] = training.router_aux_loss_coef
    return overrides


def router_aux_loss_coef(training: TrainingConfig) -> float:
    """Coefficient of the routers' balancing loss, wherever the job sets it; 0 when it does not."""

    def found(overrides: Mapping[str, Any]) -> float:
        nested = (found(value) for value in overrides.values() if isinstance(value, Mapping))
        return float(overrides.get("router_aux_loss_coef") or next((value for value in nested if value), 0.0))

    return found(config_overrides(training))


def loop_settings(job: JobConfig, plan: RunPlan, *, hidden_size: int) -> LoopSettings:
    """What the loop decides by."""
    training = job.training
    return LoopSettings(
        plan=plan,
        advantages=AdvantageSettings(
            use_leave_one_out_baseline=training.use_leave_one_out_baseline,
            normalize_rewards=training.normalize_rewards,
            advantage_clip_low=training.advantage_clip_low,
            advantage_clip_high=training.advantage_clip_high,
        ),
        layout=LayoutSettings(
            strategy=training.batching_strategy,
            micro_batch_size=training.micro_batch_size,
            train_mb_tokens=plan.train_mb_tokens,
            sequence_length_round=training.sequence_length_round,
            data_parallel_size=plan.data_parallel_size,
            optimizer_steps=plan.optimizer_steps_per_step,
            hidden_size=hidden_size,
            needs_all_gradients=training.ref_policy_kl_penalty > 0 or router_aux_loss_coef(training) > 0,
        ),
        schedule=ScheduleSettings(
            optimizer_type=training.optimizer_type,
            learning_rate=training.learning_rate,
            min_learning_rate=plan.min_learning_rate,
            warmup_steps=plan.warmup_steps,
            num_steps=plan.num_steps,
        ),
        reward_scaling=training.reward_scaling,
        reward_shaping=training.reward_shaping,
        overlong_filtering=training.overlong_filtering,
        max_gen_batches=training.dynamic_sampling_max_gen_batches if training.use_dynamic_sampling else None,
        shuffle=training.shuffle,
        val_at_start=training.val_at_start,
        val_at_end=training.val_at_end,
        max_failed_share=job.engine.max_failed_share,
    )


def weight_transfer(plan: RunPlan, gpus: GpuLayout) -> TransferTarget | None:
    """How whole models go from GPU to GPU; None where weights go through files: adapters, and all on a CPU."""
    if not gpus.sampler or plan.lora is not None:
        return None
    return transfer_target(shares_gpus=gpus.shared, num_workers=len(gpus.sampler))


def generation_settings(
    job: JobConfig,
    plan: RunPlan,
    *,
    model_folder: Path,
    device: Literal["cpu", "cuda"],
    gpus: GpuLayout = NO_GPUS,
    transfer: TransferTarget | None = None,
) -> GenerationSettings:
    """What vLLM needs."""
    return GenerationSettings(
        model_folder=model_folder,
        sampling=plan.sampling,
        device=device,
        dtype=job.model.dtype,
        max_model_len=plan.max_model_len,
        max_num_seqs=job.gym.max_in_flight,
        tensor_parallel_size=plan.vllm_tensor_parallel_size,
        gpu_memory_utilization=job.training.vllm_gpu_memory_utilization,
        tool_call_parser=job.model.tool_call_parser,
        reasoning_parser=job.model.reasoning_parser,
        chat_template=job.model.chat_template,
        trust_remote_code=job.model.trust_remote_code,
        seed=plan.seed,
        config_overrides=config_overrides(job.training),
        gpus=gpus.sampler,
        shares_gpus=gpus.shared,
        lora_rank=plan.lora.rank if plan.lora is not None and device == "cuda" else None,
        transfer=transfer,
    )


def gym_settings(job: JobConfig, *, package: Path, cache: Path) -> GymSettings:
    """What the environment's servers need."""
    return GymSettings(
        package=package,
        version=job.gym.version,
        cache=cache,
        start_timeout_s=job.gym.start_timeout_s,
        rollout_timeout_s=job.gym.rollout_timeout_s,
        max_in_flight=job.gym.max_in_flight,
        max_rollout_turns=job.training.max_rollout_turns,
    )
