"""Micro-batches: token rows laid out for one forward and backward pass.

A row holds one or several *units* one after another; a unit is a prompt followed by one or several responses to it,
each continuing the prompt directly (so the prompt is computed once for its whole group):

    tokens     p0 p1 p2 | a0 a1 a2 | b0 b1 | pad        positions  0 1 2 | 3 4 5 | 3 4 | 8
    documents   0  0  0    0  0  0    0  0    -1        segments   0 0 0 | 1 1 1 | 2 2 | 0

A token sees the tokens before it of its own document whose segment is 0 (the prompt) or its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gym_bridge.types import TrainSample
from rl.batching import Unit

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """One forward pass: B rows of T tokens, of which N tokens (flat) are trained."""

    token_ids: IntArray
    """[B, T], 0 where padded."""
    position_ids: IntArray
    """[B, T]."""
    document_ids: IntArray
    """Unit within the row, -1 where padded, [B, T]."""
    segment_ids: IntArray
    """0 for the shared prompt, k for response k of the unit, [B, T]."""
    predict_from: IntArray
    """Flat index into B*T of the position whose output predicts the trained token, [N]."""
    targets: IntArray
    """The trained tokens, [N]."""
    samples: IntArray
    """Index of the sample each trained token belongs to, [N]."""
    sampler_logprobs: FloatArray
    """What the sampler said of each trained token, [N]."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.document_ids >= 0).sum())


def micro_batch(rows: Sequence[Sequence[Unit]], samples: Sequence[TrainSample], *, width: int) -> MicroBatch:
    """Lay units out in rows.

    Args:
        rows: the units of each row, in order. None at all (a rank that ran out of units but must take part in the
            others' collectives) gives one row of padding without trained tokens.
        samples: the step's samples, looked up by the indices that the units hold.
        width: tokens per row (T), at least the longest row's.

    Returns:
        The micro-batch. Trained tokens come in row order, so flat arrays of several micro-batches can be joined.
    """
    laid_out = [_row(units, samples) for units in rows or [[]]]
    shape = (len(laid_out), max(width, 1))
    token_ids, segment_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    position_ids = np.tile(
        np.arange(shape[1]), (len(laid_out), 1)
    )  # padding counts on: no attention code sees a new sequence
    document_ids = np.full(shape, -1, np.int64)
    for index, row in enumerate(laid_out):
        length = len(row.token_ids)
        token_ids[index, :length] = row.token_ids
        position_ids[index, :length] = row.position_ids
        segment_ids[index, :length] = row.segment_ids
        document_ids[index, :length] = row.document_ids
    return MicroBatch(
        token_ids=token_ids,
        position_ids=position_ids,
        document_ids=document_ids,
        segment_ids=segment_ids,
        predict_from=np.array(
            [index * shape[1] + column for index, row in enumerate(laid_out) for column in row.predict_from], np.int64
        ),
        targets=np.array([token for row in laid_out for token in row.targets], np.int64),
        samples=np.array([sample for row in laid_out for sample in row.samples], np.int64),
        sampler_logprobs=np.array([value for row in laid_out for value in row.logprobs], np.float32),
    )


@dataclass(slots=True)
class _Row:
    """A row while it grows; lists are per token (first four) or per trained token (last four)."""

    token_ids: list[int]
    position_ids: list[int]
    document_ids: list[int]
    segment_ids: list[int]
    predict_from: list[int]
    targets: list[int]
    samples: list[int]
    logprobs: list[float]


def _row(units: Sequence[Unit], samples: Sequence[TrainSample]) -> _Row:
    row = _Row([], [], [], [], [], [], [], [])
    for document, unit in enumerate(units):
        shared = unit.num_prompt_tokens if len(unit.samples) > 1 else 0
        start = len(row.token_ids)
        _append(row, samples[unit.samples[0]].token_ids[:shared], first_position=0, document=document, segment=0)
        for segment, index in enumerate(unit.samples, start=1 if shared else 0):
            sample = samples[index]
            offset = len(row.token_ids) - shared  # token t of the sample stands in column offset + t, for t >= shared
            _append(row, sample.token_ids[shared:], first_position=shared, document=document, segment=segment)
            for t, trained in enumerate(sample.loss_mask):
                if trained:
                    assert t > 0, "nothing predicts the first token"
                    row.predict_from.append(start + t - 1 if t == shared else offset + t - 1)
                    row.targets.append(sample.token_ids[t])
                    row.samples.append(index)
                    row.logprobs.append(sample.logprobs[t])
    return row


def _append(row: _Row, tokens: Sequence[int], *, first_position: int, document: int, segment: int) -> None:
    row.token_ids.extend(tokens)
    row.position_ids.extend(range(first_position, first_position + len(tokens)))
    row.document_ids.extend([document] * len(tokens))
    row.segment_ids.extend([segment] * len(tokens))
