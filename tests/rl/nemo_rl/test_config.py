"""Every field of a job is found at the key that NeMo RL reads."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from launcher.compile import compile_plan
from launcher.rules import GAPS
from launcher.schema.job import JobConfig
from rl.nemo_rl.config import RunFiles, master_config

FILES = RunFiles(
    model="/models/base",
    chat_template=None,
    training_rows=Path("/data/training.jsonl"),
    validation_rows=Path("/data/validation.jsonl"),
    gym_configs=(Path("/env/configs/env.yaml"),),
    output=Path("/runs/one"),
)


def job(**training: Any) -> JobConfig:
    """A job with these training settings, dotted keys included."""
    tree: dict[str, Any] = {"model": "m", "dataset": "d", "environment": "e", "training": {"type": "grpo"}}
    for key, value in training.items():
        put(tree, f"training.{key}", value)
    return JobConfig.model_validate(tree)


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = value


def compiled(one: JobConfig, *, files: RunFiles = FILES, rows: int = 100, validation_rows: int = 10) -> dict[str, Any]:
    return master_config(one, compile_plan(one, num_training_rows=rows, num_validation_rows=validation_rows), files)


def at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[int(part)] if part.isdecimal() else config[part]
    return config


TIS = {"truncated_importance_sampling_type": "icepop", "truncated_importance_sampling_ratio": 5.0}
LORA = {"finetuning_type": "lora"}
DYNAMIC_SAMPLING = {"use_dynamic_sampling": True}
SHAPING = "grpo.reward_shaping"
SCALING = "grpo.reward_scaling"
LORA_CFG = "policy.dtensor_cfg.lora_cfg"

# Setting -> what it is set to, what else the job says, and what NeMo RL then finds where.
FOUND_AT: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("type", "grpo", {}, {"grpo.adv_estimator.name": "grpo"}),
    ("finetuning_type", "lora", {}, {f"{LORA_CFG}.enabled": True}),
    ("policy_backend", "dtensor", {}, {"policy.dtensor_cfg._v2": False}),
    ("policy_backend", "automodel", {}, {"policy.dtensor_cfg._v2": True}),
    ("epochs", 3, {}, {"grpo.max_num_epochs": 3, "grpo.max_num_steps": 75}),
    ("max_steps", 7, {}, {"grpo.max_num_steps": 7, "policy.scheduler.0.kwargs.T_max": 7}),
    ("learning_rate", 3e-6, {}, {"policy.optimizer.kwargs.lr": 3e-6}),
    ("min_learning_rate", 1e-7, {}, {"policy.scheduler.0.kwargs.eta_min": 1e-7}),
    ("optimizer_type", "adam_with_cosine_annealing", {}, {"policy.optimizer.name": "torch.optim.Adam"}),
    ("weight_decay", 0.1, {}, {"policy.optimizer.kwargs.weight_decay": 0.1}),
    ("adam_beta1", 0.8, {}, {"policy.optimizer.kwargs.betas.0": 0.8}),
    ("adam_beta2", 0.99, {}, {"policy.optimizer.kwargs.betas.1": 0.99}),
    ("adam_eps", 1e-8, {}, {"policy.optimizer.kwargs.eps": 1e-8}),
    ("warmup_steps", 5, {}, {"policy.scheduler.0.kwargs.total_iters": 5, "policy.scheduler.2.milestones": [5]}),
    ("max_grad_norm", 0.5, {}, {"policy.max_grad_norm": 0.5}),
    ("max_grad_norm", 0.0, {}, {"policy.max_grad_norm": None}),
    ("batch_size", 64, {}, {"policy.train_global_batch_size": 64, "grpo.num_prompts_per_step": 8}),
    (
        "micro_batch_size",
        2,
        {},
        {
            "policy.train_micro_batch_size": 2,
            "policy.logprob_batch_size": 2,
            "policy.generation_batch_size": 8,
            "policy.dynamic_batching.train_mb_tokens": 4096,
        },
    ),
    (
        "max_seq_length",
        512,
        {},
        {
            "policy.max_total_sequence_length": 512,
            "policy.generation.vllm_cfg.max_model_len": 512,
            "data.max_input_seq_length": 512,
            "policy.generation.max_new_tokens": 512,
        },
    ),
    ("max_new_tokens", 64, {}, {"policy.generation.max_new_tokens": 64}),
    ("num_generations_per_prompt", 4, {}, {"grpo.num_generations_per_prompt": 4, "grpo.num_prompts_per_step": 8}),
    ("num_prompts_per_step", 8, {}, {"grpo.num_prompts_per_step": 8}),
    (
        "temperature",
        0.7,
        {},
        {"policy.generation.temperature": 0.7, "policy.generation.val_temperature": 0.7},
    ),
    ("overlong_filtering", True, {}, {"grpo.overlong_filtering": True}),
    ("val_at_start", True, {}, {"grpo.val_at_start": True}),
    ("val_at_end", False, {}, {"grpo.val_at_end": False}),
    ("val_check_interval", 3.0, {}, {"grpo.val_period": 3}),
    ("ref_policy_kl_penalty", 0.1, {}, {"loss_fn.reference_policy_kl_penalty": 0.1}),
    ("ratio_clip_min", 0.1, {}, {"loss_fn.ratio_clip_min": 0.1}),
    ("ratio_clip_max", 0.4, {}, {"loss_fn.ratio_clip_max": 0.4}),
    ("ratio_clip_c", 3.0, {}, {"loss_fn.ratio_clip_c": 3.0}),
    ("advantage_clip_low", -2.0, {}, {"grpo.advantage_clip_low": -2.0}),
    ("advantage_clip_high", 2.0, {}, {"grpo.advantage_clip_high": 2.0}),
    (
        "normalize_rewards",
        False,
        {},
        {"grpo.adv_estimator.normalize_rewards": False, "grpo.normalize_rewards": False},
    ),
    (
        "use_leave_one_out_baseline",
        False,
        {},
        {"grpo.adv_estimator.use_leave_one_out_baseline": False, "grpo.use_leave_one_out_baseline": False},
    ),
    ("use_on_policy_kl_approximation", False, {}, {"loss_fn.use_on_policy_kl_approximation": False}),
    ("use_importance_sampling_correction", False, {}, {"loss_fn.use_importance_sampling_correction": False}),
    (
        "truncated_importance_sampling_type",
        "tis",
        {"truncated_importance_sampling_ratio": 2.0},
        {"loss_fn.truncated_importance_sampling_type": "tis"},
    ),
    ("truncated_importance_sampling_ratio", 2.0, TIS, {"loss_fn.truncated_importance_sampling_ratio": 2.0}),
    ("truncated_importance_sampling_ratio_min", 0.5, TIS, {"loss_fn.truncated_importance_sampling_ratio_min": 0.5}),
    ("use_dynamic_sampling", True, {}, {"grpo.use_dynamic_sampling": True}),
    ("dynamic_sampling_max_gen_batches", 4, DYNAMIC_SAMPLING, {"grpo.dynamic_sampling_max_gen_batches": 4}),
    ("batch_multiplier", 2.0, DYNAMIC_SAMPLING, {"grpo.batch_multiplier": 2.0}),
    (
        "reward_shaping.overlong_buffer_length",
        8,
        {"reward_shaping.overlong_buffer_penalty": 0.5, "reward_shaping.max_response_length": 64},
        {f"{SHAPING}.enabled": True, f"{SHAPING}.overlong_buffer_length": 8},
    ),
    ("reward_shaping.overlong_buffer_penalty", 0.5, {}, {f"{SHAPING}.overlong_buffer_penalty": 0.5}),
    ("reward_shaping.max_response_length", 64, {}, {f"{SHAPING}.max_response_length": 64}),
    ("reward_shaping.stop_properly_penalty_coef", 0.2, {}, {f"{SHAPING}.stop_properly_penalty_coef": 0.2}),
    ("reward_scaling.source_min", -1.0, {}, {f"{SCALING}.enabled": True, f"{SCALING}.source_min": -1.0}),
    ("reward_scaling.source_max", 2.0, {}, {f"{SCALING}.source_max": 2.0}),
    ("reward_scaling.target_min", -1.0, {}, {f"{SCALING}.target_min": -1.0}),
    ("reward_scaling.target_max", 2.0, {}, {f"{SCALING}.target_max": 2.0}),
    (
        "batching_strategy",
        "dynamic",
        {},
        {"policy.dynamic_batching.enabled": True, "policy.sequence_packing.enabled": False},
    ),
    (
        "batching_strategy",
        "sequence_packing",
        {},
        {"policy.dynamic_batching.enabled": False, "policy.sequence_packing.enabled": True},
    ),
    (
        "batching_strategy",
        "static",
        {},
        {"policy.dynamic_batching.enabled": False, "policy.sequence_packing.enabled": False},
    ),
    (
        "train_mb_tokens",
        9000,
        {},
        {"policy.dynamic_batching.train_mb_tokens": 9000, "policy.dynamic_batching.logprob_mb_tokens": 9000},
    ),
    ("sequence_length_round", 32, {}, {"policy.dynamic_batching.sequence_length_round": 32}),
    ("router_aux_loss_coef", 0.0, {}, {"policy.hf_config_overrides.router_aux_loss_coef": 0.0}),
    (
        "hf_config_overrides",
        {"text_config": {"router_aux_loss_coef": 0.0}},
        {},
        {"policy.hf_config_overrides.text_config.router_aux_loss_coef": 0.0},
    ),
    ("automodel_kwargs", {"force_hf": True}, {}, {"policy.dtensor_cfg.automodel_kwargs.force_hf": True}),
    (
        "vllm_tensor_parallel_size",
        2,
        {"parallelism.num_gpus_per_node": 4},
        {"policy.generation.vllm_cfg.tensor_parallel_size": 2},
    ),
    ("vllm_gpu_memory_utilization", 0.7, {}, {"policy.generation.vllm_cfg.gpu_memory_utilization": 0.7}),
    ("activation_checkpointing", True, {}, {"policy.dtensor_cfg.activation_checkpointing": True}),
    ("seed", 7, {}, {"grpo.seed": 7}),
    ("keep_top_k", 3, {}, {"checkpointing.keep_top_k": 3}),
    ("shuffle", False, {}, {"data.shuffle": False}),
    ("parallelism.num_nodes", 2, {}, {"cluster.num_nodes": 2}),
    ("parallelism.num_gpus_per_node", 8, {}, {"cluster.gpus_per_node": 8}),
    (
        "parallelism.tensor_parallel_size",
        2,
        {"parallelism.num_gpus_per_node": 2},
        {
            "policy.dtensor_cfg.tensor_parallel_size": 2,
            "policy.make_sequence_length_divisible_by": 2,
            "policy.generation.vllm_cfg.tensor_parallel_size": 2,
        },
    ),
    ("parallelism.context_parallel_size", 2, {}, {"policy.dtensor_cfg.context_parallel_size": 2}),
    ("parallelism.expert_parallel_size", 4, {}, {"policy.dtensor_cfg.expert_parallel_size": 4}),
    ("parallelism.sequence_parallel", True, {}, {"policy.dtensor_cfg.sequence_parallel": True}),
    ("lora.rank", 8, LORA, {f"{LORA_CFG}.dim": 8}),
    ("lora.alpha", 16, LORA, {f"{LORA_CFG}.alpha": 16}),
    ("lora.dropout", 0.1, LORA, {f"{LORA_CFG}.dropout": 0.1}),
    (
        "lora.target_modules",
        ["q_proj"],
        LORA,
        {f"{LORA_CFG}.target_modules": ["q_proj"], f"{LORA_CFG}.exclude_modules": []},
    ),
    ("lora.exclude_modules", ["*.mlp.*"], LORA, {f"{LORA_CFG}.exclude_modules": ["*.mlp.*", "lm_head"]}),
    ("lora.use_triton", False, LORA, {f"{LORA_CFG}.use_triton": False}),
]

# Settings outside ``training`` and where NeMo RL finds them.
FOUND_AT_ROOT: dict[str, tuple[Any, dict[str, Any]]] = {
    "name": ("first", {"logger.wandb.name": "first"}),
    "output.name": ("tuned", {"logger.wandb.name": "tuned"}),
    "model.dtype": ("float32", {"policy.precision": "float32", "policy.generation.vllm_cfg.precision": "float32"}),
    "model.tool_call_parser": (
        "hermes",
        {
            "policy.generation.vllm_cfg.http_server_serving_chat_kwargs.tool_parser": "hermes",
            "policy.generation.vllm_cfg.http_server_serving_chat_kwargs.enable_auto_tools": True,
        },
    ),
    "model.reasoning_parser": (
        "qwen3",
        {"policy.generation.vllm_cfg.http_server_serving_chat_kwargs.reasoning_parser": "qwen3"},
    ),
    "logger.wandb.enabled": (True, {"logger.wandb_enabled": True}),
    "logger.wandb.project": ("p", {"logger.wandb.project": "p"}),
    "logger.wandb.entity": ("e", {"logger.wandb.entity": "e"}),
    "logger.wandb.mode": ("offline", {"logger.wandb.mode": "offline"}),
    "logger.tensorboard": (True, {"logger.tensorboard_enabled": True}),
    "checkpoint.save_interval": (5, {"checkpointing.save_period": 5}),
}

REFUSED_BY_RULES = {
    "training.top_k",  # R27
    "training.max_rollout_turns",  # R27
    "training.parallelism.pipeline_parallel_size",  # R29
}

# Settings that reach NeMo RL through files, the environment or the command that starts it, and the test of each.
ELSEWHERE = {
    "model.name": "test_files_become_absolute_paths",
    "model.chat_template": "test_a_chat_template_is_given_only_when_there_is_one",
    "dataset": "test_files_become_absolute_paths",
    "environment.name": "test_files_become_absolute_paths",
    "environment.format": "read by the check of the package",
    "engine.name": "this engine",
    "engine.root": "tests of the checkout",
    "engine.runs_dir": "the run directory",
    "cluster.address": "tests of the launch",
    **{
        f"health.{verdict}": "tests of the run: it is judged by the metrics that NeMo RL logs"
        for verdict in ("no_spread", "entropy_collapse", "truncation", "sampler_drift", "reward_flat")
    },
    "model.trust_remote_code": "tests of the differences: NeMo RL runs a model's code in any case",
    "sandbox.cluster_capable": "read with sandbox.enabled, which is refused",
    "sandbox.job_storage_pvc_claim": "read with sandbox.enabled, which is refused",
    "sandbox.allow_internet": "read with sandbox.enabled, which is refused",
    "sandbox.public_dns_allow": "read with sandbox.enabled, which is refused",
}


def leaf_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted keys of every setting of the schema."""
    for name, field in model.model_fields.items():
        annotations = [field.annotation, *getattr(field.annotation, "__args__", ())]
        section = next((a for a in annotations if isinstance(a, type) and issubclass(a, BaseModel)), None)
        yield from leaf_keys(section, f"{prefix}{name}.") if section else [f"{prefix}{name}"]


def test_every_setting_has_a_key_a_rule_or_a_reason():
    accounted = (
        {f"training.{setting}" for setting, *_ in FOUND_AT}
        | FOUND_AT_ROOT.keys()
        | ELSEWHERE.keys()
        | REFUSED_BY_RULES
        | {gap.key for gap in GAPS if gap.engine == "nemo_rl"}
    )
    assert set(leaf_keys(JobConfig)) - accounted == set()
    assert accounted - set(leaf_keys(JobConfig)) == set()


@pytest.mark.parametrize(
    ("setting", "value", "others", "expected"), FOUND_AT, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_training_setting_is_found_at_its_key(
    setting: str, value: Any, others: dict[str, Any], expected: dict[str, Any]
):
    config = compiled(job(**{**others, setting: value}))
    assert {key: at(config, key) for key in expected} == expected


@pytest.mark.parametrize("setting", FOUND_AT_ROOT)
def test_another_setting_is_found_at_its_key(setting: str):
    value, expected = FOUND_AT_ROOT[setting]
    tree: dict[str, Any] = {"model": {"name": "m"}, "dataset": "d", "environment": "e", "training": {"type": "grpo"}}
    put(tree, setting, value)
    config = compiled(JobConfig.model_validate(tree))
    assert {key: at(config, key) for key in expected} == expected


def test_files_become_absolute_paths():
    config = compiled(job())
    assert at(config, "policy.model_name") == at(config, "policy.tokenizer.name") == "/models/base"
    assert at(config, "data.train.data_path") == "/data/training.jsonl"
    assert at(config, "data.validation.data_path") == "/data/validation.jsonl"
    assert at(config, "env.nemo_gym.config_paths") == ["/env/configs/env.yaml"]
    assert at(config, "checkpointing.checkpoint_dir") == "/runs/one/checkpoints"


def test_a_chat_template_is_given_only_when_there_is_one():
    # An explicit null is a passthrough template in one version and refused by the other.
    assert "chat_template" not in compiled(job())["policy"]["tokenizer"]
    files = RunFiles(
        model="m",
        chat_template="{{ messages }}",
        training_rows=Path("t"),
        validation_rows=None,
        gym_configs=(),
        output=Path("o"),
    )
    assert compiled(job(), files=files)["policy"]["tokenizer"]["chat_template"] == "{{ messages }}"


def test_without_validation_rows_nothing_asks_for_validation():
    files = RunFiles(
        model="m", chat_template=None, training_rows=Path("t"), validation_rows=None, gym_configs=(), output=Path("o")
    )
    config = compiled(job(val_at_start=True), files=files, validation_rows=0)
    expected = {"val_at_start": False, "val_at_end": False, "val_period": 0}
    assert {key: config["grpo"][key] for key in expected} == expected
    assert config["data"]["validation"] is None
    assert config["checkpointing"]["metric_name"] is None


def test_steps_are_full_batches():
    # 100 rows, 8 prompts a step: 12 steps an epoch, 4 rows left over.
    assert compiled(job(batch_size=64, epochs=2))["grpo"]["max_num_steps"] == 24


def test_the_adapter_never_covers_lm_head():
    lora = compiled(job(**LORA))["policy"]["dtensor_cfg"]["lora_cfg"]
    assert (lora["match_all_linear"], lora["exclude_modules"]) == (False, ["lm_head"])


def test_checkpoint_format_depends_on_the_worker():
    assert compiled(job())["checkpointing"]["model_save_format"] == "safetensors"
    assert "model_save_format" not in compiled(job(**LORA))["checkpointing"]
    assert "save_consolidated" not in compiled(job(policy_backend="dtensor"))["checkpointing"]


def test_the_last_step_is_saved_when_no_interval_is_set():
    assert compiled(job())["checkpointing"]["save_period"] == 25


# Keys that a public version requires, or reads without asking, beyond those above: 0.7.0 and the main branch after it.
REQUIRED = {
    "0.7.0": {"grpo.seq_logprob_error_threshold": None, "grpo.max_val_samples": None},
    "main": {
        "grpo.max_val_samples": None,
        "policy.generation.val_temperature": 1.0,
        "policy.generation.val_top_p": 1.0,
        "policy.generation.val_top_k": None,
    },
    "unguarded": {
        "checkpointing.keep_top_k": 1,
        "checkpointing.save_optimizer": True,
        "checkpointing.checkpoint_must_save_by": None,
        "policy.sequence_packing.enabled": False,
        "policy.max_grad_norm": 1.0,
        "policy.logprob_batch_size": 1,
        "policy.optimizer.name": "torch.optim.AdamW",
        "policy.offload_optimizer_for_logprob": False,
        "data.use_multiple_dataloader": False,
        "data.num_workers": 1,
        "policy.generation.colocated.enabled": True,
        "logger.wandb.name": "m-d",
        "logger.gpu_monitoring.collection_interval": 10,
        "env.nemo_gym.config_paths": ["/env/configs/env.yaml"],
    },
}


@pytest.mark.parametrize("version", REQUIRED)
def test_one_config_has_what_each_version_requires(version: str):
    config = compiled(job())
    assert {key: at(config, key) for key in REQUIRED[version]} == REQUIRED[version]


def test_sampling_stays_what_the_loss_models():
    generation: Mapping[str, Any] = compiled(job())["policy"]["generation"]
    assert (generation["top_p"], generation["top_k"], generation["stop_strings"]) == (1.0, None, None)
