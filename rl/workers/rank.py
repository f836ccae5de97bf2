"""One rank of the policy: a Ray actor that holds the model and its optimizer."""

import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from rl.actor_output import redirect_output
from rl.adapter import adapter_weights, merged_weights
from rl.export import export_adapter, export_model
from rl.generation.transfer import PolicyWeights, TransferTarget, WeightSender
from rl.generation.weights import write_weights
from rl.micro_batch import FloatArray
from rl.optimizer import build_optimizer
from rl.workers.batch import RankBatch
from rl.workers.policy import PolicyModel
from rl.workers.settings import RankSettings
from rl.workers.step import RankResult, StepSettings, score, train_step

logger = logging.getLogger(__name__)


class PolicyRank:
    """Lives in a Ray actor; every method is called on all ranks at once (they contain collectives)."""

    def __init__(
        self,
        settings: RankSettings,
        *,
        rank: int,
        num_ranks: int,
        rendezvous: str,
        num_threads: int,
        log_file: Path | None,
    ):
        """
        Args:
            settings: the same on every rank.
            rank: 0 .. num_ranks - 1.
            num_ranks: processes that train together.
            rendezvous: address where they meet; read by several ranks only.
            num_threads: on a CPU.
            log_file: gets everything this process prints; None leaves its output alone.
        """
        if log_file is not None:
            redirect_output(log_file)
        # Here, since they import transformers: seconds that the driver need not spend.
        from rl.workers.dtensor import load_policy
        from rl.workers.model_config import router_settings
        from rl.workers.tensor_parallel import rank_mesh

        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
        self._settings = settings
        self._rank = rank
        device = torch.device(settings.device)
        torch.manual_seed(settings.seed)
        if settings.device == "cpu":
            torch.set_num_threads(num_threads)
        mesh = None
        if num_ranks > 1:
            backend = "gloo" if settings.device == "cpu" else "nccl"
            dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=num_ranks)
            mesh = rank_mesh(settings.device, num_ranks, tensor_parallel_size=settings.tensor_parallel_size)
        if settings.model.backend == "automodel" and settings.device == "cpu" and rank == 0:
            logger.info("automodel on a CPU: stock transformers modules, and Automodel's LoRA without Triton")
        self._policy = load_policy(settings.model, mesh, device)
        self._optimizer = build_optimizer(self._policy.parameters(), settings.optimizer)
        self._reference = _reference(self._policy, settings, mesh) if settings.loss.ref_policy_kl_penalty > 0 else None
        self._step_settings = StepSettings(
            loss=settings.loss,
            sampling=settings.sampling,
            compute_dtype=torch.bfloat16 if settings.compute_dtype == "bfloat16" else torch.float32,
            max_grad_norm=settings.max_grad_norm,
            router=router_settings(self._policy.language_model.config, settings.model.router_aux_loss_coef),
        )
        self._sender: WeightSender | None = None
        logger.info("rank %d of %d: %s on %s", rank, num_ranks, settings.model.folder, device)

    def pid(self) -> int:
        """This rank's process; answers once the model is loaded."""
        return os.getpid()

    def train(self, batch: RankBatch, learning_rate: float) -> RankResult:
        """One optimizer step on this rank's share of the batch."""
        return train_step(
            self._policy, self._optimizer, batch, self._step_settings, learning_rate=learning_rate,
            reference=self._reference,
        )  # fmt: skip

    def logprobs(self, batch: RankBatch) -> tuple[FloatArray, ...]:
        """Log-probabilities of the trained tokens of each micro-batch under the current weights."""
        self._policy.eval()  # without dropout, which only an adapter has
        try:
            return score(self._policy, batch, self._step_settings)
        finally:
            self._policy.train()

    def write_weights(self, folder: Path) -> None:
        """Give the sampler the weights: from GPU to GPU, or as files, which rank 0 writes.

        An adapter goes as it is on a GPU, and merged in on a CPU, where vLLM samples slowly from adapters.
        """
        from rl.workers.dtensor import full_weights, in_file_format

        lora = self._settings.model.lora
        if self._settings.transfer is not None:
            self._send_weights(self._settings.transfer)
        elif lora is not None and self._settings.device == "cuda":
            self.export(folder)
        else:
            weights = full_weights(self._policy)
            if self._rank != 0:
                return
            if lora is not None:
                weights = merged_weights(weights, multiplier=lora.multiplier)
            write_weights(in_file_format(self._policy, weights), folder, dtype=self._step_settings.compute_dtype)

    def _send_weights(self, target: TransferTarget) -> None:
        from rl.workers.dtensor import in_file_format, named_weights

        if self._sender is None:
            weights = PolicyWeights(
                lambda: named_weights(self._policy),
                dtype=self._step_settings.compute_dtype,
                as_in_files=lambda one: in_file_format(self._policy, one),
            )
            self._sender = WeightSender(weights, target, rank=self._rank)
        self._sender.send()

    def export(self, folder: Path) -> None:
        """Gather what was trained and, on rank 0, write a model folder, or an adapter's."""
        from rl.workers.dtensor import full_weights, in_file_format

        lora = self._settings.model.lora
        weights = full_weights(self._policy, trained_only=lora is not None)
        if self._rank != 0:
            return
        if lora is None:
            export_model(in_file_format(self._policy, weights), source=self._settings.model.folder, folder=folder)
        else:
            export_adapter(adapter_weights(weights), lora, base_model=self._settings.model.folder, folder=folder)


def _reference(policy: PolicyModel, settings: RankSettings, mesh: DeviceMesh | None) -> nn.Module:
    """The model before training: the policy without its adapter, or a second copy."""
    if settings.model.lora is not None:
        from rl.workers.lora import WithoutAdapter

        return WithoutAdapter(policy)
    from rl.workers.dtensor import load_policy

    return load_policy(settings.model, mesh, torch.device(settings.device)).requires_grad_(False)
