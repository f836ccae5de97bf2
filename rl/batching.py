"""Which rollouts share a forward pass: lengths in, item indices out. No tensors here.

One call places the items of one optimizer step::

    TrainSample --(prompt_sharing_units)--> Unit --(static | dynamic | packed _batches)--> Shards

    Shards    shard 0: [micro-batch 0, micro-batch 1, ...]     every shard has the same number of micro-batches, because
              shard 1: [micro-batch 0, micro-batch 1, ...]     its rank enters the same collectives as the others

The placement of ``static`` and ``dynamic`` items, and the packer, are those of NeMo RL (``tests/vectors``) wherever it
accepts the batch. It refuses counts that do not divide evenly; here some micro-batches then hold fewer items, or none.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from gym_bridge.types import TrainSample


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What a forward pass treats as one item: a sample, or samples that continue one prompt, which is computed once.

    Laid out as prompt + response of the first sample + response of the second + ...; a response attends to the prompt
    and to itself.

    Example:
        Unit(samples=(0, 3), num_prompt_tokens=120, num_tokens=200) for responses of 60 and 20 tokens.
    """

    samples: tuple[int, ...]
    """Indices of the samples."""
    num_prompt_tokens: int
    """Tokens before the first trained one, equal in all samples."""
    num_tokens: int
    """Prompt and all responses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchedItems:
    """The items of one micro-batch of one shard.

    Example:
        BatchedItems(items=(11, 7, 5, 2), num_rows=4, width=64) for four padded rows,
        BatchedItems(items=(4, 9, 2), num_rows=1, width=126) for three items laid end to end in one row.
    """

    items: tuple[int, ...]
    """Indices into the lengths, in row order or, when packed, in order along the row. Empty where a shard ran out."""
    num_rows: int
    """Rows of the forward pass: one per item, or 1 when packed."""
    width: int
    """Tokens of a row, padding included."""


type Shards = list[list[BatchedItems]]
"""``shards[s][m]`` is micro-batch m of data-parallel shard s."""


def prompt_sharing_units(samples: Sequence[TrainSample], *, max_unit_tokens: int, hidden_size: int) -> list[Unit]:
    """The cheapest units: samples of one group share the prompt where that costs less than repeating it.

    The cost of a unit of L tokens is ``L + L^2 / (6 * hidden_size)``: a transformer layer spends about 24 hidden^2
    operations per token on its weights and 4 L hidden on attention, taken over the whole square of the unit although
    responses do not see each other. A shared prompt saves the first term and long responses add to the second, so
    each group is cut, in its order, into the runs with the least total cost.

    Args:
        samples: the samples of one optimizer step, [N].
        max_unit_tokens: no unit of several samples has more tokens.
        hidden_size: width of the model's residual stream.

    Returns:
        Units ordered by their first sample; every sample is in exactly one.
    """
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for index, sample in enumerate(samples):
        prompt = sample.token_ids[: _num_prompt_tokens(sample)]
        groups.setdefault((sample.group_id, prompt), []).append(index)

    units: list[Unit] = []
    for (_, prompt), indices in groups.items():
        response_tokens = [len(samples[i].token_ids) - len(prompt) for i in indices]
        cuts = _cheapest_cuts(
            response_tokens,
            num_prompt_tokens=len(prompt),
            max_tokens=max_unit_tokens,
            attention_cost=1 / (6 * hidden_size),
        )
        for start, stop in pairwise(cuts):
            num_tokens = len(prompt) + sum(response_tokens[start:stop])
            units.append(Unit(samples=tuple(indices[start:stop]), num_prompt_tokens=len(prompt), num_tokens=num_tokens))
    return sorted(units, key=lambda unit: unit.samples[0])


def _num_prompt_tokens(sample: TrainSample) -> int:
    return sample.loss_mask.index(1) if 1 in sample.loss_mask else len(sample.token_ids)


def _cheapest_cuts(
    response_tokens: Sequence[int], *, num_prompt_tokens: int, max_tokens: int, attention_cost: float
) -> list[int]:
    """Boundaries ``[0, ..., N]`` of the runs whose units cost least together, of equals the shorter runs."""
    ends = [0, *accumulate(response_tokens)]
    best_cost = [0.0]  # of the first n responses
    last_start = [0]
    for stop in range(1, len(ends)):
        best, best_start = float("inf"), stop - 1
        for start in range(stop - 1, -1, -1):
            num_tokens = num_prompt_tokens + ends[stop] - ends[start]
            if num_tokens > max_tokens and stop - start > 1:
                break
            cost = best_cost[start] + num_tokens + attention_cost * num_tokens**2
            if cost < best:
                best, best_start = cost, start
        best_cost.append(best)
        last_start.append(best_start)

    cuts = [len(response_tokens)]
    while cuts[-1] > 0:
        cuts.append(last_start[cuts[-1]])
    return cuts[::-1]


def static_batches(lengths: Sequence[int], *, num_shards: int, micro_batch_size: int) -> Shards:
    """Items in their order: contiguous shards, cut into micro-batches of a fixed number of rows.

    Args:
        lengths: tokens of each item, [N].
        num_shards: data-parallel size, at least 1.
        micro_batch_size: most rows of a micro-batch, at least 1.

    Returns:
        Micro-batches as wide as their own longest item.
    """
    shard_items = _even_runs(range(len(lengths)), num_shards)
    num_micro_batches = max(-(-len(items) // micro_batch_size) for items in shard_items)
    return [
        [_rows(run, width=max((lengths[i] for i in run), default=0)) for run in _even_runs(items, num_micro_batches)]
        for items in shard_items
    ]


def dynamic_batches(
    lengths: Sequence[int], *, num_shards: int, max_tokens: int, round_to: int, max_width: int
) -> Shards:
    """Items of similar length together, as many rows as the token budget allows.

    The items, sorted by length, are dealt to the shards in turn, so that row r holds about the same length everywhere;
    the boundaries of micro-batches and their widths are common to all shards.

    Args:
        lengths: tokens of each item, [N].
        num_shards: data-parallel size, at least 1.
        max_tokens: budget of rows times width of one micro-batch; a single row may exceed it.
        round_to: widths are rounded up to a multiple of this.
        max_width: rounding never pads past this; at least the longest item.

    Returns:
        Micro-batches in ascending width.
    """
    assert max(lengths, default=0) <= max_width, "an item is longer than max_width"
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    # Shards that get one item less miss their first, shortest row: the row most likely to share a micro-batch.
    first = len(order) % num_shards
    deals = ([order[:first]] if first else []) + [
        order[i : i + num_shards] for i in range(first, len(order), num_shards)
    ]

    bounds: list[tuple[int, int, int]] = []  # first row, row after the last, width
    for row, deal in enumerate(deals):
        width = min(_round_up(lengths[deal[-1]], round_to), max_width)
        start = bounds[-1][0] if bounds else 0
        if bounds and (row + 1 - start) * width <= max_tokens:
            bounds[-1] = (start, row + 1, width)
        else:
            bounds.append((row, row + 1, width))
    return [
        [
            _rows([deal[shard] for deal in deals[start:stop] if shard < len(deal)], width=width)
            for start, stop, width in bounds
        ]
        for shard in range(num_shards)
    ]


def packed_batches(lengths: Sequence[int], *, num_shards: int, capacity: int, round_to: int = 1) -> Shards:
    """Items laid end to end, each micro-batch one row of at most ``capacity`` tokens.

    Args:
        lengths: tokens of each item, at least 1 each, [N].
        num_shards: data-parallel size, at least 1.
        capacity: most tokens of a row.
        round_to: each item is padded to a multiple of this; the tensor-parallel size.

    Returns:
        Row b of the packer on shard b % num_shards, as wide as the items in it.

    Raises:
        ValueError: an item is empty or, padded, longer than the capacity.
    """
    padded = [_round_up(length, round_to) for length in lengths]
    bins = _spread(packed_bins(padded, capacity=capacity), multiple_of=num_shards)
    rows = [BatchedItems(items=tuple(items), num_rows=1, width=sum(padded[i] for i in items)) for items in bins]
    return [rows[shard::num_shards] for shard in range(num_shards)]


def padding_share(shards: Shards, lengths: Sequence[int]) -> float:
    """Share of the computed tokens that is padding, 0 to 1: ``1 - sum(lengths) / sum(rows * width)``."""
    computed = sum(batch.num_rows * batch.width for shard in shards for batch in shard)
    return 1 - sum(lengths) / computed if computed else 0.0


def packed_bins(lengths: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Modified first-fit decreasing: indices of the items of each bin, in few bins.

    After Johnson and Garey, "A 71/60 theorem for bin packing" (1985): items above half a bin each open one; a bin then
    takes the largest item above a third that fits it; bins that found none take a pair above a sixth, the emptiest bin
    first; then every bin takes what still fits. Deviation, NeMo RL's: what is left is packed worst-fit, not first-fit.

    Args:
        lengths: tokens of each item, [N].
        capacity: tokens of a bin.

    Returns:
        Bins in the order they were opened.

    Raises:
        ValueError: a length is below 1 or above the capacity.
    """
    for index, length in enumerate(lengths):
        if not 0 < length <= capacity:
            raise ValueError(f"item {index} has {length} tokens; a row of this batch holds 1 to {capacity}")
    descending = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    large = [i for i in descending if 2 * lengths[i] > capacity]
    medium = [i for i in descending if 2 * lengths[i] <= capacity < 3 * lengths[i]]
    small = [i for i in descending if 3 * lengths[i] <= capacity < 6 * lengths[i]]
    tiny = [i for i in descending if 6 * lengths[i] <= capacity]

    bins = [[i] for i in large]
    free = [capacity - lengths[i] for i in large]

    def move(item: int, source: list[int], b: int) -> None:
        source.remove(item)
        bins[b].append(item)
        free[b] -= lengths[item]

    def move_largest_fitting(source: list[int], b: int) -> bool:
        position = bisect_left(source, -free[b], key=lambda i: -lengths[i])
        if position == len(source):
            return False
        move(source[position], source, b)
        return True

    without_medium = [b for b in range(len(bins)) if not move_largest_fitting(medium, b)]
    for b in reversed(without_medium):
        if len(small) >= 2 and lengths[small[-1]] + lengths[small[-2]] <= free[b]:
            move(small[-1], small, b)
            partner = max((i for i in reversed(small) if lengths[i] <= free[b]), key=lengths.__getitem__)
            move(partner, small, b)
    rest = sorted(medium + small + tiny, key=lambda i: -lengths[i])
    for b in range(len(bins)):
        while move_largest_fitting(rest, b):
            pass
    return bins + _worst_fit_bins(rest, lengths, capacity=capacity)


def _worst_fit_bins(items: Sequence[int], lengths: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Bins for ``items`` in their order, each into the emptiest bin so far or a new one; the emptiest bin first."""
    bins: list[tuple[int, list[int]]] = []  # (tokens in it, items), ascending by tokens
    for item in items:
        tokens, contents = bins.pop(0) if bins and bins[0][0] + lengths[item] <= capacity else (0, [])
        insort(bins, (tokens + lengths[item], [*contents, item]), key=lambda entry: entry[0])
    return [contents for _, contents in bins]


def _spread(bins: list[list[int]], *, multiple_of: int) -> list[list[int]]:
    """``bins`` plus new ones up to a multiple: each gets one item of the fullest bins, or none when items run out."""
    bins = [list(items) for items in bins]
    donors = sorted(range(len(bins)), key=lambda b: (-len(bins[b]), -b))
    for _ in range(-len(bins) % multiple_of):
        donors = [b for b in donors if len(bins[b]) > 1]
        bins.append([bins[donors[0]].pop()] if donors else [])
    return bins


def _rows(items: Sequence[int], *, width: int) -> BatchedItems:
    return BatchedItems(items=tuple(items), num_rows=len(items), width=width)


def _even_runs(items: Sequence[int], num_runs: int) -> list[Sequence[int]]:
    """``items`` in order as ``num_runs`` runs whose sizes differ by at most one."""
    return [items[len(items) * run // num_runs : len(items) * (run + 1) // num_runs] for run in range(num_runs)]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
