"""Log-probabilities of sampled tokens from final hidden states, without ever holding all logits.

hidden states [T, H] + output head [V, H] + sampled tokens [T]  ->  logprobs [T] (differentiable), entropies [T]

Shape suffixes: T tokens, C rows of one chunk, B rows of one block, H hidden size, V vocabulary.

Formula: logprob_t = (log softmax z_t)[y_t] with z_t = (W hidden_t + b) / temperature, restricted to the top-k set that
the sampler drew from. Its gradient for z_t is onehot(y_t) - softmax(z_t).

Products with the head run in the compute dtype (that of autocast, else that of ``hidden_TH``), a chunk of rows at a
time. What follows runs in float32 (float64 for float64 input) on blocks of some rows in two reused buffers, which stay
in the processor's cache: 4 times as fast as on a float32 copy of the chunk, and no such copy exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EXCLUDED = -1e30
"""Stands for a logit outside the top-k set; finite, so that 0 * EXCLUDED is 0 in the entropy."""
BLOCK_ELEMENTS = {"cpu": 2_000_000, "cuda": 64_000_000}
"""Logits of one block: 8 MB in float32 for a CPU's last-level cache, enough to fill a GPU."""


def token_logprobs(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    *,
    temperature: float,
    top_k: int | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The log-probability of each target under the sampling distribution, and that distribution's entropy.

    Args:
        hidden_TH: final hidden states at the positions that predict the targets, [T, H]; T may be 0.
        weight_VH: weight of the output head, [V, H]; may be the (tied) embedding.
        bias_V: bias of the output head, [V], or None.
        targets_T: sampled token ids, int64 [T].
        temperature: > 0; divides the logits.
        top_k: restrict the distribution to the k largest logits and all that equal the k-th, as vLLM does. The target
            is always in the set, since the sampler drew it from there: where trainer and sampler disagree by rounding
            about the k-th logit, its log-probability stays finite.
        chunk: at most this many rows of logits exist at once, in forward and in backward. Up to ``T == chunk`` the
            backward pass takes over the logits of the forward pass; above, it computes them again.

    Returns:
        (logprobs [T], entropies [T] in nats, without gradient), float32, or float64 for float64 input.
    """
    assert chunk > 0
    assert temperature > 0
    assert top_k is None or top_k > 0
    settings = _Settings(temperature=temperature, top_k=top_k, chunk=chunk, compute_dtype=_compute_dtype(hidden_TH))
    logprobs_T, entropies_T = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_TH, weight_VH, bias_V, targets_T, settings
    )
    return logprobs_T, entropies_T


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    temperature: float
    top_k: int | None
    chunk: int
    compute_dtype: torch.dtype

    @property
    def math_dtype(self) -> torch.dtype:
        return torch.promote_types(self.compute_dtype, torch.float32)


def _compute_dtype(hidden_TH: Tensor) -> torch.dtype:
    device = hidden_TH.device.type
    if torch.is_autocast_enabled(device) and hidden_TH.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden_TH.dtype


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_T: Tensor, settings: _Settings
    ) -> tuple[Tensor, Tensor]:
        head = _Head(hidden_TH, weight_VH, bias_V, settings.compute_dtype)
        num_tokens = len(targets_T)
        logprobs_T, entropies_T, thresholds_T = hidden_TH.new_empty((3, num_tokens), dtype=settings.math_dtype)
        buffers_2BV = _block_buffers(hidden_TH, head.vocabulary, settings)
        kept_TV = None
        for rows in _slices(0, num_tokens, settings.chunk):
            logits_CV = head.logits(rows)
            for block, logits_BV in _blocks(rows, logits_CV, buffers_2BV):
                logprobs_T[block], entropies_T[block], thresholds_T[block] = _block_statistics(
                    logits_BV, targets_T[block], settings, buffers_2BV
                )
            if num_tokens <= settings.chunk and any(ctx.needs_input_grad):
                kept_TV = logits_CV
            del logits_CV, logits_BV  # else the next chunk's logits would be made beside them
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, thresholds_T)
        ctx.settings, ctx.kept_TV = settings, kept_TV
        ctx.mark_non_differentiable(entropies_T)
        return logprobs_T, entropies_T

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, targets_T, thresholds_T = ctx.saved_tensors
        settings: _Settings = ctx.settings
        head = _Head(hidden_TH, weight_VH, bias_V, settings.compute_dtype)
        buffers_2BV = _block_buffers(hidden_TH, head.vocabulary, settings)
        gradients = _HeadGradients(head, ctx.needs_input_grad[:3], settings.math_dtype)
        # Overwritten by the gradient below: a second backward pass computes its own.
        kept_TV, ctx.kept_TV = ctx.kept_TV, None
        for rows in _slices(0, len(targets_T), settings.chunk):
            logits_CV = head.logits(rows) if kept_TV is None else kept_TV
            for block, logits_BV in _blocks(rows, logits_CV, buffers_2BV):
                saved = (targets_T[block], thresholds_T[block], grad_T[block])
                logits_BV.copy_(_block_gradient(logits_BV, *saved, settings, buffers_2BV))
            gradients.add(rows, logits_CV)
            del logits_CV, logits_BV
        return gradients.hidden_TH, gradients.weight_VH, gradients.bias_V, None, None


class _Head:
    """The output head in the compute dtype."""

    def __init__(self, hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, dtype: torch.dtype):
        self.hidden_TH, self.weight_VH = hidden_TH.to(dtype), weight_VH.to(dtype)
        self.bias_V = None if bias_V is None else bias_V.to(dtype)
        self.vocabulary = weight_VH.shape[0]

    def logits(self, rows: slice) -> Tensor:
        return F.linear(self.hidden_TH[rows], self.weight_VH, self.bias_V)


class _HeadGradients:
    """Gradients of hidden states, weight and bias; the last two are sums over chunks, kept in the math dtype."""

    def __init__(self, head: _Head, needs_grad: tuple[bool, bool, bool], math_dtype: torch.dtype):
        needs_hidden, needs_weight, needs_bias = needs_grad
        self._head, self._math_dtype = head, math_dtype
        self.hidden_TH = torch.empty_like(head.hidden_TH) if needs_hidden else None
        self.weight_VH = head.weight_VH.new_zeros(head.weight_VH.shape, dtype=math_dtype) if needs_weight else None
        self.bias_V = head.weight_VH.new_zeros(head.vocabulary, dtype=math_dtype) if needs_bias else None

    def add(self, rows: slice, grad_CV: Tensor) -> None:
        if self.hidden_TH is not None:
            self.hidden_TH[rows] = grad_CV @ self._head.weight_VH
        if self.weight_VH is not None:
            self.weight_VH += grad_CV.t() @ self._head.hidden_TH[rows]
        if self.bias_V is not None:
            self.bias_V += grad_CV.sum(0, dtype=self._math_dtype)


def _block_statistics(
    logits_BV: Tensor, targets_B: Tensor, settings: _Settings, buffers_2BV: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the target, entropy, and the smallest logit of the top-k set (-inf without one), each [B]."""
    z_BV = _scaled(logits_BV, settings, buffers_2BV)
    target_z_B = z_BV.gather(1, targets_B[:, None])[:, 0]
    thresholds_B = torch.full_like(target_z_B, -torch.inf)
    if settings.top_k is not None and settings.top_k < z_BV.shape[1]:
        thresholds_B = z_BV.topk(settings.top_k, dim=1).values[:, -1]
    p_BV = _softmax(z_BV, targets_B, thresholds_B, settings, buffers_2BV)
    # max p = exp(0) / sum exp(z - max z): the normaliser without another pass of exponentials.
    max_z_B, log_sums_B = z_BV.amax(1), -p_BV.amax(1).log()
    mean_z_B = p_BV.mul_(z_BV).sum(1)  # a matrix product would add up in order, 1e-3 off over a real vocabulary
    return target_z_B - max_z_B - log_sums_B, max_z_B + log_sums_B - mean_z_B, thresholds_B


def _block_gradient(
    logits_BV: Tensor,
    targets_B: Tensor,
    thresholds_B: Tensor,
    grad_B: Tensor,
    settings: _Settings,
    buffers_2BV: Tensor,
) -> Tensor:
    """Gradient for the logits, [B, V]: grad / temperature * (onehot(target) - softmax)."""
    z_BV = _scaled(logits_BV, settings, buffers_2BV)
    p_BV = _softmax(z_BV, targets_B, thresholds_B, settings, buffers_2BV)
    scale_B1 = (grad_B / settings.temperature)[:, None]
    return p_BV.mul_(-scale_B1).scatter_add_(1, targets_B[:, None], scale_B1)


def _scaled(logits_BV: Tensor, settings: _Settings, buffers_2BV: Tensor) -> Tensor:
    z_BV = buffers_2BV[0, : len(logits_BV)].copy_(logits_BV)
    return z_BV if settings.temperature == 1.0 else z_BV.div_(settings.temperature)


def _softmax(z_BV: Tensor, targets_B: Tensor, thresholds_B: Tensor, settings: _Settings, buffers_2BV: Tensor) -> Tensor:
    """Probabilities; with top-k, ``z_BV`` is first overwritten outside the set, which ties and the target belong to."""
    if settings.top_k is not None:
        outside_BV = (z_BV < thresholds_B[:, None]).scatter_(1, targets_B[:, None], False)
        z_BV.masked_fill_(outside_BV, EXCLUDED)
    return torch.softmax(z_BV, 1, out=buffers_2BV[1, : len(z_BV)])


def _block_buffers(hidden_TH: Tensor, vocabulary: int, settings: _Settings) -> Tensor:
    elements = BLOCK_ELEMENTS["cpu" if hidden_TH.device.type == "cpu" else "cuda"]
    num_rows = max(1, min(elements // vocabulary, settings.chunk, len(hidden_TH)))
    return hidden_TH.new_empty((2, num_rows, vocabulary), dtype=settings.math_dtype)


def _blocks(rows: slice, logits_CV: Tensor, buffers_2BV: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for block in _slices(rows.start, rows.stop, buffers_2BV.shape[1]):
        yield block, logits_CV[block.start - rows.start : block.stop - rows.start]


def _slices(start: int, stop: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, stop)) for first in range(start, stop, size))
