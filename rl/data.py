"""Which dataset rows a step trains on. A function of the seed and a cursor, so that a resumed run goes on exactly.

Every epoch is one shuffle of the rows (or file order); rows left over when an epoch has fewer than a step needs are not
trained in that epoch.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_bridge.types import RolloutRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptOrder:
    """The order of rows over all epochs.

    Example:
        PromptOrder(num_rows=5, seed=42, shuffle=False).take(0, 2)  # ((0, 1), 2); the cursor 2 gives (2, 3), then
        # row 4 stays behind and the next epoch starts with (0, 1)
    """

    num_rows: int
    seed: int
    shuffle: bool

    def take(self, cursor: int, count: int) -> tuple[tuple[int, ...], int]:
        """The next rows.

        Args:
            cursor: rows consumed or left behind so far, over all epochs; 0 at the start.
            count: rows wanted, at most ``num_rows``.

        Returns:
            (row indices [count], the cursor after them).
        """
        assert 0 < count <= self.num_rows, f"{count} rows wanted of {self.num_rows}"
        epoch, position = divmod(cursor, self.num_rows)
        if position + count > self.num_rows:
            epoch, position = epoch + 1, 0
        rows = self.epoch_order(epoch)[position : position + count]
        return rows, epoch * self.num_rows + position + count

    def epoch_order(self, epoch: int) -> tuple[int, ...]:
        """Row indices in the order of one epoch (0-based)."""
        rows = list(range(self.num_rows))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(rows)
        return tuple(rows)


def group_requests(
    rows: Sequence[Mapping[str, Any]], row_indices: Sequence[int], *, num_generations: int, first_group: int = 0
) -> list[RolloutRequest]:
    """One request per response: ``num_generations`` for each row, each row a group of its own.

    Args:
        rows: the whole dataset.
        row_indices: the rows to roll out, [P].
        num_generations: responses per row.
        first_group: group id of the first row; later batches of the same step go on counting.
    """
    return [
        RolloutRequest(group_id=first_group + position, rollout_id=rollout, row_index=index, row=rows[index])
        for position, index in enumerate(row_indices)
        for rollout in range(num_generations)
    ]
