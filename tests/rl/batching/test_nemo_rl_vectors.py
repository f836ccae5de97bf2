"""The placement NeMo RL computes for the same lengths (recorded in tests/vectors)."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl.batching import Shards, dynamic_batches, packed_batches, packed_bins, static_batches

VECTORS = Path(__file__).parents[2] / "vectors"


def cases(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((VECTORS / name).read_text())["cases"]
    return loaded


def by_chunk(count: int, chunk: int | None) -> list[range]:
    """Ranges of item indices, one per optimizer step."""
    size = chunk or count
    return [range(start, start + size) for start in range(0, count, size)]


def absolute(shards: Shards, chunk: range) -> list[list[tuple[list[int], int]]]:
    """(item indices of the whole batch, width) of every micro-batch of every shard."""
    return [[([chunk[i] for i in batch.items], batch.width) for batch in shard] for shard in shards]


def expected_micro_batches(
    uids: list[int], bounds: list[list[list[int]]], widths: list[list[int]]
) -> list[list[tuple[list[int], int]]]:
    """Per chunk, the (item indices, width) that one recorded shard's row ranges stand for."""
    chunks, offset = [], 0
    for chunk_bounds, chunk_widths in zip(bounds, widths, strict=True):
        rows = [(uids[offset + a : offset + b], w) for (a, b), w in zip(chunk_bounds, chunk_widths, strict=True)]
        chunks.append(rows)
        offset += chunk_bounds[-1][1]
    return chunks


@pytest.mark.parametrize("case", cases("static_sharding.json"))
def test_static_sharding(case: dict[str, Any]):
    shards: list[list[int]] = [[] for _ in range(case["dp"])]
    for chunk in by_chunk(case["n"], case["global_batch_size"]):
        for shard, batches in zip(
            shards, static_batches([1] * len(chunk), num_shards=case["dp"], micro_batch_size=2), strict=True
        ):
            shard.extend(chunk[i] for batch in batches for i in batch.items)
    assert shards == case["shards"]


@pytest.mark.parametrize("case", cases("dynamic_batching.json"))
def test_dynamic_batching(case: dict[str, Any]):
    got: list[list[Any]] = [[] for _ in range(case["dp"])]
    for chunk in by_chunk(len(case["input_lengths"]), case["global_batch_size"]):
        shards = dynamic_batches(
            [case["input_lengths"][i] for i in chunk],
            num_shards=case["dp"],
            max_tokens=case["max_tokens"],
            round_to=case["sequence_length_round"],
            max_width=case["padded_len"],
        )
        for shard, batches in zip(got, absolute(shards, chunk), strict=True):
            shard.append(batches)
    assert got == [
        expected_micro_batches(uids, case["micro_batch_indices"], case["micro_batch_lengths"])
        for uids in case["shard_uids"]
    ]


@pytest.mark.parametrize(
    "case", [case for case in cases("packing.json") if case.get("algorithm") == "modified_first_fit_decreasing"]
)
def test_packer(case: dict[str, Any]):
    lengths, capacity = case["lengths"], case["capacity"]
    if "error" in case:
        with pytest.raises(ValueError):
            packed_bins(lengths, capacity=capacity)
        return
    num_shards = case["bin_count_multiple"] or 1
    shards = packed_batches(lengths, num_shards=num_shards, capacity=capacity)
    bins = [list(shards[b % num_shards][b // num_shards].items) for b in range(len(case["bins"]))]
    assert bins == case["bins"]
    assert sum(map(len, shards)) == len(bins)


@pytest.mark.parametrize("case", [case for case in cases("packing.json") if "shards" in case])
def test_packing_over_shards(case: dict[str, Any]):
    got: list[list[Any]] = [[] for _ in range(case["dp"])]
    for chunk in by_chunk(len(case["lengths"]), case["global_batch_size"]):
        shards = packed_batches(
            [case["lengths"][i] for i in chunk],
            num_shards=case["dp"],
            capacity=case["capacity"],
            round_to=case["pad_multiple"],
        )
        for shard, batches in zip(got, absolute(shards, chunk), strict=True):
            shard.append(batches)
    assert got == [
        expected_micro_batches(shard["uids"], shard["micro_batch_indices"], shard["micro_batch_lengths"])
        for shard in case["shards"]
    ]
