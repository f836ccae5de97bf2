"""Every setting of ``training`` acts: each is changed alone on scripted rollouts, and changes what it should.

And nothing else: both runs start from one policy, so of the first step's metrics only those may differ that the table
names. Settings that act elsewhere stand in ``ELSEWHERE`` with the place that tests them; a new setting that stands in
neither table fails ``test_every_setting_is_in_a_table``.
"""

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from gym_bridge.types import Rollout, RolloutRequest, Turn
from launcher.compile import compile_plan
from launcher.run_directory import RunDirectory, make_run_directory
from launcher.schema.job import JobConfig
from launcher.schema.training import TrainingConfig
from rl.display import PlainDisplay
from rl.generation.scripted import ScriptedSource
from rl.loop import Rows, TrainingLoop
from rl.micro_batch import FloatArray
from rl.report import Report
from rl.settings import loop_settings, rank_settings
from rl.workers.batch import RankBatch
from rl.workers.rank import PolicyRank
from rl.workers.step import StepResult, joined_results

VOCABULARY, HIDDEN, LONGEST = 61, 16, 32

BASE: dict[str, Any] = {
    "type": "grpo",
    "policy_backend": "dtensor",
    "learning_rate": 0.02,
    "batch_size": 8,
    "num_prompts_per_step": 2,
    "num_generations_per_prompt": 4,
    "max_steps": 2,
    "max_seq_length": LONGEST,
    "max_new_tokens": 12,
    "max_grad_norm": 0.0,
}
TWO_UPDATES = {"batch_size": 4, "learning_rate": 0.1}
"""Two optimizer steps per rollout batch: in the second the ratio to the sampling policy is no longer 1."""
DRIFTED = {"truncated_importance_sampling_type": "tis", "truncated_importance_sampling_ratio": 5.0}


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a run did."""

    weights: Mapping[str, torch.Tensor]
    metrics: Sequence[Mapping[str, float]]
    requests: Sequence[RolloutRequest]
    forward_passes: int
    scoring_passes: int
    """Passes that only score, for the policy before the update."""
    holds_reference: bool

    def same_weights(self, other: "Observed") -> bool:
        return all(torch.allclose(self.weights[n], other.weights[n], rtol=1e-4, atol=1e-6) for n in self.weights)

    def of(self, name: str) -> list[float | None]:
        return [line.get(name) for line in self.metrics]

    @property
    def first_step(self) -> Mapping[str, float]:
        """Metrics of the first step, without those of the machine."""
        line = next(line for line in self.metrics if "train_reward" in line)
        return {name: value for name, value in line.items() if not any(fnmatch(name, part) for part in MACHINE)}


type Effect = Callable[[Observed, Observed], bool]


def weights_change(before: Observed, after: Observed) -> bool:
    return not before.same_weights(after)


def only_passes_change(before: Observed, after: Observed) -> bool:
    return before.same_weights(after) and before.forward_passes != after.forward_passes


def metric_changes(name: str, *, weights: bool | None = None) -> Effect:
    def effect(before: Observed, after: Observed) -> bool:
        return before.of(name) != after.of(name) and weights in (None, not before.same_weights(after))

    return effect


def reference_is_loaded(before: Observed, after: Observed) -> bool:
    changes = metric_changes("train_kl_penalty", weights=True)(before, after)
    return changes and not before.holds_reference and after.holds_reference


def policy_before_is_scored(before: Observed, after: Observed) -> bool:
    """An optimizer step over the whole rollout batch needs no extra pass: the policy before it is the current one."""
    return not before.same_weights(after) and before.scoring_passes == 0 < after.scoring_passes


def rows_change(before: Observed, after: Observed) -> bool:
    return [r.row_index for r in before.requests] != [r.row_index for r in after.requests]


def nothing_but_memory_changes(before: Observed, after: Observed) -> bool:
    return before.same_weights(after) and before.forward_passes == after.forward_passes


MACHINE = ("*timing/*", "performance/*", "train_peak_memory_bytes")
NOTHING: tuple[str, ...] = ()
ANYTHING = ("*",)
"""Other rows are sampled, or other responses to them."""
VALIDATION = ("val_*",)
RATE = ("train_lr",)
LAYOUT = ("train_padding_share",)
LOSS = ("train_loss", "train_grad_norm")
ADVANTAGES = (*LOSS, "train_advantages/*")
IMPORTANCE = (*LOSS, "train_sampling_importance_ratio", "train_is_oob_ratio")
PROBABILITIES = (*LOSS, "train_sampling_importance_ratio", "train_*_error", "train_*entropy")
CLIP = (*LOSS, "train_probs_ratio_clamped*")
TRAINED_TOKENS = (*PROBABILITIES, "train_global_valid_*", "train_padding_share")

TABLE: dict[str, tuple[dict[str, Any], Any, Effect, tuple[str, ...]]] = {
    # setting: (other settings it needs, its other value, what changes, what of the first step's metrics may change)
    "epochs": ({"max_steps": None}, 2, metric_changes("step"), NOTHING),
    "max_steps": ({}, 1, metric_changes("step"), VALIDATION),
    "learning_rate": ({}, 0.01, metric_changes("train_lr", weights=True), RATE),
    "min_learning_rate": ({}, 0.01, metric_changes("train_lr", weights=True), NOTHING),
    "optimizer_type": ({"weight_decay": 0.5}, "adam_with_cosine_annealing", weights_change, NOTHING),
    "weight_decay": ({}, 0.5, weights_change, NOTHING),
    "adam_beta1": ({}, 0.5, weights_change, NOTHING),
    "adam_beta2": ({}, 0.5, weights_change, NOTHING),
    "adam_eps": ({}, 0.1, weights_change, NOTHING),
    "warmup_steps": ({}, 1, metric_changes("train_lr", weights=True), RATE),
    "max_grad_norm": ({"optimizer_type": "adamw_with_flat_lr", "adam_eps": 0.1}, 0.001, weights_change, NOTHING),
    "batch_size": ({}, 4, policy_before_is_scored, TRAINED_TOKENS),
    "micro_batch_size": ({"batching_strategy": "static"}, 4, only_passes_change, LAYOUT),
    "max_seq_length": ({}, 16, only_passes_change, LAYOUT),
    "num_generations_per_prompt": ({"num_prompts_per_step": 4}, 2, weights_change, ANYTHING),
    "num_prompts_per_step": ({}, 4, weights_change, ANYTHING),
    "temperature": ({}, 0.5, metric_changes("train_entropy", weights=True), PROBABILITIES),
    "top_k": ({}, 20, metric_changes("train_entropy", weights=True), PROBABILITIES),
    "overlong_filtering": ({}, True, metric_changes("train_global_valid_toks", weights=True), TRAINED_TOKENS),
    "val_at_start": ({}, True, metric_changes("step", weights=False), NOTHING),
    "val_at_end": ({}, False, metric_changes("val_accuracy", weights=False), NOTHING),
    "val_check_interval": ({"max_steps": 3}, 0.25, metric_changes("val_accuracy", weights=False), VALIDATION),
    "ref_policy_kl_penalty": ({}, 0.5, reference_is_loaded, NOTHING),
    "use_on_policy_kl_approximation": ({"ref_policy_kl_penalty": 0.5}, False, weights_change, NOTHING),
    "ratio_clip_min": (TWO_UPDATES, 0.001, metric_changes("train_probs_ratio_clamped_min"), CLIP),
    "ratio_clip_max": (TWO_UPDATES, 0.001, metric_changes("train_probs_ratio_clamped_max"), CLIP),
    "ratio_clip_c": ({**TWO_UPDATES, "learning_rate": 1.0}, 1.01, metric_changes("train_loss", weights=True), LOSS),
    "advantage_clip_low": ({}, -0.1, metric_changes("train_advantages/min", weights=True), ADVANTAGES),
    "advantage_clip_high": ({}, 0.1, metric_changes("train_advantages/max", weights=True), ADVANTAGES),
    "normalize_rewards": ({}, False, metric_changes("train_advantages/max", weights=True), ADVANTAGES),
    "use_leave_one_out_baseline": (
        {"adam_eps": 0.1}, False, metric_changes("train_advantages/max", weights=True), ADVANTAGES,
    ),
    "use_importance_sampling_correction": ({}, False, metric_changes("train_loss", weights=True), LOSS),
    "truncated_importance_sampling_type": (
        {**DRIFTED, "truncated_importance_sampling_ratio_min": 0.9, "truncated_importance_sampling_ratio": 1.1},
        "icepop", metric_changes("train_sampling_importance_ratio", weights=True), IMPORTANCE,
    ),
    "truncated_importance_sampling_ratio": (
        DRIFTED, 1.01, metric_changes("train_is_oob_ratio", weights=True), IMPORTANCE,
    ),
    "truncated_importance_sampling_ratio_min": (
        DRIFTED, 0.99, metric_changes("train_is_oob_ratio", weights=True), IMPORTANCE,
    ),
    "use_dynamic_sampling": ({}, True, metric_changes("train_dynamic_sampling_num_gen_batches"), ANYTHING),
    "batch_multiplier": (
        {"use_dynamic_sampling": True}, 2.0, metric_changes("train_dynamic_sampling_num_gen_batches"), ANYTHING,
    ),
    "reward_shaping": (
        {}, {"stop_properly_penalty_coef": 0.5}, metric_changes("train_reward", weights=True),
        ("train_reward", *ADVANTAGES),
    ),
    "reward_scaling": ({}, {"target_max": 2.0}, metric_changes("train_reward", weights=False), ("train_reward",)),
    "batching_strategy": ({}, "static", only_passes_change, LAYOUT),
    "train_mb_tokens": ({}, 200, only_passes_change, LAYOUT),
    "sequence_length_round": ({"train_mb_tokens": 64}, 1, metric_changes("train_padding_share", weights=False), LAYOUT),
    "activation_checkpointing": ({}, True, nothing_but_memory_changes, NOTHING),
    "seed": ({}, 7, rows_change, ANYTHING),
    "shuffle": ({}, False, rows_change, ANYTHING),
}  # fmt: skip

ELSEWHERE = {
    "type": "the tag of the union, one value",
    "max_new_tokens": "the sampler's cap, on real rollouts: tests/e2e/test_sampler_knobs.py",
    "dynamic_sampling_max_gen_batches": "ends the run: test_dynamic_sampling_gives_up_with_the_causes below",
    "max_rollout_turns": "the agent's own limit: tests/gym_bridge/test_package.py",
    "vllm_tensor_parallel_size": "vLLM's arguments: tests/rl/generation",
    "vllm_gpu_memory_utilization": "vLLM's arguments: tests/rl/generation",
    "keep_top_k": "refused by engine=local while it keeps no checkpoints (launcher/rules/gaps.py)",
    "parallelism": "who gets what: tests/rl/workers/test_group.py; the same step: tests/rl/workers/test_ranks.py",
    "policy_backend": "tests/rl/workers/test_lora.py, tests/gpu",
    "finetuning_type": "tests/rl/workers/test_lora.py",
    "lora": "tests/rl/workers/test_lora.py",
    "router_aux_loss_coef": "tests/rl/workers/test_router_loss.py, tests/rl/generation/test_experts.py",
    "hf_config_overrides": "tests/rl/workers/test_model_config.py, tests/rl/generation/test_engine_death.py",
    "automodel_kwargs": "tests/gpu/test_automodel.py",
}


def test_every_setting_is_in_a_table() -> None:
    assert TABLE.keys() | ELSEWHERE.keys() == TrainingConfig.model_fields.keys()
    assert not TABLE.keys() & ELSEWHERE.keys()


def test_elsewhere_exists() -> None:
    named = {path for where in ELSEWHERE.values() for path in re.findall(r"[a-z]\w*/[\w/.]+", where)}
    assert len(named) > 8
    assert [path for path in named if not (Path(__file__).parents[2] / path).exists()] == []


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=VOCABULARY
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def unchanged(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], Observed]:
    """The run that a change is compared with; many settings share one."""
    runs: dict[str, Observed] = {}

    def run(training: Mapping[str, Any]) -> Observed:
        key = repr(training)
        if key not in runs:
            runs[key] = run_job(training, model_folder, tmp_path_factory.mktemp("unchanged") / "run")
        return runs[key]

    return run


@pytest.mark.parametrize("setting", TABLE)
def test_a_setting_changes_what_it_should_and_nothing_else(
    setting: str, unchanged: Callable[[Mapping[str, Any]], Observed], model_folder: Path, tmp_path: Path
) -> None:
    others, value, effect, may_change = TABLE[setting]
    before = unchanged(others)
    after = run_job({**others, setting: value}, model_folder, tmp_path / "after")
    assert effect(before, after), f"{setting}: {others} -> {value}"
    both = before.first_step.keys() | after.first_step.keys()
    kept = [name for name in both if not any(fnmatch(name, pattern) for pattern in may_change)]
    for name in kept:
        assert after.first_step.get(name) == pytest.approx(before.first_step.get(name), rel=1e-4, abs=1e-6), name


def test_dynamic_sampling_gives_up_with_the_causes(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"dynamic_sampling_max_gen_batches.*\n.*all rewards 0"):
        run_job({"use_dynamic_sampling": True, "dynamic_sampling_max_gen_batches": 2}, model_folder, tmp_path / "run",
                rewards=lambda row, rollout: 0.0)  # fmt: skip


def test_rollouts_that_dynamic_sampling_left_out_can_be_read(model_folder: Path, tmp_path: Path) -> None:
    """Why a group was dropped, a failure above all, is seen in what it sampled."""

    def one_fails(row: int, rollout: int) -> float | None:
        return None if (row % 3, rollout) == (0, 1) else graded(row, rollout)

    settings = {"use_dynamic_sampling": True, "max_steps": 1, "val_at_end": False}
    run = run_job(settings, model_folder, tmp_path / "run", rewards=one_fails)
    records = RunDirectory(tmp_path / "run").read_rollouts(1)
    assert len(records) == len(run.requests) > 8
    dropped = [record for record in records if record["row_index"] % 3 == 0]
    assert {record["advantage"] for record in dropped} == {None}
    assert sum(record["failure"] is not None for record in dropped) == len(dropped) // 4 > 0
    assert sum(record["advantage"] is not None for record in records) == 8


def test_too_many_failures_stop_the_run_with_the_reasons(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"4 of 8 rollouts failed(.|\n)*4x timeout"):
        run_job({}, model_folder, tmp_path / "run", rewards=lambda row, rollout: None if rollout % 2 else 1.0)


def test_a_failed_rollout_touches_no_baseline(model_folder: Path, tmp_path: Path) -> None:
    """One of four fails: the others' advantages are those of a group of three."""
    run = run_job({"max_steps": 1, "normalize_rewards": False, "val_at_end": False}, model_folder, tmp_path / "run",
                  rewards=lambda row, rollout: [1.0, 0.0, None, 0.5][rollout])  # fmt: skip
    assert run.of("train_failed_share") == [0.25]
    assert run.of("train_advantages/max") == [pytest.approx((1.0 - 0.5) * 3 / 2)]
    assert run.of("train_total_reward/mean") == [pytest.approx(0.5)]


def test_overlong_filtering_of_every_rollout_leaves_the_weights_alone(model_folder: Path, tmp_path: Path) -> None:
    untouched = run_job({"max_steps": 1, "overlong_filtering": True}, model_folder, tmp_path / "run",
                        is_truncated=lambda length: True)  # fmt: skip
    assert untouched.of("train_loss") == untouched.of("train_grad_norm") == [0.0]
    assert untouched.of("train_global_valid_toks") == [0]
    assert untouched.of("train_advantages/max") != [0.0], "they count in their groups all the same"
    weights = load_file(model_folder / "model.safetensors")
    assert all(torch.equal(untouched.weights[name], weights[name]) for name in untouched.weights)


class InProcess:
    """A ``Policy`` of one rank without Ray."""

    def __init__(self, rank: PolicyRank):
        self._rank = rank
        self.forward_passes = 0
        self.scoring_passes = 0
        self.holds_reference = rank._reference is not None

    async def train(self, batches: Sequence[RankBatch], *, learning_rate: float) -> StepResult:
        (batch,) = batches
        self.forward_passes += len(batch.micro_batches)
        return joined_results([self._rank.train(batch, learning_rate)])

    async def logprobs(self, batches: Sequence[RankBatch]) -> list[tuple[FloatArray, ...]]:
        self.scoring_passes += sum(len(batch.micro_batches) for batch in batches)
        return [self._rank.logprobs(batch) for batch in batches]

    async def write_weights(self, folder: Path) -> None:
        self._rank.write_weights(folder)


def graded(row: int, rollout: int) -> float:
    """Rewards with spread in most groups, all alike in every third row."""
    return 0.0 if row % 3 == 0 else ((row * 7 + rollout * 5) % 4) / 3


def run_job(
    training: Mapping[str, Any], model_folder: Path, path: Path,
    rewards: Callable[[int, int], float | None] = graded,
    is_truncated: Callable[[int], bool] = lambda length: length > 9,
) -> Observed:  # fmt: skip
    job = JobConfig.model_validate({
        "model": {"name": str(model_folder), "dtype": "float32"}, "dataset": "d", "environment": "e",
        "engine": {"max_failed_share": 0.3}, "training": {**BASE, **training},
    })  # fmt: skip
    rows = Rows(training=[{"row": i} for i in range(12)], validation=[{"row": i} for i in range(3)])
    plan = compile_plan(job, num_training_rows=12, num_validation_rows=3)
    threads = torch.get_num_threads()
    settings = rank_settings(job, plan, model_folder=model_folder, device="cpu")
    policy = InProcess(PolicyRank(settings, rank=0, num_ranks=1, rendezvous="", num_threads=threads, log_file=None))
    source = Recording(rewards, is_truncated)
    run = make_run_directory(path)
    weights = path / "weights"
    weights.mkdir()
    with (path / "output").open("w") as stream:
        report = Report(run, plan, PlainDisplay(stream), backend="local", health=job.health)
        loop = TrainingLoop(
            loop_settings(job, plan, hidden_size=HIDDEN), rows=rows, source=source, policy=policy, report=report,
            weights_folder=weights,
        )  # fmt: skip
        asyncio.run(loop.run())
    final = path / "final"
    final.mkdir()
    asyncio.run(policy.write_weights(final))
    return Observed(
        weights=load_file(final / "model.safetensors"),
        metrics=run.read_metrics(),
        requests=source.requests,
        forward_passes=policy.forward_passes,
        scoring_passes=policy.scoring_passes,
        holds_reference=policy.holds_reference,
    )


class Recording:
    """A ``RolloutSource`` that makes each rollout from its row and number, and remembers what was asked for."""

    def __init__(self, rewards: Callable[[int, int], float | None], is_truncated: Callable[[int], bool]):
        self._rewards, self._is_truncated = rewards, is_truncated
        self.requests: list[RolloutRequest] = []
        self.policy_version = 0

    async def collect(self, requests: Sequence[RolloutRequest]) -> Any:
        self.requests += requests
        script = ScriptedSource(
            [scripted(r.row_index, r.rollout_id, self._rewards, self._is_truncated) for r in requests]
        )
        async for rollout in script.collect(requests):
            yield rollout

    async def rest(self) -> None:
        """Nothing to give back."""

    async def update_weights(self, weights: Path, *, policy_version: int) -> None:
        self.policy_version = policy_version

    async def close(self) -> None:
        """Nothing runs."""


def scripted(
    row: int, rollout: int, rewards: Callable[[int, int], float | None], is_truncated: Callable[[int], bool]
) -> Rollout:
    numbers = random.Random(f"{row}/{rollout}")
    length = numbers.randrange(2, 12)
    reward = rewards(row, rollout)
    prompt = tuple(random.Random(row).randrange(VOCABULARY) for _ in range(4))
    turn = Turn(
        prompt_token_ids=prompt,
        token_ids=tuple(numbers.randrange(VOCABULARY) for _ in range(length)),
        logprobs=tuple(-4.1 + 0.4 * (numbers.random() - 0.5) for _ in range(length)),
        finish_reason="length" if is_truncated(length) else "stop",
    )
    return Rollout(
        group_id=0, rollout_id=0, row_index=row, agent="agent", turns=(turn,), reward=reward,
        failure="timeout" if reward is None else None, truncated=is_truncated(length), policy_version=0, prompt="",
        response="",
    )  # fmt: skip


def test_the_base_run_is_deterministic(model_folder: Path, tmp_path: Path) -> None:
    """Otherwise "the weights change" would say nothing."""
    first, second = (run_job({}, model_folder, tmp_path / name) for name in ("first", "second"))
    assert first.same_weights(second)
    assert first.of("train_loss") == second.of("train_loss")
