"""The model as the training step sees it: tokens in, log-probabilities of the trained tokens out.

Logits exist only where a token is trained, and at most ``LOGIT_ELEMENTS`` of them at a time.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from rl.logprobs import token_logprobs
from rl.micro_batch import IntArray, MicroBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils.generic import ModelOutput

    from rl.workers.tensor_parallel import TokenShares

LOGIT_ELEMENTS = 256 * 2**20
"""512 MB of bfloat16 logits; more tokens than fit have theirs computed a second time in the backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceBatch:
    """A ``MicroBatch`` as tensors on the rank's device, with the attention mask built."""

    token_ids: Tensor
    """int64 [B, T]."""
    position_ids: Tensor
    """int64 [B, T]."""
    attention_mask: Tensor | None
    """bool [B, 1, T, T], True where attention is allowed; None when plain causal attention is the same."""
    predict_from: Tensor
    """int64 [N], flat index into B*T."""
    targets: Tensor
    """int64 [N]."""


def device_batch(batch: MicroBatch, device: torch.device) -> DeviceBatch:
    """Move a micro-batch to ``device`` and build its attention mask."""

    def tensor(array: IntArray) -> Tensor:
        return torch.tensor(array, device=device)  # a copy: what came through Ray cannot be written to

    documents, segments = tensor(batch.document_ids), tensor(batch.segment_ids)
    plain = bool((batch.segment_ids == 0).all()) and bool((batch.document_ids <= 0).all())
    return DeviceBatch(
        token_ids=tensor(batch.token_ids),
        position_ids=tensor(batch.position_ids),
        attention_mask=None if plain else attention_mask(documents, segments),
        predict_from=tensor(batch.predict_from),
        targets=tensor(batch.targets),
    )


def attention_mask(documents_BT: Tensor, segments_BT: Tensor) -> Tensor:
    """Who may attend to whom: causal, within the document, to its prompt (segment 0) or the token's own segment.

    Padding attends to padding before it, so that no row of the mask is empty (an empty row would give NaN).

    Args:
        documents_BT: unit of each token, -1 where padded, [B, T].
        segments_BT: 0 for a prompt, k for its response k, [B, T].

    Returns:
        bool [B, 1, T, T], indexed [row, 0, query, key].
    """
    length = documents_BT.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents_BT.device).tril()
    same_document = documents_BT[:, :, None] == documents_BT[:, None, :]
    visible_segment = (segments_BT[:, None, :] == 0) | (segments_BT[:, :, None] == segments_BT[:, None, :])
    return (causal & same_document & visible_segment)[:, None]


class PolicyOutput(NamedTuple):
    """What a forward pass gives; a tuple, since FSDP2 looks for tensors in those only."""

    logprobs: Tensor
    """Of each trained token, [N], float32."""
    entropies: Tensor
    """Of the distribution that each was drawn from, [N], float32, no gradient."""
    router_logits: tuple[Tensor, ...] = ()
    """Per layer of a mixture of experts, [B*T, E]; only when asked for."""


class PolicyModel(nn.Module):
    """A Hugging Face causal language model whose forward pass gives log-probabilities of chosen tokens.

    Wrapping it (rather than calling its parts from outside) keeps one root module for FSDP2, whose hooks gather the
    head's weights before this forward runs.
    """

    def __init__(self, language_model: "PreTrainedModel", shares: "TokenShares | None" = None):
        """
        Args:
            language_model: with an output head.
            shares: divides tokens over the ranks of a tensor group; None when each rank scores its own.
        """
        super().__init__()
        self.language_model = language_model
        self._shares = shares

    def forward(
        self, batch: DeviceBatch, *, temperature: float, top_k: int | None, with_router_logits: bool = False
    ) -> PolicyOutput:
        """Score the trained tokens of a micro-batch under softmax(logits / temperature) restricted to ``top_k``.

        Raises:
            NotImplementedError: router logits are wanted and the model gives none.
        """
        outputs = self.language_model.base_model(
            input_ids=batch.token_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
            **({"output_router_logits": True} if with_router_logits else {}),
        )
        hidden_NH = outputs.last_hidden_state.flatten(0, 1)[batch.predict_from]
        logprobs, entropies = self._scores(hidden_NH, batch.targets, temperature=temperature, top_k=top_k)
        return PolicyOutput(logprobs, entropies, _router_logits(outputs) if with_router_logits else ())

    def _scores(
        self, hidden_NH: Tensor, targets_N: Tensor, *, temperature: float, top_k: int | None
    ) -> tuple[Tensor, Tensor]:
        head: nn.Linear = self.language_model.get_output_embeddings()  # type: ignore[no-untyped-call]
        weight_VH: Tensor = head.weight
        bias_V: Tensor | None = head.bias
        shares, num_tokens = self._shares, len(targets_N)
        if shares is not None:
            hidden_NH, targets_N, weight_VH = shares.share(hidden_NH), shares.share(targets_N), shares.summed(weight_VH)
            bias_V = shares.summed(bias_V) if bias_V is not None else None
        logprobs, entropies = token_logprobs(
            hidden_NH,
            weight_VH,
            bias_V,
            targets_N,
            temperature=temperature,
            top_k=top_k,
            chunk=max(1, LOGIT_ELEMENTS // weight_VH.shape[0]),
        )
        if shares is not None:
            logprobs, entropies = shares.joined(logprobs, num_tokens), shares.joined(entropies, num_tokens)
        return logprobs, entropies


def _router_logits(outputs: "ModelOutput") -> tuple[Tensor, ...]:
    layers = outputs.get("router_logits") or ()
    if not layers:
        raise NotImplementedError(
            "training.router_aux_loss_coef: the model's modules do not give the logits of their routers; use "
            "engine=nemo_rl, or leave it out"
        )
    return tuple(logits.flatten(0, -2) for logits in layers)
