"""Cross-field rules: each one function, all run, all their problems reported together.

JobConfig, Facts --(every Rule)--> Problem, Problem, ...
"""

from collections.abc import Set
from typing import Final

from launcher.facts import Facts
from launcher.rules import adapters, batches, learning, parallel, resources
from launcher.rules.base import Rule
from launcher.rules.gaps import GAPS
from launcher.schema.job import JobConfig
from launcher.schema.problems import Problem

_T = "training."
_P = "training.parallelism."
_TIS = "training.truncated_importance_sampling"

RULES: Final[tuple[Rule, ...]] = (
    Rule(code="R01", title="a lora block goes with LoRA", check=adapters.lora_block_has_lora,
         reads=(_T + "lora", _T + "finetuning_type")),
    Rule(code="R02", title="Triton LoRA kernels go with whole adapters", check=adapters.triton_has_whole_adapters,
         reads=(_T + "lora.use_triton", _P + "tensor_parallel_size")),
    Rule(code="R03", title="dtensor goes with stock modules", check=adapters.dtensor_suffices,
         reads=(_T + "policy_backend", _T + "finetuning_type", _P + "expert_parallel_size", _T + "automodel_kwargs")),
    Rule(code="R04", title="the router loss is set once", check=adapters.router_loss_is_set_once,
         reads=(_T + "router_aux_loss_coef", _T + "hf_config_overrides")),
    Rule(code="R05", title="a response fits a sequence", check=batches.response_fits,
         reads=(_T + "max_new_tokens", _T + "max_seq_length")),
    Rule(code="R06", title="a micro-batch holds a sequence", check=batches.micro_batch_holds_a_sequence,
         reads=(_T + "train_mb_tokens", _T + "max_seq_length")),
    Rule(code="R07", title="sequence packing suits model and layout", check=parallel.packing_suits_the_model,
         reads=(_T + "batching_strategy", _P + "context_parallel_size")),
    Rule(code="R08", title="a step is whole batches", check=batches.step_is_whole_batches,
         reads=(_T + "num_prompts_per_step", _T + "num_generations_per_prompt", _T + "batch_size")),
    Rule(code="R09", title="ranks divide into groups", check=parallel.ranks_divide,
         reads=(_P + "num_nodes", _P + "num_gpus_per_node", _P + "tensor_parallel_size", _P + "context_parallel_size",
                _P + "expert_parallel_size")),
    Rule(code="R10", title="a batch divides over ranks", check=batches.batch_splits_over_ranks,
         reads=(_T + "batch_size", _T + "micro_batch_size", _P + "num_nodes", _P + "num_gpus_per_node",
                _P + "tensor_parallel_size", _P + "context_parallel_size")),
    Rule(code="R11", title="a sampler fits a node", check=parallel.sampler_fits_a_node,
         reads=(_T + "vllm_tensor_parallel_size", _P + "num_nodes", _P + "num_gpus_per_node",
                _P + "tensor_parallel_size")),
    Rule(code="R12", title="a group has a spread", check=learning.group_has_spread,
         reads=(_T + "num_generations_per_prompt", _T + "use_leave_one_out_baseline")),
    Rule(code="R13", title="advantage bounds enclose 0", check=learning.advantage_bounds_enclose_zero,
         reads=(_T + "advantage_clip_low", _T + "advantage_clip_high")),
    Rule(code="R14", title="truncated importance sampling is complete",
         check=learning.importance_truncation_is_complete,
         reads=(_TIS + "_type", _TIS + "_ratio", _TIS + "_ratio_min", _T + "use_importance_sampling_correction")),
    Rule(code="R15", title="batch_multiplier goes with dynamic sampling",
         check=learning.multiplier_has_dynamic_sampling, reads=(_T + "batch_multiplier", _T + "use_dynamic_sampling")),
    Rule(code="R16", title="reward shaping is one penalty", check=learning.reward_shaping_is_one_penalty,
         reads=(_T + "reward_shaping",)),
    Rule(code="R17", title="reward ranges are ordered", check=learning.reward_ranges_are_ordered,
         reads=(_T + "reward_scaling",)),
    Rule(code="R18", title="the sequence is split once", check=parallel.context_parallel_without_sequence_parallel,
         reads=(_P + "context_parallel_size", _P + "sequence_parallel", _P + "tensor_parallel_size")),
    Rule(code="R19", title="the schedule fits the run", check=batches.schedule_fits,
         reads=(_T + "min_learning_rate", _T + "learning_rate", _T + "warmup_steps", _T + "max_steps", _T + "epochs",
                _T + "batch_size", _T + "num_generations_per_prompt", _T + "num_prompts_per_step",
                _T + "batch_multiplier")),
    Rule(code="R20", title="module lists match the model", check=adapters.module_lists_match,
         reads=(_T + "lora.target_modules", _T + "lora.exclude_modules")),
    Rule(code="R21", title="sampling explores", check=learning.sampling_explores,
         reads=(_T + "top_k", _T + "temperature")),
    Rule(code="R22", title="validation has rows", check=batches.validation_has_rows,
         reads=(_T + "val_at_start", _T + "val_check_interval", "dataset")),
    Rule(code="R23", title="references lead somewhere", check=resources.references_lead_somewhere,
         reads=("model", "dataset", "environment")),
    Rule(code="R24", title="adapters are not merged", check=adapters.adapters_stay_apart,
         reads=(_T + "finetuning_type",)),
    Rule(code="R25", title="automodel has its hardware", check=resources.automodel_has_its_hardware,
         reads=(_T + "policy_backend", _T + "automodel_kwargs", "cluster.device", "engine.name")),
    Rule(code="R26", title="the engine spans the nodes", check=parallel.engine_spans_the_nodes,
         reads=(_P + "num_nodes", "engine.name")),
    Rule(code="R27", title="NeMo RL takes the sampling", check=resources.nemo_rl_takes_the_sampling,
         reads=(_T + "top_k", _T + "max_rollout_turns", "engine.name")),
    Rule(code="R28", title="rows fill a step", check=batches.rows_fill_a_step,
         reads=("dataset", _T + "num_prompts_per_step", _T + "num_generations_per_prompt", _T + "batch_size",
                _T + "batch_multiplier")),
    Rule(code="R29", title="no pipeline", check=parallel.no_pipeline, reads=(_P + "pipeline_parallel_size",)),
    Rule(code="R30", title="the engine implements every setting", check=resources.engine_implements_it,
         reads=("engine.name",)),
    Rule(code="R31", title="tools and reasoning have parsers", check=resources.tools_have_a_parser,
         reads=("model.tool_call_parser", "model.reasoning_parser", "dataset", "environment")),
    Rule(code="R32", title="agents have the limit that is set", check=resources.agent_limits_turns,
         reads=(_T + "max_rollout_turns", "environment")),
    Rule(code="R33", title="a sandbox is available", check=resources.sandbox_is_available,
         reads=("sandbox.enabled", "sandbox.cluster_capable", "sandbox.job_storage_pvc_claim",
                "sandbox.public_dns_allow", "sandbox.allow_internet")),
    Rule(code="R34", title="overrides name keys of the model's config", check=adapters.overrides_name_config_keys,
         reads=(_T + "hf_config_overrides", "model")),
    Rule(code="R35", title="the device is here", check=resources.device_is_here,
         reads=("cluster.device", "engine.name")),
    Rule(code="R36", title="the router loss goes with routers", check=adapters.router_loss_has_routers,
         reads=(_T + "router_aux_loss_coef", "model")),
    Rule(code="R37", title="tensor parallel suits the model", check=parallel.tensor_parallel_suits_the_model,
         reads=(_P + "tensor_parallel_size", _T + "vllm_tensor_parallel_size", "model", "engine.name")),
)  # fmt: skip


def check_rules(job: JobConfig, facts: Facts, *, broken: Set[str] = frozenset()) -> tuple[Problem, ...]:
    """Every problem that relates several settings, in the order of the rules.

    Args:
        job: a job whose fields are valid one by one.
        facts: what is known of files and machine.
        broken: dotted keys whose value stands in for an invalid one; what depends on them is left out.
    """
    return tuple(problem for rule in RULES for problem in rule.problems(job, facts, broken=broken))


def rule(code: str) -> Rule | None:
    """The rule of that code, in any case of letters."""
    return next((rule for rule in RULES if rule.code == code.upper()), None)


__all__ = ["GAPS", "RULES", "Rule", "check_rules", "rule"]
