"""One optimizer step of one rank: forward and backward over its micro-batches, clip, step.

Micro-batches and ranks only split the work: the loss is normalised by the token count of the whole optimizer step, so
that gradients add up to the same sum however it is split (FSDP2 averages over ranks, hence the factor
data_parallel_size).

A step in which no rollout has a gradient leaves the weights exactly as they are. Deviation from NeMo RL: it steps with
a gradient of zeros, so that weight decay and momentum act all the same.
"""

import math
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from launcher.schema.sampling import Sampling
from rl.loss import LossSettings, policy_loss
from rl.loss_statistics import LossStatistics, combined
from rl.micro_batch import FloatArray, MicroBatch
from rl.optimizer import clip_gradients
from rl.router_loss import ExpertLoad, RouterSettings, balance_loss, expert_load, sample_counts
from rl.workers.batch import RankBatch
from rl.workers.policy import PolicyModel, PolicyOutput, device_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """What a step computes with."""

    loss: LossSettings
    sampling: Sampling
    compute_dtype: torch.dtype
    """Of the forward and backward pass; float32 computes in the weights' own precision."""
    max_grad_norm: float
    """Gradients are scaled down to this norm; 0 leaves them alone."""
    router: RouterSettings | None = None
    """Balances a mixture of experts; None leaves its routers to the policy loss alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """What one rank reports of one optimizer step."""

    statistics: LossStatistics
    """Over this rank's tokens."""
    grad_norm: float
    """Of the whole gradient, before clipping."""
    seconds: float
    peak_memory_bytes: int
    """Highest so far: of the GPU, or of the process on a CPU."""
    router_aux_loss: float | None = None
    """This rank's part, before its coefficient; None without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One optimizer step over all ranks."""

    statistics: LossStatistics
    grad_norm: float
    seconds: float
    """Of the slowest rank."""
    peak_memory_bytes: int
    """Of the largest rank."""
    router_aux_loss: float | None = None
    """Before its coefficient; None without."""


def joined_results(results: Sequence[RankResult], *, copies: int = 1) -> StepResult:
    """Add up what the ranks report.

    Args:
        results: of all ranks, in their order.
        copies: so many ranks in a row computed the same, and count once.
    """
    different = results[::copies]
    router_losses = [result.router_aux_loss for result in different if result.router_aux_loss is not None]
    return StepResult(
        statistics=combined(result.statistics for result in different),
        grad_norm=results[0].grad_norm,
        seconds=max(result.seconds for result in results),
        peak_memory_bytes=max(result.peak_memory_bytes for result in results),
        router_aux_loss=sum(router_losses) if router_losses else None,
    )


def train_step(
    policy: PolicyModel,
    optimizer: Optimizer,
    batch: RankBatch,
    settings: StepSettings,
    *,
    learning_rate: float,
    reference: nn.Module | None,
) -> RankResult:
    """One optimizer step.

    Args:
        policy: the model, on the device it computes on.
        optimizer: over its parameters.
        batch: this rank's share.
        settings: how.
        learning_rate: of this step.
        reference: the policy before training, called as the policy is; needed with a KL penalty.

    Raises:
        FloatingPointError: the gradient is not finite; the weights are as before.
    """
    started = time.monotonic()
    load = _global_expert_load(policy, batch, settings) if settings.router is not None else None
    statistics, balances = [], []
    for index, micro_batch in enumerate(batch.micro_batches):
        previous = None if batch.previous_logprobs is None else batch.previous_logprobs[index]
        trains = index < len(batch.trained)
        with torch.set_grad_enabled(trains):
            loss, sums, balance = _micro_batch_loss(
                policy, micro_batch, batch, settings, previous=previous, reference=reference, load=load
            )
        if trains:
            torch.autograd.backward(loss * batch.data_parallel_size)
        statistics.append(sums)
        balances.append(balance)
    _reshard(policy)
    grad_norm = clip_gradients(policy.parameters(), settings.max_grad_norm)
    if not math.isfinite(grad_norm):
        raise FloatingPointError(
            f"the gradient norm is {grad_norm}: nothing was updated; lower training.learning_rate, or train in float32"
            " (model.dtype)"
        )
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return RankResult(
        statistics=combined(statistics),
        grad_norm=grad_norm,
        seconds=time.monotonic() - started,
        peak_memory_bytes=peak_memory_bytes(),
        router_aux_loss=float(sum(balances)) if load is not None else None,
    )


def score(policy: PolicyModel, batch: RankBatch, settings: StepSettings) -> tuple[FloatArray, ...]:
    """Log-probabilities of the trained tokens of each micro-batch under the current weights, without gradient."""
    with torch.no_grad():
        scores = tuple(
            _forward(policy, micro_batch, settings).logprobs.cpu().numpy().astype(np.float32)
            for micro_batch in batch.micro_batches
        )
    _reshard(policy)
    return scores


def peak_memory_bytes() -> int:
    """Highest memory use of this process so far: of its GPU when it has one, else resident memory."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _micro_batch_loss(
    policy: PolicyModel,
    micro_batch: MicroBatch,
    batch: RankBatch,
    settings: StepSettings,
    *,
    previous: FloatArray | None,
    reference: nn.Module | None,
    load: ExpertLoad | None,
) -> tuple[Tensor, LossStatistics, Tensor | float]:
    """(loss, statistics of the policy loss, balance of the routers before its coefficient)."""
    output = _forward(policy, micro_batch, settings, with_router_logits=load is not None)
    logprobs = output.logprobs
    reference_logprobs = None
    if reference is not None:
        with torch.no_grad():
            reference_logprobs = _forward(reference, micro_batch, settings).logprobs
    sequences, sequence_of_token = np.unique(micro_batch.samples, return_inverse=True)

    def tensor(array: np.typing.NDArray[np.generic]) -> Tensor:
        return torch.tensor(array, device=logprobs.device)  # a copy: what came through Ray cannot be written to

    loss, statistics = policy_loss(
        logprobs,
        previous_T=None if previous is None else tensor(previous),
        sampler_T=tensor(micro_batch.sampler_logprobs),
        reference_T=reference_logprobs,
        advantages_T=tensor(batch.advantages[micro_batch.samples]),
        sequence_T=tensor(sequence_of_token),
        num_sequences=len(sequences),
        global_num_tokens=batch.num_tokens,
        entropies_T=output.entropies,
        settings=settings.loss,
    )
    if load is None or settings.router is None:
        return loss, statistics, 0.0
    balance = balance_loss(output.router_logits, tensor(sample_counts(micro_batch)).flatten(), load)
    return loss + settings.router.coefficient * balance, statistics, balance.detach()


@torch.no_grad()
def _global_expert_load(policy: PolicyModel, batch: RankBatch, settings: StepSettings) -> ExpertLoad:
    """What the routers decide for all tokens of the optimizer step, over all ranks: a forward pass of its own."""
    assert settings.router is not None
    device = next(policy.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    load = ExpertLoad(assignments_E=total, num_routed=total)
    for micro_batch in batch.trained:
        logits = _forward(policy, micro_batch, settings, with_router_logits=True).router_logits
        counts = torch.tensor(sample_counts(micro_batch), device=device).flatten()
        load = load + expert_load(logits, counts, settings.router)
    _reshard(policy)
    if dist.is_initialized():
        copies = dist.get_world_size() // batch.data_parallel_size  # ranks that see the same tokens
        for counted in (load.assignments_E, load.num_routed):
            dist.all_reduce(counted)
            counted /= copies
    return load


def _forward(
    policy: nn.Module, micro_batch: MicroBatch, settings: StepSettings, *, with_router_logits: bool = False
) -> PolicyOutput:
    device = next(policy.parameters()).device
    lower_precision = settings.compute_dtype != torch.float32
    extra = {"with_router_logits": True} if with_router_logits else {}
    with torch.autocast(device.type, settings.compute_dtype, enabled=lower_precision):
        output: PolicyOutput = policy(
            device_batch(micro_batch, device),
            temperature=settings.sampling.temperature,
            top_k=settings.sampling.top_k,
            **extra,
        )
    return output


def _reshard(policy: PolicyModel) -> None:
    """Free gathered weights: a forward pass without backward leaves FSDP2's root group gathered, and then
    ``parameters()`` gives copies that have no gradient."""
    if isinstance(policy, FSDPModule):
        policy.reshard()
