"""A rollout source without a sampler: replays given rollouts, so that a loop runs in milliseconds.

RolloutRequest (row, generation) --> the rollout given for that row, under the request's identity
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gym_bridge.types import Rollout, RolloutRequest
from launcher.schema.problems import RunFailed


class ScriptedSource:
    """Answers every request for a row with the next rollout given for that row, from the first again after the last.

    Example:
        ScriptedSource({0: [good, bad], 1: [bad, bad]})  # two generations of row 0: good, bad; asked again: the same
    """

    def __init__(self, rollouts: Mapping[int, Sequence[Rollout]]):
        """
        Args:
            rollouts: row index -> what its generations are, [at least 1]. Their identity and policy version are
                replaced by those of the request.
        """
        self._rollouts = rollouts
        self._num_replayed = dict.fromkeys(rollouts, 0)
        self.updates: list[tuple[int, tuple[str, ...]]] = []
        """Of every weight update so far: policy version and the names of the files that came."""
        self.closed = False

    async def collect(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout]:
        """Yield the rollouts in the order of their requests.

        Raises:
            RunFailed: the script has nothing for a row.
        """
        assert not self.closed, "the source is closed"
        for request in requests:
            yield replace(
                self._next(request.row_index),
                group_id=request.group_id,
                rollout_id=request.rollout_id,
                row_index=request.row_index,
                policy_version=self.updates[-1][0] if self.updates else 0,
            )

    async def update_weights(self, weights: Path, *, policy_version: int) -> None:
        """Note the update; the script stays as it is."""
        self.updates.append((policy_version, tuple(sorted(path.name for path in weights.iterdir()))))

    async def close(self) -> None:
        """Nothing to leave behind."""
        self.closed = True

    def _next(self, row_index: int) -> Rollout:
        given = self._rollouts.get(row_index)
        if not given:
            known = ", ".join(map(str, sorted(self._rollouts))) or "none"
            raise RunFailed(f"the script has no rollout for dataset row {row_index}; it has rows {known}")
        position = self._num_replayed[row_index]
        self._num_replayed[row_index] = position + 1
        return given[position % len(given)]
