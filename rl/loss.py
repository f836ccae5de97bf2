"""The clipped policy-gradient loss on the trained tokens of one micro-batch.

logprobs now, before the update, of the sampler and of the reference + advantages  ->  loss, statistics

Shape suffixes: T trained tokens (sequences one after the other, padding and masked tokens left out), S sequences.

With rho = exp(now - previous), w = exp(previous - sampler), N the trained tokens of the whole optimizer step:

    loss = sum_T [ w * max(-A rho, -A clamp(rho, 1 - clip_min, 1 + clip_max)) + beta * v * k3 ] / N

* dual clip: where A < 0 the maximum is capped at -A * c (Ye et al. 2020, arXiv:1912.09729);
* w is a constant: ``previous`` never carries a gradient. Non-finite w becomes 0. Truncation: ``tis`` clamps it to
  [min or 0, ratio]; ``icepop`` zeroes it outside [min, ratio]; ``seq-mask-tis`` zeroes the whole sequence when its
  geometric mean lies outside [min, ratio] and leaves it raw inside;
* k3 = exp(d) - 1 - d with d = reference - now (Schulman 2020, "Approximating KL divergence"), weighted by
  v = exp(now - sampler) or by v = exp(now - constant now), which is 1 and carries the score-function gradient. d is
  clamped to +-20 and v * k3 to +-10, as NeMo RL does.

Micro-batches and ranks are all divided by the same N: their losses and gradients add up to those of the whole batch.
Deviation from NeMo RL: it divides by N + 1e-8, we by max(N, 1); they differ only where nothing is trained.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rl.loss_statistics import LossStatistics, TokenTerms, loss_statistics, sequence_means

KL_INPUT_CLAMP = 20.0
KL_OUTPUT_CLAMP = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSettings:
    """The settings of the loss, under their published names.

    Example:
        LossSettings(ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
                     use_on_policy_kl_approximation=True, use_importance_sampling_correction=True,
                     truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
                     truncated_importance_sampling_ratio_min=None)
    """

    ratio_clip_min: float
    """rho is clipped below at 1 - this."""
    ratio_clip_max: float
    """rho is clipped above at 1 + this."""
    ratio_clip_c: float | None
    """Dual clip: the cap c > 1 of the loss of tokens with a negative advantage; None leaves it open."""
    ref_policy_kl_penalty: float
    """beta; at 0 no reference logprobs are needed."""
    use_on_policy_kl_approximation: bool
    """Weight the KL estimate by exp(now - sampler)."""
    use_importance_sampling_correction: bool
    """Weight the loss by w; when False the loss uses 1 and the statistics still report w."""
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None
    truncated_importance_sampling_ratio: float | None
    """Upper bound, set whenever a type is."""
    truncated_importance_sampling_ratio_min: float | None
    """Lower bound; ``tis`` takes 0 for None, the other types need it."""


def policy_loss(
    logprobs_T: Tensor,
    *,
    previous_T: Tensor | None,
    sampler_T: Tensor,
    reference_T: Tensor | None,
    advantages_T: Tensor,
    sequence_T: Tensor,
    num_sequences: int,
    global_num_tokens: int,
    entropies_T: Tensor,
    settings: LossSettings,
) -> tuple[Tensor, LossStatistics]:
    """This micro-batch's part of the loss of one optimizer step, and its part of the step's statistics.

    Args:
        logprobs_T: of the trained tokens under the current weights, with gradient, [T]; T may be 0.
        previous_T: the same before the first update on this rollout batch; None when one optimizer step uses the whole
            rollout batch: they equal ``logprobs_T`` then.
        sampler_T: as the sampler recorded them.
        reference_T: under the reference policy; needed when ``ref_policy_kl_penalty`` > 0.
        advantages_T: the advantage of each token's rollout.
        sequence_T: index of each token's sequence, int64 in 0 .. num_sequences - 1; a sequence is never split.
        num_sequences: sequences of the micro-batch that have trained tokens.
        global_num_tokens: trained tokens of the optimizer step, over all micro-batches and ranks.
        entropies_T: of the sampling distribution at each token, for the statistics only.
        settings: the variant.

    Returns:
        (loss, statistics): a 0-d tensor already divided by ``global_num_tokens``, and sums that add up likewise.
    """
    previous_T = logprobs_T.detach() if previous_T is None else previous_T
    weights_T, outside = importance_weights(previous_T, sampler_T, sequence_T, num_sequences, settings)
    ratio_T = torch.exp(logprobs_T - previous_T)
    clipped_T = ratio_T.clamp(1.0 - settings.ratio_clip_min, 1.0 + settings.ratio_clip_max)
    actor_T = _clipped_objective(ratio_T, clipped_T, advantages_T, cap=settings.ratio_clip_c)
    if settings.use_importance_sampling_correction:
        actor_T = weights_T * actor_T
    kl_T = torch.zeros_like(logprobs_T)
    if settings.ref_policy_kl_penalty > 0:
        assert reference_T is not None, "a KL penalty needs the reference policy's logprobs"
        anchor_T = sampler_T if settings.use_on_policy_kl_approximation else logprobs_T.detach()
        kl_T = k3_divergence(logprobs_T, reference_T, weights_T=_finite_or_zero(torch.exp(logprobs_T - anchor_T)))
    loss = (actor_T + settings.ref_policy_kl_penalty * kl_T).sum() / max(global_num_tokens, 1)
    terms = TokenTerms(
        logprobs=logprobs_T,
        previous=previous_T,
        sampler=sampler_T,
        ratio=ratio_T,
        clipped_ratio=clipped_T,
        kl=kl_T,
        weights=weights_T,
        outside=outside,
        entropies=entropies_T,
        sequence=sequence_T,
    )
    return loss, loss_statistics(terms, loss=loss, num_sequences=num_sequences)


def importance_weights(
    previous_T: Tensor, sampler_T: Tensor, sequence_T: Tensor, num_sequences: int, settings: LossSettings
) -> tuple[Tensor, Tensor]:
    """w = exp(previous - sampler), truncated as the settings say.

    Returns:
        (w [T], outside): outside is True where truncation acted, [T], or [S] for ``seq-mask-tis``, or [0] without one.
    """
    log_weights_T = previous_T - sampler_T
    weights_T = _finite_or_zero(torch.exp(log_weights_T))
    high, low = settings.truncated_importance_sampling_ratio, settings.truncated_importance_sampling_ratio_min
    if settings.truncated_importance_sampling_type is None:
        return weights_T, weights_T.new_zeros(0, dtype=torch.bool)
    assert high is not None, "truncation needs its ratio"
    low = 0.0 if low is None else low
    if settings.truncated_importance_sampling_type == "seq-mask-tis":
        geometric_mean_S = torch.exp(sequence_means(log_weights_T, sequence_T, num_sequences))
        outside_S = (geometric_mean_S < low) | (geometric_mean_S > high)
        return weights_T.masked_fill(outside_S[sequence_T], 0.0), outside_S
    outside_T = (weights_T < low) | (weights_T > high)
    if settings.truncated_importance_sampling_type == "icepop":
        return weights_T.masked_fill(outside_T, 0.0), outside_T
    return weights_T.clamp(low, high), outside_T


def _clipped_objective(ratio_T: Tensor, clipped_T: Tensor, advantages_T: Tensor, *, cap: float | None) -> Tensor:
    objective_T = torch.maximum(-advantages_T * ratio_T, -advantages_T * clipped_T)
    if cap is None:
        return objective_T
    return torch.where(advantages_T < 0, torch.minimum(objective_T, -advantages_T * cap), objective_T)


def k3_divergence(logprobs_T: Tensor, reference_T: Tensor, *, weights_T: Tensor) -> Tensor:
    """Weighted k3 estimate of KL(now || reference) per token, clamped; see the top of this file.

    Where d is clamped the estimate is a constant, and its weight counts as one too.
    """
    difference_T = reference_T - logprobs_T
    clamped_T = difference_T.clamp(-KL_INPUT_CLAMP, KL_INPUT_CLAMP)
    weights_T = torch.where(clamped_T == difference_T, weights_T, weights_T.detach())
    estimate_T = torch.exp(clamped_T) - 1.0 - clamped_T
    return (weights_T * estimate_T).clamp(-KL_OUTPUT_CLAMP, KL_OUTPUT_CLAMP)


def _finite_or_zero(values_T: Tensor) -> Tensor:
    return values_T.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
