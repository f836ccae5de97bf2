"""From the samples of a step to what each rank computes.

samples --(units)--> --(static | dynamic | sequence_packing)--> micro-batches per rank --> RankBatch per optimizer step
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np

from gym_bridge.types import TrainSample
from rl.batching import (
    BatchedItems,
    Shards,
    Unit,
    dynamic_batches,
    packed_batches,
    prompt_sharing_units,
    static_batches,
)
from rl.micro_batch import FloatArray, MicroBatch, micro_batch
from rl.workers.batch import RankBatch

BatchingStrategy = Literal["dynamic", "static", "sequence_packing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSettings:
    """How samples are grouped into micro-batches."""

    strategy: BatchingStrategy
    micro_batch_size: int
    """Rows of a micro-batch, read by ``static``."""
    train_mb_tokens: int
    """Token budget of a micro-batch, read by ``dynamic`` and ``sequence_packing``."""
    sequence_length_round: int
    """Widths are rounded up to a multiple of this by ``dynamic``."""
    data_parallel_size: int
    optimizer_steps: int
    """Optimizer steps that a rollout batch is divided into."""
    hidden_size: int
    """Of the model; decides when sharing a prompt pays."""
    needs_all_gradients: bool
    """True when samples without advantage have a gradient too (a KL penalty, a router loss)."""


def rank_batches(
    samples: Sequence[TrainSample], advantages: FloatArray, settings: LayoutSettings
) -> list[list[RankBatch]]:
    """Divide a step's samples into optimizer steps, ranks and micro-batches.

    Args:
        samples: everything that is trained, the samples of a group side by side, [N].
        advantages: of each sample, [N].
        settings: how.

    Returns:
        ``[optimizer step][rank]``; every sample in exactly one place.
    """
    steps = []
    for chosen in np.array_split(np.arange(len(samples)), settings.optimizer_steps):
        indices = [int(index) for index in chosen]
        units = _units([samples[index] for index in indices], indices, settings)
        active = [settings.needs_all_gradients or any(advantages[s] != 0 for s in unit.samples) for unit in units]
        trained = _micro_batches([unit for unit, yes in zip(units, active, strict=True) if yes], samples, settings)
        scored = _micro_batches([unit for unit, yes in zip(units, active, strict=True) if not yes], samples, settings)
        num_tokens = sum(sum(samples[index].loss_mask) for index in indices)
        steps.append([
            RankBatch(trained=trained[rank], scored=scored[rank], advantages=advantages, num_tokens=num_tokens,
                      previous_logprobs=None, data_parallel_size=settings.data_parallel_size)
            for rank in range(settings.data_parallel_size)
        ])  # fmt: skip
    return steps


def _units(samples: Sequence[TrainSample], indices: Sequence[int], settings: LayoutSettings) -> list[Unit]:
    """Units over the step's sample indices; ``static`` puts one sample in a slot, so it shares nothing."""
    shared = prompt_sharing_units(
        samples,
        max_unit_tokens=0 if settings.strategy == "static" else settings.train_mb_tokens,
        hidden_size=settings.hidden_size,
    )
    return [
        Unit(samples=tuple(indices[s] for s in unit.samples), num_prompt_tokens=unit.num_prompt_tokens,
             num_tokens=unit.num_tokens)
        for unit in shared
    ]  # fmt: skip


def _micro_batches(
    units: Sequence[Unit], samples: Sequence[TrainSample], settings: LayoutSettings
) -> list[tuple[MicroBatch, ...]]:
    """Micro-batches of every rank, as many on each."""
    if not units:
        return [()] * settings.data_parallel_size
    shards = _shards([unit.num_tokens for unit in units], settings)
    return [
        tuple(micro_batch(_unit_rows(batch, units), samples, width=batch.width) for batch in shard) for shard in shards
    ]


def _unit_rows(batch: BatchedItems, units: Sequence[Unit]) -> list[list[Unit]]:
    """A row per unit, or all units in one row when they are packed."""
    chosen = [units[item] for item in batch.items]
    return [[unit] for unit in chosen] if batch.num_rows == len(chosen) else [chosen]


def _shards(lengths: Sequence[int], settings: LayoutSettings) -> Shards:
    ranks, budget = settings.data_parallel_size, settings.train_mb_tokens
    match settings.strategy:
        case "static":
            return static_batches(lengths, num_shards=ranks, micro_batch_size=settings.micro_batch_size)
        case "dynamic":
            return dynamic_batches(
                lengths, num_shards=ranks, max_tokens=budget, round_to=settings.sequence_length_round,
                max_width=max(budget, *lengths),
            )  # fmt: skip
        case "sequence_packing":
            return packed_batches(lengths, num_shards=ranks, capacity=budget)
        case _ as never:
            assert_never(never)
