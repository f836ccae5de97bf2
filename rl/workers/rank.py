"""One rank of the policy: a Ray actor that holds the model and its optimizer."""

import logging
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.schema.sampling import Sampling
from rl.actor_output import redirect_output
from rl.loss import LossSettings
from rl.micro_batch import FloatArray
from rl.optimizer import OptimizerSettings
from rl.workers.dtensor import ModelSettings
from rl.workers.step import RankBatch, RankResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSettings:
    """Everything a rank needs to know; the same on all of them."""

    model: ModelSettings
    optimizer: OptimizerSettings
    loss: LossSettings
    sampling: Sampling
    device: Literal["cpu", "cuda"]
    compute_dtype: Literal["bfloat16", "float32"]
    """Precision of the forward and backward pass; master weights and optimizer state are float32."""
    max_grad_norm: float
    """Gradients are scaled down to this norm; 0 leaves them alone."""
    seed: int


class PolicyRank:
    """Lives in a Ray actor; every method is called on all ranks at once (they contain collectives)."""

    def __init__(
        self, settings: RankSettings, *, rank: int, num_ranks: int, rendezvous: str, num_threads: int, log_file: Path
    ):
        redirect_output(log_file)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
        warnings.simplefilter("default")
        self._settings = settings
        self._rank = rank
        self._num_ranks = num_ranks
        self._rendezvous = rendezvous
        self._num_threads = num_threads

    def load(self) -> int:
        """Join the other ranks and load the model; gives this rank's process id."""
        import torch  # in the actor only: the driver needs no torch to start one
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        from rl.optimizer import build_optimizer
        from rl.workers.dtensor import load_policy

        settings = self._settings
        torch.manual_seed(settings.seed)
        self._device = torch.device(settings.device)
        if settings.device == "cpu":
            torch.set_num_threads(self._num_threads)
        mesh = None
        if self._num_ranks > 1:
            backend = "gloo" if settings.device == "cpu" else "nccl"
            dist.init_process_group(backend, init_method=self._rendezvous, rank=self._rank, world_size=self._num_ranks)
            mesh = init_device_mesh(settings.device, (self._num_ranks,))
        self._policy = load_policy(settings.model, mesh, self._device)
        self._optimizer = build_optimizer(self._policy.parameters(), settings.optimizer)
        logger.info("rank %d of %d: %s on %s", self._rank, self._num_ranks, settings.model.folder, self._device)
        return os.getpid()

    def train(self, batch: RankBatch, learning_rate: float) -> RankResult:
        """One optimizer step on this rank's share of the batch."""
        from rl.workers.step import train_step

        return train_step(
            self._policy,
            self._optimizer,
            batch,
            learning_rate=learning_rate,
            loss=self._settings.loss,
            sampling=self._settings.sampling,
            compute_dtype=self._compute_dtype(),
            max_grad_norm=self._settings.max_grad_norm,
        )

    def logprobs(self, batch: RankBatch) -> tuple[FloatArray, ...]:
        """Log-probabilities of the trained tokens of each micro-batch under the current weights."""
        from rl.workers.step import score

        return score(self._policy, batch, sampling=self._settings.sampling, compute_dtype=self._compute_dtype())

    def write_weights(self, folder: Path) -> None:
        """Gather the weights and, on rank 0, write them for the sampler."""
        from rl.generation.weights import write_weights
        from rl.workers.dtensor import full_weights

        weights = full_weights(self._policy)
        if self._rank == 0:
            write_weights(weights, folder, dtype=self._settings.compute_dtype)

    def export(self, folder: Path) -> None:
        """Gather the weights and, on rank 0, write a model folder."""
        from rl.export import export_model
        from rl.workers.dtensor import full_weights

        weights = full_weights(self._policy)
        if self._rank == 0:
            export_model(weights, source=self._settings.model.folder, folder=folder)

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state with torch.distributed.checkpoint."""
        from rl.checkpoint import save_checkpoint

        save_checkpoint(self._policy, self._optimizer, folder)

    def restore(self, folder: Path) -> None:
        """Read what ``save`` wrote, also under another number of ranks."""
        from rl.checkpoint import load_checkpoint

        load_checkpoint(self._policy, self._optimizer, folder)

    def _compute_dtype(self) -> "torch.dtype":  # noqa: F821 - torch is imported inside the actor
        import torch

        return torch.bfloat16 if self._settings.compute_dtype == "bfloat16" else torch.float32
