"""What the loss reports: sums, minima and maxima that combine over micro-batches and ranks.

per-token tensors [T]  ->  LossStatistics  ->  (combined over micro-batches and ranks)  ->  metrics

Shape suffixes: T trained tokens, S sequences.

Names and formulas are NeMo RL's, with gen the sampler's, prev the pre-update and curr the current logprobs,
k3(d) = exp(d) - 1 - d and mix = log(exp(prev)/2 + exp(gen)/2). Deviation: differences are capped at 20 before they are
exponentiated, so that one broken token makes a mean large and not infinite.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

TOKEN_MEANS = (
    "probs_ratio",
    "probs_ratio_clamped",
    "kl_penalty",
    "token_mult_prob_error",  # exp |gen - prev|
    "gen_kl_error",  # k3(prev - gen)
    "policy_kl_error",  # k3(gen - prev)
    "js_divergence_error",  # (k3(prev - mix) + k3(gen - mix)) / 2
    "sampling_importance_ratio",  # w after truncation
    "approx_entropy",  # -exp(curr - gen) * curr
    "entropy",
)
"""Metrics that are means over the trained tokens of an optimizer step."""
SUM_NAMES = (
    "num_tokens",
    "num_sequences",
    "loss",  # already divided by the global token count
    *TOKEN_MEANS,
    "seq_mult_prob_error",  # summed over sequences: the mean of exp |gen - prev| inside each
    "out_of_range",
    "out_of_range_candidates",  # tokens or sequences that could have been; 0 without truncation
)
DIFFERENCE_CAP = 20.0
EXTREME_NAMES = ("probs_ratio", "probs_ratio_clamped", "seq_mult_prob_error")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossStatistics:
    """Statistics over some of the trained tokens of one optimizer step.

    Example:
        LossStatistics(sums=tensor([7., 2., -0.01, 7.02, ...]), minima=tensor([0.98, 0.98, 1.01]),
                       maxima=tensor([1.03, 1.03, 1.05]))
    """

    sums: Tensor
    """float64, one per name in ``SUM_NAMES``."""
    minima: Tensor
    """float64, one per name in ``EXTREME_NAMES``; +inf where there was no token."""
    maxima: Tensor
    """float64, one per name in ``EXTREME_NAMES``; -inf where there was no token."""

    def cpu(self) -> "LossStatistics":
        """The same in host memory."""
        return LossStatistics(sums=self.sums.cpu(), minima=self.minima.cpu(), maxima=self.maxima.cpu())


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTerms:
    """The parts of the loss at each trained token of a micro-batch, each [T] unless noted."""

    logprobs: Tensor
    previous: Tensor
    sampler: Tensor
    ratio: Tensor
    """rho = exp(logprobs - previous)."""
    clipped_ratio: Tensor
    kl: Tensor
    """Weighted k3 estimate; zeros when the penalty is off."""
    weights: Tensor
    """Importance weights after truncation."""
    outside: Tensor
    """True where truncation acted: [T], [S] for whole sequences, [0] without truncation."""
    entropies: Tensor
    sequence: Tensor
    """Index of each token's sequence."""


@torch.no_grad()
def loss_statistics(terms: TokenTerms, *, loss: Tensor, num_sequences: int) -> LossStatistics:
    """Statistics of one micro-batch.

    Args:
        terms: per-token parts of its loss.
        loss: its loss, already divided by the global token count, 0-d.
        num_sequences: sequences that have trained tokens.
    """
    current, previous, sampler = terms.logprobs, terms.previous, terms.sampler
    mix = torch.logaddexp(previous, sampler) - math.log(2.0)
    error = _capped_exp((sampler - previous).abs())
    sequence_errors = sequence_means(error, terms.sequence, num_sequences)
    sums: dict[str, Tensor | int] = {
        "num_tokens": len(current),
        "num_sequences": num_sequences,
        "loss": loss,
        "probs_ratio": terms.ratio.sum(),
        "probs_ratio_clamped": terms.clipped_ratio.sum(),
        "kl_penalty": terms.kl.sum(),
        "token_mult_prob_error": error.sum(),
        "gen_kl_error": _k3(previous - sampler).sum(),
        "policy_kl_error": _k3(sampler - previous).sum(),
        "js_divergence_error": (_k3(previous - mix) + _k3(sampler - mix)).sum() / 2,
        "sampling_importance_ratio": terms.weights.sum(),
        "approx_entropy": -(_capped_exp(current - sampler) * current).sum(),
        "entropy": terms.entropies.sum(),
        "seq_mult_prob_error": sequence_errors.sum(),
        "out_of_range": terms.outside.sum(),
        "out_of_range_candidates": len(terms.outside),
    }
    extremes = (terms.ratio, terms.clipped_ratio, sequence_errors)
    return LossStatistics(
        sums=torch.stack([torch.as_tensor(sums[name], dtype=torch.float64, device=loss.device) for name in SUM_NAMES]),
        minima=torch.stack([_with(values, math.inf).amin() for values in extremes]).double(),
        maxima=torch.stack([_with(values, -math.inf).amax() for values in extremes]).double(),
    )


def combined(parts: Iterable[LossStatistics]) -> LossStatistics:
    """The statistics of all parts together: micro-batches of a rank, then ranks. Of none, those of no token."""
    nothing = LossStatistics(
        sums=torch.zeros(len(SUM_NAMES), dtype=torch.float64),
        minima=torch.full((len(EXTREME_NAMES),), math.inf, dtype=torch.float64),
        maxima=torch.full((len(EXTREME_NAMES),), -math.inf, dtype=torch.float64),
    )
    all_parts = [part.cpu() for part in parts] + [nothing]
    return LossStatistics(
        sums=torch.stack([part.sums for part in all_parts]).sum(0),
        minima=torch.stack([part.minima for part in all_parts]).amin(0),
        maxima=torch.stack([part.maxima for part in all_parts]).amax(0),
    )


def loss_values(statistics: LossStatistics) -> dict[str, float]:
    """The metrics of one optimizer step, without prefix; where nothing was trained, only those that are defined."""
    sums = dict(zip(SUM_NAMES, statistics.sums.tolist(), strict=True))
    num_tokens, num_sequences = sums["num_tokens"], sums["num_sequences"]
    values = {"loss": sums["loss"], "global_valid_toks": num_tokens, "global_valid_seqs": num_sequences}
    if not num_tokens:
        return values
    values |= {name: sums[name] / num_tokens for name in TOKEN_MEANS}
    values["mean_seq_mult_prob_error"] = sums["seq_mult_prob_error"] / num_sequences
    if sums["out_of_range_candidates"]:
        values["is_oob_ratio"] = sums["out_of_range"] / sums["out_of_range_candidates"]
    for name, low, high in zip(EXTREME_NAMES, statistics.minima.tolist(), statistics.maxima.tolist(), strict=True):
        if name == "seq_mult_prob_error":
            values |= {f"min_{name}": low, f"max_{name}": high}
        else:
            values |= {f"{name}_min": low, f"{name}_max": high}
    return values


def sequence_means(values_T: Tensor, sequence_T: Tensor, num_sequences: int) -> Tensor:
    """Mean over the tokens of each sequence, [S]; 0 for a sequence without tokens."""
    sums_S = values_T.new_zeros(num_sequences).index_add_(0, sequence_T, values_T)
    counts_S = torch.bincount(sequence_T, minlength=num_sequences)
    return sums_S / counts_S.clamp(min=1)


def _k3(difference_T: Tensor) -> Tensor:
    return _capped_exp(difference_T) - 1.0 - difference_T


def _capped_exp(difference_T: Tensor) -> Tensor:
    return torch.exp(difference_T.clamp(max=DIFFERENCE_CAP))


def _with(values: Tensor, neutral: float) -> Tensor:
    return torch.cat([values, values.new_full((1,), neutral)])
