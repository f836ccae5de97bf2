"""Every metric of recorded steps, recomputed by hand from the rollouts that were written down.

    a real step of the demo, in bfloat16                  exact, but for the noise of bfloat16 where the model is asked
    its tokens replayed in float32, under a job that      exact
    turns on what the demo leaves off

By hand: a plain forward pass of transformers for one rollout at a time, and the formulas of NEMO_RL.md and FIELDS.md
written out again. A metric that is written and not recomputed here fails the tests.
"""

import asyncio
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_bridge.types import Rollout
from launcher.run_directory import make_run_directory
from rl.display import PlainDisplay
from rl.generation.scripted import ScriptedSource
from rl.loop import Rows, TrainingLoop
from rl.micro_batch import FloatArray
from rl.report import Report
from rl.settings import loop_settings, rank_settings
from rl.workers.batch import RankBatch
from rl.workers.rank import PolicyRank
from rl.workers.step import StepResult, joined_results

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MACHINE = ("train_timing/", "val_timing/", "train_peak_memory_bytes")
"""What does not follow from rollouts; ``performance/`` is recomputed from the timings."""
NOISE: dict[str, dict[str, float]] = {
    "loss": {"abs": 0.01},
    "sampling_importance_ratio": {"abs": 0.008},
    "token_mult_prob_error": {"rel": 0.3},
    "mean_seq_mult_prob_error": {"rel": 0.3},
    "gen_kl_error": {"rel": 0.7},
    "policy_kl_error": {"rel": 0.7},
    "js_divergence_error": {"rel": 0.7},
    "min_seq_mult_prob_error": {"abs": 0.03},
    "max_seq_mult_prob_error": {"rel": 2.0},
    "grad_norm": {"rel": 0.3},
}
"""What bfloat16 leaves open where other shapes of the same products are rounded differently; 15% of all other values.
The noise by hand is another one, so errors agree no better than their means over 1,600 tokens do from step to step of
the demo: standard deviations of 0.001 (the importance ratio), 5%, and 10% where they are squares, of which six or more
are allowed; the smallest and the largest sequence hang on single tokens. The same in float32 is exact below."""
CLOSE = 1e-4
"""A weight this near to a bound of truncation may lie on either side of it in float32."""
PEAK_RATE, CLIP_MIN, CLIP_MAX = 5e-5, 0.2, 0.28


# Rollouts.


def of_rollouts(rollouts: Sequence[Rollout]) -> dict[str, float]:
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    generated = [sum(len(turn.token_ids) for turn in rollout.turns) for rollout in scored]
    cut_off = [rollout.truncated for rollout in scored]
    agent = "numbered_list_agent"
    return {
        "num_failed": len(rollouts) - len(scored),
        "failed_share": 1 - len(scored) / len(rollouts),
        "truncation_rate": cut_off.count(True) / len(scored),
        "natural_termination_rate": cut_off.count(False) / len(scored),
        "mean_gen_tokens_per_sample": np.mean(generated),
        **spread("gen_tokens_per_sample", generated),
        **spread("total_tokens_per_sample", context_lengths(scored)),
        **spread("turns_per_sample", [len(rollout.turns) for rollout in scored], 95, 99),
        **spread("max_gen_tokens_per_turn", [max(len(t.token_ids) for t in r.turns) for r in scored], 95),
        **spread("total_reward", [rollout.reward for rollout in scored], 25, 75),
        **spread(f"{agent}/reward", [rollout.reward for rollout in scored]),
        **spread(f"{agent}/num_right_lines", [rollout.metrics["num_right_lines"] for rollout in scored]),
        **spread(f"{agent}/num_surplus_lines", [rollout.metrics["num_surplus_lines"] for rollout in scored]),
    }


def spread(name: str, values: Sequence[Any], *percents: int) -> dict[str, float]:
    statistics = {
        "mean": np.mean(values), "max": np.max(values), "min": np.min(values), "median": np.median(values),
        "stddev": math.sqrt(sum((value - np.mean(values)) ** 2 for value in values) / (len(values) - 1)),
    }  # fmt: skip
    statistics |= {f"p{percent}": sorted(values)[len(values) * percent // 100] for percent in percents}
    return {f"{name}/{statistic}": float(value) for statistic, value in statistics.items()}


def context_lengths(rollouts: Iterable[Rollout]) -> list[int]:
    return [max(len(turn.prompt_token_ids + turn.token_ids) for turn in rollout.turns) for rollout in rollouts]


def of_groups(rollouts: Sequence[Rollout]) -> dict[str, float]:
    groups = [{r.reward for r in rollouts if r.group_id == group} - {None} for group in range(4)]
    shares = {"pct_0": groups.count({0.0}), "pct_1": groups.count({1.0}), "pct_mixed": sum(len(g) > 1 for g in groups)}
    return {f"baseline_reward/{name}": 25.0 * count for name, count in shares.items()}


def advantages_of(rollouts: Sequence[Rollout], reward: Callable[[Rollout], float]) -> list[float]:
    """Leave-one-out baseline, divided by the deviation of the whole group; scored rollouts only."""
    advantages = []
    for rollout in rollouts:
        group = [reward(other) for other in rollouts if other.group_id == rollout.group_id]
        others = (sum(group) - reward(rollout)) / (len(group) - 1)
        deviation = float(np.std(group, ddof=1))
        advantages.append((reward(rollout) - others) / (deviation + 1e-6) if deviation > 1e-6 else 0.0)
    return advantages


def of_advantages(rollouts: Sequence[Rollout], advantages: Sequence[float]) -> dict[str, float]:
    tokens = [len(turn.token_ids) for rollout in rollouts for turn in rollout.turns]
    total = sum(advantage * count for advantage, count in zip(advantages, tokens, strict=True))
    values = {"sum": total, "mean": total / sum(tokens), "max": max(advantages), "min": min(advantages)}
    return {f"advantages/{name}": value for name, value in values.items()}


def of_batches(steps: Sequence[Sequence[RankBatch]]) -> dict[str, float]:
    batches = [batch for ranks in steps for rank in ranks for batch in rank.micro_batches]
    positions = sum(batch.token_ids.size for batch in batches)
    return {"padding_share": sum(int((batch.document_ids < 0).sum()) for batch in batches) / positions}


def of_seconds(line: dict[str, float], rollouts: Sequence[Rollout]) -> dict[str, float]:
    generated = sum(len(turn.token_ids) for rollout in rollouts for turn in rollout.turns)
    step, tokens = line["train_timing/total_step_time"], line["train_total_num_tokens"]
    return {
        "performance/samples_per_sec": len(rollouts) / step,
        "performance/tokens_per_sec": tokens / step,
        "performance/generation_tokens_per_sec": generated / line["train_timing/generation"],
        "performance/policy_training_tokens_per_sec": tokens / line["train_timing/policy_training"],
    }


# The model.


@dataclass(frozen=True, kw_only=True)
class LossOf:
    """The variant of the loss."""

    dual_clip: float = math.inf
    tis: tuple[float, float] = (0.0, math.inf)
    kl: float = 0.0


class ByHand:
    """The untrained model and its optimizer, without anything of ``rl``."""

    def __init__(self, folder: Path, dtype: torch.dtype):
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.dtype = dtype
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=PEAK_RATE, eps=1e-5, weight_decay=0.01)

    def logprobs(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Of the sampled tokens, and the entropy where each was sampled."""
        (turn,) = rollout.turns
        tokens = torch.tensor([turn.prompt_token_ids + turn.token_ids])
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(tokens, logits_to_keep=len(turn.token_ids) + 1).logits[0, :-1]
        logprobs = torch.log_softmax(logits.float(), -1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, torch.tensor(turn.token_ids)[:, None])[:, 0], entropies.detach()

    def optimizer_step(
        self, rollouts: Sequence[Rollout], advantages: Sequence[float], before: Sequence[Tensor | None], loss: LossOf
    ) -> dict[str, float]:
        """One update, and the metrics of its loss; ``before`` is None where the policy before is the current one."""
        num_tokens = sum(len(turn.token_ids) for rollout in rollouts for turn in rollout.turns)
        terms: list[dict[str, Tensor]] = []
        for rollout, advantage, previous in zip(rollouts, advantages, before, strict=True):
            current, entropies = self.logprobs(rollout)
            previous = current.detach() if previous is None else previous
            found = token_terms(current, previous, torch.tensor(rollout.turns[0].logprobs), advantage, loss)
            (found["loss"].sum() / num_tokens).backward()
            terms.append({name: term.detach() for name, term in found.items()} | {"entropy": entropies})
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        for gradient in gradients:
            gradient *= min(1.0, 1.0 / norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return of_terms(terms) | {"grad_norm": norm}


def token_terms(now: Tensor, previous: Tensor, gen: Tensor, advantage: float, loss: LossOf) -> dict[str, Tensor]:
    """What the loss and its metrics are made of, at each token."""
    ratio = (now - previous).exp()
    clipped = ratio.clamp(1 - CLIP_MIN, 1 + CLIP_MAX)
    surrogate = torch.maximum(-advantage * ratio, -advantage * clipped)
    if advantage < 0:
        surrogate = surrogate.clamp(max=-advantage * loss.dual_clip)
    weight = (previous - gen).exp()
    kl = (now - gen).exp() * k3(previous - now) if loss.kl else torch.zeros_like(now)  # the reference is the untrained
    mix = ((previous.exp() + gen.exp()) / 2).log()
    return {
        "loss": weight.clamp(*loss.tis) * surrogate + loss.kl * kl,
        "probs_ratio": ratio,
        "probs_ratio_clamped": clipped,
        "kl_penalty": kl,
        "token_mult_prob_error": (gen - previous).abs().exp(),
        "gen_kl_error": k3(previous - gen),
        "policy_kl_error": k3(gen - previous),
        "js_divergence_error": (k3(previous - mix) + k3(gen - mix)) / 2,
        "sampling_importance_ratio": weight.clamp(*loss.tis),
        "approx_entropy": -(now - gen).exp() * now,
        "is_oob_ratio": ((weight < loss.tis[0]) | (weight > loss.tis[1])).float(),
        "undecided": (((weight - loss.tis[0]).abs() < CLOSE) | ((weight - loss.tis[1]).abs() < CLOSE)).float(),
    }


def k3(difference: Tensor) -> Tensor:
    return difference.exp() - 1 - difference


def of_terms(terms: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Means over the tokens of an optimizer step, and what is told per sequence."""
    whole = {name: torch.cat([term[name] for term in terms]).double() for name in terms[0]}
    errors = [float(term["token_mult_prob_error"].mean()) for term in terms]
    return {name: float(values.mean()) for name, values in whole.items()} | {
        "global_valid_toks": len(whole["loss"]),
        "global_valid_seqs": len(terms),
        **{f"{name}_min": float(whole[name].min()) for name in ("probs_ratio", "probs_ratio_clamped")},
        **{f"{name}_max": float(whole[name].max()) for name in ("probs_ratio", "probs_ratio_clamped")},
        "mean_seq_mult_prob_error": float(np.mean(errors)),
        "min_seq_mult_prob_error": min(errors),
        "max_seq_mult_prob_error": max(errors),
    }


# The comparison.


def assert_recomputed(line: dict[str, float], expected: dict[str, float], **tolerance: float) -> None:
    assert [name for name in line.keys() - expected.keys() - {"step"} if not name.startswith(MACHINE)] == []
    assert {name: line.get(name) for name in expected} == pytest.approx(expected, **tolerance)


def prefixed(prefix: str, values: dict[str, float]) -> dict[str, float]:
    return {prefix + name: value for name, value in values.items()}


def test_the_validation_before_the_first_step(two_steps: Any) -> None:
    rewards = [rollout.reward for rollout in two_steps.validation]
    assert len(rewards) == 8
    expected = of_rollouts(two_steps.validation)
    expected |= {"accuracy": np.mean(rewards), "avg_length": expected["mean_gen_tokens_per_sample"]}
    assert_recomputed(two_steps.before, prefixed("val_", expected), rel=1e-9)


def test_a_real_step(two_steps: Any, demo_model_folder: Path) -> None:
    line, rollouts = two_steps.metrics[0], two_steps.first
    advantages = advantages_of(rollouts, lambda rollout: rollout.reward)
    recorded = [record["advantage"] for record in two_steps.run.read_rollouts(1)]
    assert recorded == pytest.approx(advantages, abs=1e-9)
    by_hand = ByHand(demo_model_folder, torch.bfloat16)
    model = by_hand.optimizer_step(rollouts, advantages, [None] * len(rollouts), LossOf())
    del model["is_oob_ratio"], model["undecided"]  # only with truncated importance sampling
    exact = {
        **of_rollouts(rollouts),
        **of_groups(rollouts),
        **of_advantages(rollouts, advantages),
        **of_batches(two_steps.batches[:1]),
        **{name: model.pop(name) for name in ("global_valid_toks", "global_valid_seqs")},
        "reward": np.mean([rollout.reward for rollout in rollouts]),
        "mean_prompt_length": np.mean([len(rollout.turns[0].prompt_token_ids) for rollout in rollouts]),
        "total_num_tokens": sum(context_lengths(rollouts)),
        "lr": PEAK_RATE,
    }
    everything = prefixed("train_", exact) | of_seconds(line, rollouts)
    asked = {f"train_{name}": line[f"train_{name}"] for name in model}
    assert_recomputed(line, everything | asked, rel=1e-9)
    for name, value in model.items():
        offset = 1.0 if "mult_prob_error" in name else 0.0  # they are 1 where both agree
        tolerance = NOISE.get(name, {"rel": 0.15})
        assert asked[f"train_{name}"] - offset == pytest.approx(value - offset, **tolerance), name
    smallest, mean, largest = (line[f"train_{kind}_seq_mult_prob_error"] for kind in ("min", "mean", "max"))
    assert 1 <= smallest <= mean <= largest


class InProcess:
    """A ``Policy`` of one rank without Ray, whose optimizer steps are kept."""

    def __init__(self, rank: PolicyRank):
        self._rank = rank
        self.steps: list[Sequence[RankBatch]] = []

    async def train(self, batches: Sequence[RankBatch], *, learning_rate: float) -> StepResult:
        self.steps.append(batches)
        return joined_results([self._rank.train(batches[0], learning_rate)])

    async def logprobs(self, batches: Sequence[RankBatch]) -> list[tuple[FloatArray, ...]]:
        return [self._rank.logprobs(batches[0])]

    async def write_weights(self, folder: Path) -> None:
        """Nothing samples from them."""


def test_a_replayed_step_with_everything_turned_on(
    two_steps: Any, demo_job: Callable[..., Any], demo_model_folder: Path, tmp_path: Path
) -> None:
    """Group 0 has no spread and group 3 is one too many; of group 1, a rollout failed; every fourth was cut off."""
    sampled = [
        replace(
            rollout,
            reward=None if (rollout.group_id, rollout.rollout_id) == (1, 3) else made_up_reward(rollout),
            failure="made up" if (rollout.group_id, rollout.rollout_id) == (1, 3) else None,
            truncated=rollout.rollout_id % 4 == 1,
        )
        for rollout in two_steps.first
    ]
    checked = demo_job(
        max_steps=1, val_at_start=False, num_prompts_per_step=2, batch_size=8, use_dynamic_sampling=True,
        batch_multiplier=2, ref_policy_kl_penalty=0.1, ratio_clip_c=1.1, overlong_filtering=True,
        truncated_importance_sampling_type="tis", truncated_importance_sampling_ratio=1.02,
        truncated_importance_sampling_ratio_min=0.98, reward_scaling="{target_max:2.0}",
        reward_shaping="{stop_properly_penalty_coef:0.5}",
    )  # fmt: skip
    line, steps = replayed(checked, sampled, demo_model_folder, tmp_path)

    scored = [rollout for rollout in sampled if rollout.reward is not None]
    kept = [rollout for rollout in scored if rollout.group_id in (1, 2)]
    advantages = advantages_of(kept, training_reward)
    trained = [(r, advantage) for r, advantage in zip(kept, advantages, strict=True) if not r.truncated]
    by_hand = ByHand(demo_model_folder, torch.float32)
    with torch.no_grad():
        before = [by_hand.logprobs(rollout)[0] for rollout, _ in trained]
    variant = LossOf(dual_clip=1.1, tis=(0.98, 1.02), kl=0.1)
    halves = slice(0, (len(trained) + 1) // 2), slice((len(trained) + 1) // 2, None)
    updates = [
        by_hand.optimizer_step([r for r, _ in trained[half]], [a for _, a in trained[half]], before[half], variant)
        for half in halves
    ]
    model = {name: float(np.mean([update[name] for update in updates])) for name in updates[0]}
    model |= {name: min(update[name] for update in updates) for name in model if "min_" in name or "_min" in name}
    model |= {name: max(update[name] for update in updates) for name in model if "max_" in name or "_max" in name}
    model["grad_norm"] = updates[-1]["grad_norm"]
    loose = {"is_oob_ratio": model.pop("undecided") + 1e-9, "loss": 1e-4}  # counts at a bound; positive and negative
    for name, tolerance in loose.items():
        assert line[f"train_{name}"] == pytest.approx(model[name], rel=2e-4, abs=tolerance), name
    expected = {
        **of_rollouts(sampled),
        **of_groups(sampled),
        **of_advantages(kept, advantages),
        **of_batches(steps),
        **model,
        "reward": np.mean([training_reward(rollout) for rollout in scored]),
        "filtered_reward": np.mean([training_reward(rollout) for rollout in kept]),
        "dynamic_sampling_num_gen_batches": 1,
        "dynamic_sampling_num_discarded_valid_samples": 8,
        "mean_prompt_length": np.mean([len(rollout.turns[0].prompt_token_ids) for rollout in scored]),
        "total_num_tokens": sum(context_lengths(kept)),
        "lr": PEAK_RATE,
    }
    assert updates[1]["probs_ratio_max"] > 1 + CLIP_MAX, "the clip acts"
    assert updates[1]["kl_penalty"] > 1e-3
    assert 0.2 < model["is_oob_ratio"] < 0.9
    asked = {f"train_{name}": line[f"train_{name}"] for name in loose}
    assert_recomputed(line, prefixed("train_", expected) | of_seconds(line, sampled) | asked, rel=2e-4)


def made_up_reward(rollout: Rollout) -> float:
    return 0.0 if rollout.group_id == 0 else (rollout.rollout_id * 5 + rollout.group_id * 3) % 4 / 3


def training_reward(rollout: Rollout) -> float:
    """Scaled to 0 .. 2, halved where cut off."""
    assert rollout.reward is not None
    return 2 * rollout.reward * (0.5 if rollout.truncated else 1.0)


def replayed(
    checked: Any, sampled: Sequence[Rollout], model_folder: Path, folder: Path
) -> tuple[dict[str, float], list[Sequence[RankBatch]]]:
    """One step of the loop with a policy in float32: (its line of metrics.jsonl, what was trained)."""
    job, plan = checked.resolved.job, checked.require_valid()
    settings = replace(rank_settings(job, plan, model_folder=model_folder, device="cpu"), compute_dtype="float32")
    threads = torch.get_num_threads()
    policy = InProcess(PolicyRank(settings, rank=0, num_ranks=1, rendezvous="", num_threads=threads, log_file=None))
    run = make_run_directory(folder / "run")
    (folder / "weights").mkdir()
    loop = TrainingLoop(
        loop_settings(job, plan, hidden_size=576),
        rows=Rows(training=[{}] * 4, validation=[]),
        source=ScriptedSource(sampled),
        policy=policy,
        report=Report(run, plan, PlainDisplay(io.StringIO()), backend="local", health=job.health),
        weights_folder=folder / "weights",
    )
    asyncio.run(loop.run())
    (line,) = run.read_metrics()
    return line, policy.steps
