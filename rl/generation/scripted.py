"""A replay: rollouts that were made before, given again in the order they are asked for."""

import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gym_bridge.types import Rollout, RolloutRequest


class ScriptedSource:
    """A ``RolloutSource`` without model and environment: the second implementation, for tests and recorded runs."""

    def __init__(self, rollouts: Iterable[Rollout], *, keep_weights: Path | None = None):
        """
        Args:
            rollouts: given one per request, in order; must last for all requests.
            keep_weights: folder that gets a copy of every set of weights as ``<policy version>``.
        """
        self._rollouts = iter(rollouts)
        self._keep_weights = keep_weights
        self.policy_version = 0

    async def collect(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        """Yield the next rollouts under the ids of the requests."""
        for request in requests:
            rollout = next(self._rollouts, None)
            assert rollout is not None, "the script has fewer rollouts than were asked for"
            yield replace(
                rollout,
                group_id=request.group_id,
                rollout_id=request.rollout_id,
                row_index=request.row_index,
                policy_version=self.policy_version,
            )

    async def rest(self) -> None:
        """Nothing to give back."""

    async def update_weights(self, weights: Path, *, policy_version: int) -> None:
        """Note the version, and keep the weights if asked to."""
        self.policy_version = policy_version
        if self._keep_weights is not None:
            shutil.copytree(weights, self._keep_weights / str(policy_version))

    async def close(self) -> None:
        """Nothing runs."""
