"""The metrics of a step, under their published names; ``rl.metric_docs`` says what each means.

rollouts, advantages, optimizer steps, seconds  ->  {"train_reward": 0.41, "train_total_reward/p25": 0.2, ...}
validation rollouts                             ->  {"val_accuracy": 0.39, ...}

A failed rollout is counted and belongs to no other metric. A metric without a finite value (a deviation of one value, a
mean of none) is left out, since JSON has no NaN.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

import numpy as np

from gym_bridge.types import Rollout
from launcher.schema.training import RewardScalingConfig, RewardShapingConfig
from rl.advantages import FloatArray, group_statistics
from rl.dynamic_sampling import GroupSelection
from rl.micro_batch import MicroBatch
from rl.rewards import num_generated_tokens, raw_rewards, training_rewards

if TYPE_CHECKING:  # torch, which whoever only reads metrics does without
    from rl.workers.step import StepResult

Metrics = dict[str, float]


def step_metrics(
    *,
    sampled: Sequence[Rollout],
    trained: Sequence[Rollout],
    advantages: Sequence[float],
    scaling: RewardScalingConfig | None,
    shaping: RewardShapingConfig | None,
    selection: GroupSelection | None,
    results: Sequence["StepResult"],
    learning_rate: float,
    micro_batches: Iterable[MicroBatch],
    seconds: Mapping[str, float],
) -> Metrics:
    """All metrics of one training step.

    Args:
        sampled: every rollout sampled for the step, over all batches of dynamic sampling.
        trained: those whose groups are trained; the same without dynamic sampling.
        advantages: of each rollout in ``trained``.
        scaling: of rewards, as the advantages used it.
        shaping: of rewards, as the advantages used it.
        selection: what dynamic sampling kept; None without it.
        results: one per optimizer step.
        learning_rate: of the step.
        micro_batches: all forward passes, over ranks and optimizer steps.
        seconds: per phase; ``generation``, ``policy_training`` and ``total_step_time`` are needed.
    """
    values = rollout_statistics(sampled) | group_shares(sampled)
    values |= _mean("reward", training_rewards(_scored(sampled), scaling=scaling, shaping=shaping))
    values |= _mean("mean_prompt_length", [_prompt_length(rollout) for rollout in _scored(sampled)])
    values["total_num_tokens"] = sum(map(_total_length, _scored(trained)))
    if selection is not None:
        values |= _mean("filtered_reward", training_rewards(_scored(trained), scaling=scaling, shaping=shaping))
        values["dynamic_sampling_num_gen_batches"] = selection.num_batches
        values["dynamic_sampling_num_discarded_valid_samples"] = selection.num_surplus_rollouts
    values |= advantage_statistics(trained, advantages)
    values |= optimizer_values(results) | {"lr": learning_rate}
    values["padding_share"] = padding_share(micro_batches)
    values |= {f"timing/{phase}": spent for phase, spent in seconds.items()}
    speed = speeds(sampled, total_num_tokens=values["total_num_tokens"], seconds=seconds)
    return _prefixed("train_", values) | _prefixed("performance/", speed)


def validation_metrics(rollouts: Sequence[Rollout]) -> Metrics:
    """All metrics of one validation pass; rewards are the environment's own."""
    lengths = [num_generated_tokens(rollout) for rollout in _scored(rollouts)]
    values = _mean("accuracy", raw_rewards(_scored(rollouts))) | _mean("avg_length", lengths)
    return _prefixed("val_", values | rollout_statistics(rollouts))


def rollout_statistics(rollouts: Sequence[Rollout]) -> Metrics:
    """What training and validation both report of their rollouts, without prefix."""
    scored = _scored(rollouts)
    num_failed = len(rollouts) - len(scored)
    values: Metrics = {"num_failed": num_failed, "failed_share": num_failed / max(len(rollouts), 1)}
    if not scored:
        return values
    truncation_rate = fmean(rollout.truncated for rollout in scored)
    values |= {"truncation_rate": truncation_rate, "natural_termination_rate": 1.0 - truncation_rate}
    generated = [num_generated_tokens(rollout) for rollout in scored]
    longest = [max((len(turn.token_ids) for turn in rollout.turns), default=0) for rollout in scored]
    values |= _mean("mean_gen_tokens_per_sample", generated)
    values |= spread("gen_tokens_per_sample", generated)
    values |= spread("total_tokens_per_sample", list(map(_total_length, scored)))
    values |= spread("turns_per_sample", [len(rollout.turns) for rollout in scored], percentiles=(95, 99))
    values |= spread("max_gen_tokens_per_turn", longest, percentiles=(95,))
    values |= spread("total_reward", raw_rewards(scored).tolist(), percentiles=(25, 75))
    for agent in sorted({rollout.agent for rollout in scored}):
        of_agent = [rollout for rollout in scored if rollout.agent == agent]
        values |= spread(f"{agent}/reward", raw_rewards(of_agent).tolist())
        for key in sorted({key for rollout in of_agent for key in rollout.metrics}):
            given = [rollout.metrics[key] for rollout in of_agent if key in rollout.metrics]
            values |= spread(f"{agent}/{key}", [value for value in given if math.isfinite(value)])
    return values


def group_shares(rollouts: Sequence[Rollout]) -> Metrics:
    """Percentages of groups whose raw rewards are all 0, all 1, or differ; groups that failed entirely are left out."""
    groups = group_statistics(raw_rewards(rollouts), np.array([rollout.group_id for rollout in rollouts], np.int64))
    valid = groups.counts > 0
    if not valid.any():
        return {}
    alike = valid & ~groups.mixed
    shares = {"pct_0": alike & (groups.means == 0.0), "pct_1": alike & (groups.means == 1.0), "pct_mixed": groups.mixed}
    return {f"baseline_reward/{name}": 100.0 * float(chosen.sum() / valid.sum()) for name, chosen in shares.items()}


def advantage_statistics(rollouts: Sequence[Rollout], advantages: Sequence[float]) -> Metrics:
    """Advantages over the sampled tokens of scored rollouts, after clipping."""
    pairs = [
        (advantage, num_generated_tokens(rollout))
        for rollout, advantage in zip(rollouts, advantages, strict=True)
        if rollout.failure is None and num_generated_tokens(rollout)
    ]
    if not pairs:
        return {}
    total = sum(advantage * num_tokens for advantage, num_tokens in pairs)
    values = [advantage for advantage, _ in pairs]
    mean = total / sum(num_tokens for _, num_tokens in pairs)
    parts = {"sum": total, "mean": mean, "max": max(values), "min": min(values)}
    return _prefixed("advantages/", parts)


def optimizer_values(results: Sequence["StepResult"]) -> Metrics:
    """Loss metrics over the optimizer steps of a step: extrema, means of the rest, the last gradient norm."""
    from rl.loss_statistics import loss_values  # torch is loaded wherever there are results to read

    steps = [loss_values(result.statistics) for result in results]
    values = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        given = [step[name] for step in steps if name in step]
        if name.startswith("min_") or name.endswith("_min"):
            values[name] = min(given)
        elif name.startswith("max_") or name.endswith("_max"):
            values[name] = max(given)
        else:
            values[name] = fmean(given)
    values["grad_norm"] = results[-1].grad_norm
    if router_losses := [result.router_aux_loss for result in results if result.router_aux_loss is not None]:
        values["router_aux_loss"] = fmean(router_losses)
    values["peak_memory_bytes"] = max(result.peak_memory_bytes for result in results)
    return values


def padding_share(micro_batches: Iterable[MicroBatch]) -> float:
    """Share of the token positions of forward passes that hold padding."""
    sizes = [(micro_batch.num_tokens, micro_batch.token_ids.size) for micro_batch in micro_batches]
    positions = sum(size for _, size in sizes)
    return 1.0 - sum(filled for filled, _ in sizes) / positions if positions else 0.0


def speeds(sampled: Sequence[Rollout], *, total_num_tokens: float, seconds: Mapping[str, float]) -> Metrics:
    """Tokens and rollouts per second, of the step and of its two long phases."""
    generated = sum(map(num_generated_tokens, sampled))
    amounts = {
        "samples_per_sec": (len(sampled), "total_step_time"),
        "tokens_per_sec": (total_num_tokens, "total_step_time"),
        "generation_tokens_per_sec": (generated, "generation"),
        "policy_training_tokens_per_sec": (total_num_tokens, "policy_training"),
    }
    return {name: amount / seconds[phase] for name, (amount, phase) in amounts.items() if seconds[phase] > 0}


def spread(name: str, values: Sequence[float], percentiles: Sequence[int] = ()) -> Metrics:
    """``name/mean``, ``max``, ``min``, ``median``, ``stddev`` (n - 1) and ``p25``-like nearest-rank percentiles."""
    if not values:
        return {}
    ordered = sorted(values)
    parts = {"mean": fmean(ordered), "max": ordered[-1], "min": ordered[0], "median": median(ordered)}
    if len(ordered) > 1:
        parts["stddev"] = stdev(ordered)
    for percent in percentiles:
        parts[f"p{percent}"] = ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]
    return _prefixed(f"{name}/", parts)


def _mean(name: str, values: Sequence[float] | FloatArray) -> Metrics:
    return {name: fmean(values)} if len(values) else {}


def _prefixed(prefix: str, values: Metrics) -> Metrics:
    return {prefix + name: value for name, value in values.items() if math.isfinite(value)}


def _scored(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.failure is None]


def _prompt_length(rollout: Rollout) -> int:
    return len(rollout.turns[0].prompt_token_ids) if rollout.turns else 0


def _total_length(rollout: Rollout) -> int:
    """Tokens of the longest context that the model saw or made."""
    return max((len(turn.prompt_token_ids) + len(turn.token_ids) for turn in rollout.turns), default=0)
