"""Run-time types of the engine.

requests --(RolloutSource)--> Rollout --(gym_bridge.samples)--> TrainSample --(batching)--> StepBatch
         --(PolicyGroup)--> StepResult --(metrics, report)
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from gym_bridge.types import Rollout, RolloutRequest
from rl.micro_batch import FloatArray
from rl.workers.batch import RankBatch
from rl.workers.step import StepResult


class Policy(Protocol):
    """The model under training: ranks in Ray actors (``rl.workers.group``), or one rank in this process (tests)."""

    async def train(self, batches: Sequence[RankBatch], *, learning_rate: float) -> StepResult:
        """One optimizer step; ``batches`` holds the share of each rank."""
        ...

    async def logprobs(self, batches: Sequence[RankBatch]) -> list[tuple[FloatArray, ...]]:
        """Log-probabilities of the trained tokens under the current weights, per rank and micro-batch."""
        ...

    async def write_weights(self, folder: Path) -> None:
        """Write the current weights into ``folder``, or send them to the sampler directly."""
        ...


class RolloutSource(Protocol):
    """Where rollouts come from: vLLM behind NeMo Gym (``rl.generation.live``), or a replay (``.scripted``)."""

    def collect(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        """Yield one rollout per request as each finishes; one that failed is yielded with its failure."""
        ...

    async def rest(self) -> None:
        """Until new weights come nothing will be sampled: give back what training needs."""
        ...

    async def update_weights(self, weights: Path, *, policy_version: int) -> None:
        """Sample from now on with what the policy wrote for ``weights``, known as ``policy_version``."""
        ...

    async def close(self) -> None:
        """Leave no process, port or temporary folder behind."""
        ...
