"""Every rule: a job that breaks it, and one that just does not."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from launcher.facts import DeviceFacts, EnvironmentFacts, Facts, ModelFacts
from launcher.origins import touches
from launcher.rules import RULES, check_rules
from launcher.schema.job import JobConfig
from launcher.schema.problems import Problem

T, P = "training.", "training.parallelism."
TIS = T + "truncated_importance_sampling"
LORA = {T + "finetuning_type": "lora"}
AMPERE = DeviceFacts(kind="cuda", name="A100", memory_bytes=80 * 2**30, compute_capability=(8, 0))
HOPPER = DeviceFacts(kind="cuda", name="H100", memory_bytes=80 * 2**30, compute_capability=(9, 0))
CPU = DeviceFacts(kind="cpu", name="CPU", memory_bytes=1)
LLAMA = ModelFacts(config={"model_type": "llama"}, tensors={"model.layers.0.mlp.up_proj.weight": (8, 4)})
EXPERTS = ModelFacts(config={"model_type": "qwen3_moe", "router_aux_loss_coef": 0.001})
VISION = ModelFacts(config={"model_type": "qwen3_vl", "vision_config": {}})
SMOLLM2 = ModelFacts(
    config={"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536}
)
MISSING = Problem(code="no-package", path="environment", message="'e' does not exist", fix="give a path")

Case = tuple[str, str, dict[str, Any], dict[str, Any], str]
"""Rule, key the problem stands at, settings that break it, settings that just do not, words of the message."""

CASES: list[Case] = [
    ("R01", T + "lora", {T + "lora": {"rank": 8}}, {T + "lora": {"rank": 8}, **LORA}, "all_weights"),
    ("R02", T + "lora.use_triton",
     {**LORA, T + "lora": {"use_triton": True}, P + "tensor_parallel_size": 2, P + "num_gpus_per_node": 2},
     {**LORA, T + "lora": {"use_triton": True}}, "sharded"),
    ("R03", T + "policy_backend",
     {T + "policy_backend": "dtensor", **LORA, P + "expert_parallel_size": 2, P + "num_gpus_per_node": 2,
      T + "automodel_kwargs": {"force_hf": True}},
     {T + "policy_backend": "dtensor"},
     "finetuning_type: lora, parallelism.expert_parallel_size: 2, automodel_kwargs"),
    ("R04", T + "router_aux_loss_coef",
     {T + "router_aux_loss_coef": 0.0, T + "hf_config_overrides": {"router_aux_loss_coef": 0.0}},
     {T + "router_aux_loss_coef": 0.0, T + "hf_config_overrides": {"text_config": {"router_aux_loss_coef": 0.0}}},
     "top-level key"),
    ("R05", T + "max_new_tokens", {T + "max_new_tokens": 2049}, {T + "max_new_tokens": 2048}, "2049 is above"),
    ("R06", T + "train_mb_tokens", {T + "train_mb_tokens": 2047}, {T + "train_mb_tokens": 2048}, "2047 is below"),
    ("R07", T + "batching_strategy",
     {T + "batching_strategy": "sequence_packing", P + "context_parallel_size": 2, P + "num_gpus_per_node": 2},
     {T + "batching_strategy": "sequence_packing"}, "context_parallel_size 2"),
    ("R08", T + "batch_size", {T + "num_generations_per_prompt": 6}, {T + "num_generations_per_prompt": 16},
     "5 prompts × 6 generations = 30 rollouts"),
    ("R09", "training.parallelism", {P + "num_gpus_per_node": 3, P + "tensor_parallel_size": 2},
     {P + "num_gpus_per_node": 4, P + "tensor_parallel_size": 2}, "3 ranks (1 nodes × 3) are not divisible"),
    ("R10", T + "batch_size", {P + "num_gpus_per_node": 3}, {P + "num_gpus_per_node": 4}, "(1 × 3 = 3)"),
    ("R11", T + "vllm_tensor_parallel_size", {T + "vllm_tensor_parallel_size": 2},
     {T + "vllm_tensor_parallel_size": 2, P + "num_gpus_per_node": 2}, "2 is above num_gpus_per_node (1)"),
    ("R12", T + "num_generations_per_prompt", {T + "num_generations_per_prompt": 1},
     {T + "num_generations_per_prompt": 2}, "no spread"),
    ("R13", T + "advantage_clip_low", {T + "advantage_clip_low": 0.0, T + "advantage_clip_high": 0.0},
     {T + "advantage_clip_low": 0.0, T + "advantage_clip_high": 1.0}, "not below"),
    ("R14", TIS + "_ratio", {TIS + "_ratio": 2.0}, {TIS + "_ratio": 2.0, TIS + "_type": "tis"}, "no effect"),
    ("R15", T + "batch_multiplier", {T + "batch_multiplier": 1.5},
     {T + "batch_multiplier": 1.5, T + "use_dynamic_sampling": True}, "no effect"),
    ("R16", T + "reward_shaping", {T + "reward_shaping": {}},
     {T + "reward_shaping": {"stop_properly_penalty_coef": 0.0}}, "names no penalty"),
    ("R17", T + "reward_scaling.source_min", {T + "reward_scaling": {"source_min": 1.0}},
     {T + "reward_scaling": {"source_min": 0.99}}, "1 is not below source_max (1)"),
    ("R18", P + "sequence_parallel",
     {P + "context_parallel_size": 2, P + "tensor_parallel_size": 2, P + "sequence_parallel": True,
      P + "num_gpus_per_node": 4},
     {P + "context_parallel_size": 2, P + "sequence_parallel": True, P + "num_gpus_per_node": 4},
     "context_parallel_size 2"),
    ("R19", T + "min_learning_rate", {T + "min_learning_rate": 2e-6}, {T + "min_learning_rate": 1e-6}, "is above"),
    ("R20", T + "lora.exclude_modules",
     {**LORA, T + "lora": {"target_modules": ["a"], "exclude_modules": ["b"]}},
     {**LORA, T + "lora": {"target_modules": ["a"]}}, "together with target_modules"),
    ("R21", T + "temperature", {T + "temperature": 0.009}, {T + "temperature": 0.01}, "greedy"),
    ("R24", T + "finetuning_type", {T + "finetuning_type": "lora_merged"}, LORA, "does not merge"),
    ("R26", P + "num_nodes", {P + "num_nodes": 2}, {P + "num_nodes": 2, "engine.name": "nemo_rl"}, "one machine"),
    ("R27", T + "top_k", {T + "top_k": 50, "engine.name": "nemo_rl"}, {T + "top_k": 50}, "refuses top_k"),
    ("R29", P + "pipeline_parallel_size", {P + "pipeline_parallel_size": 2}, {P + "pipeline_parallel_size": 1},
     "no policy backend"),
    ("R30", "sandbox.enabled", {"sandbox.enabled": True, T + "policy_backend": "dtensor"},
     {"sandbox.enabled": False, T + "policy_backend": "dtensor"}, "does not implement a sandbox"),
    ("R33", "sandbox.cluster_capable", {"sandbox.enabled": True, "sandbox.job_storage_pvc_claim": "claim"},
     {"sandbox.enabled": True, "sandbox.job_storage_pvc_claim": "claim", "sandbox.cluster_capable": True},
     "OpenSandbox is not yet available on this cluster"),
]  # fmt: skip

FACT_CASES: list[tuple[str, str, dict[str, Any], Facts, Facts, str]] = [
    ("R07", T + "batching_strategy", {T + "batching_strategy": "sequence_packing"}, Facts(model=VISION),
     Facts(model=LLAMA), "multimodal model (qwen3_vl)"),
    ("R19", T + "warmup_steps", {T + "warmup_steps": 3}, Facts(num_training_rows=12), Facts(num_training_rows=16),
     "3 is not below the 3 steps"),
    ("R20", T + "lora.target_modules", {**LORA, T + "lora": {"target_modules": ["up_proj", "q_porj"]}},
     Facts(model=LLAMA), Facts(), "'q_porj' matches none of the model's 1 linear layers (up_proj: 1, q_porj: 0)"),
    ("R20", T + "lora.target_modules", {**LORA, T + "lora": {"target_modules": ["k_proj"]}},
     Facts(model=LLAMA), Facts(), "'k_proj' matches none"),
    ("R34", T + "hf_config_overrides", {T + "hf_config_overrides": {"no_such_key": 1}}, Facts(model=LLAMA),
     Facts(model=ModelFacts(config={"model_type": "llama", "no_such_key": 0})), "no_such_key is no key"),
    ("R36", T + "router_aux_loss_coef", {T + "router_aux_loss_coef": 0.0}, Facts(model=LLAMA), Facts(model=EXPERTS),
     "(llama): it has no routers to balance"),
    ("R37", P + "tensor_parallel_size", {P + "tensor_parallel_size": 2, P + "num_gpus_per_node": 2},
     Facts(model=SMOLLM2), Facts(model=LLAMA), "2 does not divide both the model's 9 attention heads and its 3"),
    ("R37", T + "vllm_tensor_parallel_size", {T + "vllm_tensor_parallel_size": 2, P + "num_gpus_per_node": 2},
     Facts(model=SMOLLM2), Facts(model=LLAMA), "2 does not divide the model's 9 attention heads"),
    ("R36", T + "router_aux_loss_coef", {T + "router_aux_loss_coef": 0.01},
     Facts(model=ModelFacts(config={"model_type": "none", "text_config": EXPERTS.config})), Facts(model=EXPERTS),
     "is no top-level key of the model's config (none)"),
    ("R22", T + "val_at_start", {T + "val_at_start": True}, Facts(num_validation_rows=0),
     Facts(num_validation_rows=1), "validation is off"),
    ("R23", "environment", {}, Facts(unreachable=(MISSING,)), Facts(), "does not exist"),
    ("R23", "environment.format", {"environment.format": "wheels-v1"},
     Facts(environment=EnvironmentFacts(format="native-v1")), Facts(environment=EnvironmentFacts(format="wheels-v1")),
     "the package declares native-v1"),
    ("R25", T + "policy_backend", {}, Facts(device=AMPERE), Facts(device=HOPPER), "A100 is 8.0"),
    ("R35", "cluster.device", {"cluster.device": "cuda"}, Facts(has_no_cuda=True), Facts(device=HOPPER),
     "this machine has no CUDA device"),
    ("R28", "dataset", {}, Facts(num_training_rows=3), Facts(num_training_rows=4), "a step takes 4"),
    ("R31", "model.tool_call_parser", {}, Facts(num_rows_with_tools=2), Facts(num_rows_with_tools=0),
     "2 rows carry tools"),
    ("R32", T + "max_rollout_turns", {T + "max_rollout_turns": 3},
     Facts(environment=EnvironmentFacts(format="native-v1", agents_without_turn_limit={"a": "my_agent"})),
     Facts(environment=EnvironmentFacts(format="native-v1")), "agent a (my_agent)"),
]  # fmt: skip

MakeJob = Callable[[dict[str, Any]], JobConfig]


def found(code: str, job: JobConfig, facts: Facts) -> list[Problem]:
    return [problem for problem in check_rules(job, facts) if problem.code == code]


@pytest.mark.parametrize(("code", "path", "breaking", "keeping", "words"), CASES, ids=[c[0] for c in CASES])
def test_rule_on_settings(make_job: MakeJob, code: str, path: str, breaking: Any, keeping: Any, words: str) -> None:
    problems = found(code, make_job(breaking), Facts())
    assert [p.path for p in problems] == [path]
    assert words in problems[0].message
    assert problems[0].fix
    assert found(code, make_job(keeping), Facts()) == []


@pytest.mark.parametrize(
    ("code", "path", "settings", "breaking", "keeping", "words"), FACT_CASES, ids=[c[0] for c in FACT_CASES]
)
def test_rule_on_facts(
    make_job: MakeJob, code: str, path: str, settings: Any, breaking: Facts, keeping: Facts, words: str
) -> None:
    problems = found(code, make_job(settings), breaking)
    assert [p.path for p in problems] == [path]
    assert words in problems[0].message
    assert found(code, make_job(settings), keeping) == []
    assert found(code, make_job(settings), Facts()) == [], "a rule whose fact is unknown is silent"


def test_an_adapter_of_no_layer_is_refused(make_job: MakeJob) -> None:
    job = make_job({**LORA, T + "lora": {"target_modules": []}})
    assert ["no layer would be adapted" in p.message for p in found("R20", job, Facts())] == [True]


@pytest.mark.parametrize("pattern", ["lm_head", "*head", "*"])
def test_an_adapter_of_the_output_head_is_refused(make_job: MakeJob, pattern: str) -> None:
    job = make_job({**LORA, T + "lora": {"target_modules": [pattern]}})
    for facts in (Facts(), Facts(model=LLAMA)):
        assert ["is never adapted" in p.message for p in found("R20", job, facts)] == [True]


@pytest.mark.parametrize(
    ("overrides", "messages", "fix"),
    [
        ({"rope_thta": 1.0}, ["rope_thta is no key of the model's config (none)"], "did you mean rope_theta?"),
        ({"text_config": {"hiden": 1}}, ["text_config.hiden is no key of the model's config (inner)"],
         "did you mean text_config.hidden?"),
        ({"text_config": {"hidden": 1}, "rope_parameters": {"factor": 2.0}}, [], ""),
    ],
)  # fmt: skip
def test_overrides_of_the_model_config(make_job: MakeJob, overrides: Any, messages: list[str], fix: str) -> None:
    """A nested config is looked into; another mapping is a value like any other."""
    config = {"model_type": "none", "rope_theta": 1.0, "rope_parameters": {"rope_type": "default"},
              "text_config": {"model_type": "inner", "hidden": 8}}  # fmt: skip
    problems = found("R34", make_job({T + "hf_config_overrides": overrides}), Facts(model=ModelFacts(config=config)))
    assert [p.message for p in problems] == messages
    assert all(p.fix == fix for p in problems)


def test_a_nested_router_loss_is_pointed_at(make_job: MakeJob) -> None:
    config = {"model_type": "none", "text_config": EXPERTS.config}
    (problem,) = found("R36", make_job({T + "router_aux_loss_coef": 0.01}), Facts(model=ModelFacts(config=config)))
    assert problem.fix == "set training.hf_config_overrides.text_config.router_aux_loss_coef=0.01 instead"


def test_keys_that_config_json_leaves_out_may_be_overridden(make_job: MakeJob) -> None:
    job = make_job({T + "hf_config_overrides": {"attention_dropout": 0.1}})
    assert found("R34", job, Facts(model=LLAMA)) == []


def test_arguments_for_automodel_have_no_effect_on_a_cpu(make_job: MakeJob) -> None:
    job = make_job({T + "automodel_kwargs": {"use_liger_kernel": False}})
    errors = [p for p in found("R25", job, Facts(device=CPU)) if p.severity == "error"]
    assert [p.path for p in errors] == [T + "automodel_kwargs"]
    assert "no effect on a CPU, where stock modules run (use_liger_kernel)" in errors[0].message
    assert found("R25", job, Facts(device=HOPPER)) == []


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in RULES} == {case[0] for case in CASES} | {case[0] for case in FACT_CASES}


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({T + "num_generations_per_prompt": 6}, "set training.num_generations_per_prompt=4 or 8, or "
         "training.batch_size=30 or 36"),
        ({T + "num_prompts_per_step": 5}, "set training.num_prompts_per_step=4 or 8"),
        ({T + "num_prompts_per_step": 3, T + "num_generations_per_prompt": 12},
         "set training.num_prompts_per_step=8"),
    ],
)  # fmt: skip
def test_a_step_that_is_no_whole_batches_gets_the_nearest_that_is(make_job: MakeJob, settings: Any, fix: str) -> None:
    assert [p.fix for p in found("R08", make_job(settings), Facts())] == [fix]


@pytest.mark.parametrize(
    ("settings", "paths"),
    [
        ({TIS + "_type": "icepop"}, [TIS + "_ratio", TIS + "_ratio_min"]),
        ({TIS + "_type": "tis", TIS + "_ratio": 2.0, TIS + "_ratio_min": 3.0}, [TIS + "_ratio_min"]),
        ({TIS + "_type": "tis", TIS + "_ratio": 2.0, T + "use_importance_sampling_correction": False},
         [T + "use_importance_sampling_correction"]),
        ({TIS + "_type": "seq-mask-tis", TIS + "_ratio": 2.0, TIS + "_ratio_min": 0.5}, []),
    ],
)  # fmt: skip
def test_truncated_importance_sampling(make_job: MakeJob, settings: Any, paths: list[str]) -> None:
    assert [p.path for p in found("R14", make_job(settings), Facts())] == paths


@pytest.mark.parametrize(
    ("shaping", "words"),
    [
        ({"overlong_buffer_length": 8}, "lacks overlong_buffer_penalty, max_response_length"),
        ({"overlong_buffer_length": 9, "overlong_buffer_penalty": 1.0, "max_response_length": 8}, "9 is above"),
        ({"overlong_buffer_length": 8, "overlong_buffer_penalty": 1.0, "max_response_length": 8,
          "stop_properly_penalty_coef": 0.5}, "has both"),
    ],
)  # fmt: skip
def test_reward_shaping(make_job: MakeJob, shaping: Any, words: str) -> None:
    problems = found("R16", make_job({T + "reward_shaping": shaping}), Facts())
    assert len(problems) == 1
    assert words in problems[0].message


def test_advantage_bound_on_the_wrong_side_of_zero(make_job: MakeJob) -> None:
    low = found("R13", make_job({T + "advantage_clip_low": 0.1}), Facts())
    high = found("R13", make_job({T + "advantage_clip_high": -0.1}), Facts())
    assert ["every advantage becomes positive" in p.message for p in low] == [True]
    assert ["every advantage becomes negative" in p.message for p in high] == [True]


def test_expert_parallel_lies_inside_the_data_parallel_size(make_job: MakeJob) -> None:
    breaking = make_job({P + "num_gpus_per_node": 8, P + "tensor_parallel_size": 2, P + "expert_parallel_size": 8})
    keeping = make_job({P + "num_gpus_per_node": 8, P + "tensor_parallel_size": 2, P + "expert_parallel_size": 4})
    assert [p.path for p in found("R09", breaking, Facts())] == [P + "expert_parallel_size"]
    assert found("R09", keeping, Facts()) == []


def test_batch_is_divided_by_data_parallel_ranks_however_experts_are_spread(make_job: MakeJob) -> None:
    job = make_job({P + "num_gpus_per_node": 8, P + "expert_parallel_size": 8, T + "batch_size": 4,
                    T + "num_generations_per_prompt": 4})  # fmt: skip
    assert ["(1 × 8 = 8)" in p.message for p in found("R10", job, Facts())] == [True]


def test_automodel_on_a_cpu_is_said_once_and_allowed(make_job: MakeJob) -> None:
    problems = found("R25", make_job({}), Facts(device=CPU))
    assert [p.severity for p in problems] == ["warning"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, None),
        ({"intermediate_size": 1537}, "3 does not divide the model's intermediate_size (1537)"),
        ({"model_type": "gpt2"}, "transformers has no tensor-parallel plan for the model"),
        ({"model_type": "qwen3_moe"}, "splits the model's layers.*.mlp.experts.gate_up_proj as 'packed_colwise'"),
        ({"model_type": "of_somebody"}, None),
    ],
)
def test_layers_are_split_as_the_models_plan_says(config: dict[str, Any], words: str | None, make_job: MakeJob) -> None:
    model = ModelFacts(config={**SMOLLM2.config, **config})
    three = {P + "tensor_parallel_size": 3, P + "num_gpus_per_node": 3}
    job = make_job({**three, T + "policy_backend": "dtensor"})
    problems = found("R37", job, Facts(model=model))
    assert [words in problem.message for problem in problems if words] == [True] * len(problems)
    assert len(problems) == (words is not None)
    assert found("R30", job, Facts(model=model)) == []
    assert found("R37", make_job({**three, "engine.name": "nemo_rl"}), Facts(model=model)) == []


def test_rules_that_read_a_broken_key_are_silent(make_job: MakeJob) -> None:
    job = make_job({T + "max_new_tokens": 4096, T + "num_generations_per_prompt": 1})
    codes = {p.code for p in check_rules(job, Facts(), broken={"training.max_seq_length"})}
    assert "R05" not in codes
    assert "R12" in codes


class Reading:
    """Stands for a section of a job and writes down which of its settings are looked at."""

    def __init__(self, section: BaseModel, prefix: str, seen: set[str]):
        self._section, self._prefix, self._seen = section, prefix, seen

    def __getattr__(self, name: str) -> Any:
        value, key = getattr(self._section, name), f"{self._prefix}{name}"
        if isinstance(value, BaseModel):
            return Reading(value, f"{key}.", self._seen)
        self._seen.add(key)
        return value


def test_rules_say_what_they_read(make_job: MakeJob) -> None:
    """Else a rule would judge a stand-in for a broken value, or a sweep would be refused for what varies in it."""
    cases = [(code, settings, Facts()) for code, _, *both, _ in CASES for settings in both]
    cases += [(code, settings, facts) for code, _, settings, *both, _ in FACT_CASES for facts in both]
    cases.append(("R25", {T + "automodel_kwargs": {"a": 1}}, Facts(device=CPU)))
    for code, settings, facts in cases:
        rule = next(rule for rule in RULES if rule.code == code)
        if rule.code == "R30":  # looks at one setting at a time, the one it reports
            continue
        seen: set[str] = set()
        list(rule.check(Reading(make_job(settings), "", seen), facts))  # type: ignore[arg-type]
        unsaid = {key for key in seen if not any(touches(key, said) for said in rule.reads)}
        assert not unsaid, (code, unsaid)


def test_a_broken_key_hides_no_finding_about_another(make_job: MakeJob) -> None:
    job = make_job({T + "top_k": 1, T + "min_learning_rate": 1.0, T + "advantage_clip_low": 1.0,
                    T + "warmup_steps": 9, T + "max_steps": 9})  # fmt: skip
    broken = {T + "temperature", T + "batch_size", T + "advantage_clip_high"}
    assert [(p.code, p.path) for p in check_rules(job, Facts(), broken=broken)] == [
        ("R13", T + "advantage_clip_low"),
        ("R19", T + "min_learning_rate"),
        ("R21", T + "top_k"),
    ]


def test_no_rule_names_a_key_that_is_not_a_setting() -> None:
    from launcher.validation import key_paths

    assert {key for rule in RULES for key in rule.reads} <= set(key_paths())


def test_no_gap_names_a_key_that_is_not_a_setting() -> None:
    from launcher.rules import GAPS
    from launcher.validation import key_paths

    assert {gap.key for gap in GAPS} <= set(key_paths())
