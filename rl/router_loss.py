"""The load-balancing loss of a mixture of experts: it keeps the routers from sending everything to a few experts.

router logits of every layer + in how many samples each token stands  ->  ExpertLoad (adds up)  ->  loss

Shape suffixes: N tokens of a micro-batch (B*T), R routed tokens (each token once per layer), E experts.

Source: Switch Transformer (Fedus et al. 2021, arXiv:2101.03961), equations 4 to 6, as ``load_balancing_loss_func`` of
transformers computes it over the whole batch, all layers together:

    loss = E * sum_E f_E * P_E      f = assignments of an expert / R      P = mean over R of softmax(router logits)

The loss is a product of two means, so that micro-batches' own losses do not add up to it. But f is a count and has no
gradient: with f of the whole optimizer step, counted beforehand, sum_E f_E * P_E is a sum over tokens, which
micro-batches and ranks only split. A token that several samples share (their prompt, computed once) counts once for
each of them, as it does where nothing is shared. Counting costs a forward pass. Deviation from transformers: the
softmax is taken in float32 whatever the logits are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl.micro_batch import IntArray, MicroBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterSettings:
    """How the routers of a model are balanced.

    Example:
        RouterSettings(coefficient=0.001, experts_per_token=8)
    """

    coefficient: float
    """Of the loss, > 0."""
    experts_per_token: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertLoad:
    """What the routers of a model decided for some tokens.

    Example (three routed tokens, two of four experts each):
        ExpertLoad(assignments_E=tensor([3., 2., 1., 0.]), num_routed=tensor(3.))
    """

    assignments_E: Tensor
    """float64, routed tokens that each expert got."""
    num_routed: Tensor
    """float64, 0-d, routed tokens."""

    def __add__(self, other: "ExpertLoad") -> "ExpertLoad":
        return ExpertLoad(
            assignments_E=self.assignments_E + other.assignments_E, num_routed=self.num_routed + other.num_routed
        )


def sample_counts(batch: MicroBatch) -> IntArray:
    """In how many samples each token stands, [B, T]: a shared prompt in all of its responses', padding in none."""
    rows = np.arange(len(batch.document_ids))[:, None]
    num_responses = np.zeros((len(rows), batch.document_ids.max(initial=0) + 2), np.int64)  # padding: the last column
    np.maximum.at(num_responses, (rows, batch.document_ids), batch.segment_ids)
    in_prompt = batch.segment_ids == 0
    counts = np.where(in_prompt, num_responses[rows, batch.document_ids].clip(min=1), 1)
    return np.where(batch.document_ids < 0, 0, counts)


@torch.no_grad()
def expert_load(router_logits: Sequence[Tensor], counts_N: Tensor, settings: RouterSettings) -> ExpertLoad:
    """What the routers decided for one micro-batch.

    Args:
        router_logits: per layer, [N, E].
        counts_N: ``sample_counts``, flat.
        settings: how many experts a token gets.
    """
    weights_N = counts_N.double()
    assignments_E = weights_N.new_zeros(router_logits[0].shape[-1])
    for logits_NE in router_logits:
        chosen_NK = logits_NE.topk(settings.experts_per_token, dim=-1).indices
        assignments_E.index_add_(0, chosen_NK.flatten(), weights_N.repeat_interleave(settings.experts_per_token))
    return ExpertLoad(assignments_E=assignments_E, num_routed=weights_N.sum() * len(router_logits))


def balance_loss(router_logits: Sequence[Tensor], counts_N: Tensor, load: ExpertLoad) -> Tensor:
    """One micro-batch's part of the loss of one optimizer step, 0-d, before the coefficient.

    Args:
        router_logits: per layer, [N, E], with gradient.
        counts_N: ``sample_counts``, flat.
        load: of the whole optimizer step, over all its micro-batches and ranks.
    """
    weights_N = counts_N.float()
    num_routed = load.num_routed.clamp(min=1.0)
    shares_E = (load.assignments_E / num_routed).float()
    sums = [(weights_N @ torch.softmax(logits_NE.float(), -1) * shares_E).sum() for logits_NE in router_logits]
    return len(shares_E) * torch.stack(sums).sum() / num_routed.float()
