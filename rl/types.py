"""Run-time types of the engine.

requests --(RolloutSource)--> Rollout --(gym_bridge.samples)--> TrainSample --(batching)--> StepBatch
         --(PolicyGroup)--> StepResult --(metrics, report)
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from gym_bridge.types import Rollout, RolloutRequest


class RolloutSource(Protocol):
    """Where rollouts come from: vLLM behind NeMo Gym (``rl.generation.live``), or a replay (``.scripted``)."""

    def collect(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        """Yield one rollout per request as each finishes; one that failed is yielded with its failure."""
        ...

    async def update_weights(self, weights: Path, *, policy_version: int) -> None:
        """Sample from now on with the safetensors in ``weights``, known as ``policy_version``."""
        ...

    async def close(self) -> None:
        """Leave no process, port or temporary folder behind."""
        ...
