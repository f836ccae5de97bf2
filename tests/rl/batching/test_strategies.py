"""Static, dynamic and packed batches: placement by hand, and the promises every placement keeps."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.batching import BatchedItems, Shards, dynamic_batches, packed_batches, padding_share, static_batches


def items_of(shards: Shards) -> list[list[tuple[int, ...]]]:
    return [[batch.items for batch in shard] for shard in shards]


def test_static_batches_are_contiguous_and_as_wide_as_their_longest_item():
    shards = static_batches([5, 9, 2, 3], num_shards=2, micro_batch_size=2)
    assert shards == [
        [BatchedItems(items=(0, 1), num_rows=2, width=9)],
        [BatchedItems(items=(2, 3), num_rows=2, width=3)],
    ]


def test_static_batches_split_an_uneven_count_without_an_empty_micro_batch():
    assert items_of(static_batches([1] * 5, num_shards=2, micro_batch_size=2)) == [[(0,), (1,)], [(2,), (3, 4)]]


def test_dynamic_batches_group_similar_lengths_within_the_budget():
    # Sorted: 3, 10, 60 in 3 * 64 tokens | 64, as four rows exceed 199 | 100, as two rows of 100 (128, cut) exceed 199.
    shards = dynamic_batches([100, 3, 64, 10, 60], num_shards=1, max_tokens=199, round_to=64, max_width=100)
    assert shards == [
        [
            BatchedItems(items=(1, 3, 4), num_rows=3, width=64),
            BatchedItems(items=(2,), num_rows=1, width=64),
            BatchedItems(items=(0,), num_rows=1, width=100),
        ]
    ]


def test_dynamic_batches_leave_the_short_shard_without_its_shortest_row():
    # Sorted: 1, 2, 3, 4, 5 over two shards: rows (1, -), (2, 3), (4, 5).
    shards = dynamic_batches([1, 2, 3, 4, 5], num_shards=2, max_tokens=6, round_to=1, max_width=5)
    assert items_of(shards) == [[(0, 1), (3,)], [(2,), (4,)]]


def test_packed_batches_lay_items_end_to_end_padded_to_the_multiple():
    # 5 -> 8, 9 -> 12, 2 -> 4: 12 + 4 = 16 fill the first row.
    shards = packed_batches([5, 9, 2], num_shards=1, capacity=16, round_to=4)
    assert shards == [[BatchedItems(items=(1, 2), num_rows=1, width=16), BatchedItems(items=(0,), num_rows=1, width=8)]]


def test_shards_beyond_the_number_of_items_get_an_empty_micro_batch():
    assert items_of(packed_batches([7], num_shards=2, capacity=8)) == [[(0,)], [()]]
    assert items_of(static_batches([7], num_shards=2, micro_batch_size=1)) == [[()], [(0,)]]
    assert items_of(dynamic_batches([7], num_shards=2, max_tokens=8, round_to=1, max_width=7)) == [[(0,)], [()]]


@pytest.mark.parametrize("lengths", [[5, 11], [0, 3]])
def test_packing_refuses_what_no_row_can_hold(lengths: list[int]):
    with pytest.raises(ValueError, match="a row of this batch holds 1 to 10"):
        packed_batches(lengths, num_shards=1, capacity=10)


def test_padding_share_counts_every_computed_token():
    # Rows of 4, 2 in a width of 4: 8 computed, 6 real.
    assert padding_share(static_batches([4, 2], num_shards=1, micro_batch_size=2), [4, 2]) == 0.25
    assert padding_share(static_batches([], num_shards=2, micro_batch_size=2), []) == 0.0


STRATEGIES: dict[str, Callable[[list[int], int], Shards]] = {
    "static": lambda lengths, shards: static_batches(lengths, num_shards=shards, micro_batch_size=3),
    "dynamic": lambda lengths, shards: dynamic_batches(
        lengths, num_shards=shards, max_tokens=128, round_to=16, max_width=64
    ),
    "packed": lambda lengths, shards: packed_batches(lengths, num_shards=shards, capacity=64, round_to=2),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(lengths=st.lists(st.integers(1, 64), max_size=40), num_shards=st.integers(1, 5))
def test_every_item_is_placed_once_and_shards_stay_in_step(strategy: str, lengths: list[int], num_shards: int):
    shards = STRATEGIES[strategy](lengths, num_shards)
    assert len(shards) == num_shards
    assert len({len(shard) for shard in shards}) == 1
    batches = [batch for shard in shards for batch in shard]
    assert sorted(i for batch in batches for i in batch.items) == list(range(len(lengths)))
    for batch in batches:
        longest = max((lengths[i] for i in batch.items), default=0)
        if strategy == "packed":
            assert sum(lengths[i] for i in batch.items) <= batch.width <= 64
        else:
            assert batch.num_rows == len(batch.items)
            assert longest <= batch.width
        if strategy == "dynamic":
            assert batch.num_rows * batch.width <= 128
        if strategy == "static":
            assert batch.num_rows <= 3


def test_a_large_mix_stays_within_the_padding_that_is_promised():
    lengths = [40 + (i * 7919) % 1500 // (1 + i % 5) for i in range(1024)]
    dynamic = dynamic_batches(lengths, num_shards=1, max_tokens=2048, round_to=64, max_width=2048)
    packed = packed_batches(lengths, num_shards=1, capacity=2048)
    assert padding_share(dynamic, lengths) < 0.12
    assert sum(lengths) / (2048 * len(packed[0])) > 0.98
