"""The model as the training step sees it: tokens in, log-probabilities of the trained tokens out.

Logits exist only where a token is trained, and at most ``LOGIT_ELEMENTS`` of them at a time.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl.logprobs import token_logprobs
from rl.micro_batch import IntArray, MicroBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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


class PolicyModel(nn.Module):
    """A Hugging Face causal language model whose forward pass gives log-probabilities of chosen tokens.

    Wrapping it (rather than calling its parts from outside) keeps one root module for FSDP2, whose hooks gather the
    head's weights before this forward runs.
    """

    def __init__(self, language_model: "PreTrainedModel"):
        super().__init__()
        self.language_model = language_model

    def forward(self, batch: DeviceBatch, *, temperature: float, top_k: int | None) -> tuple[Tensor, Tensor]:
        """Score the trained tokens of a micro-batch.

        Returns:
            (log-probability of each trained token [N], entropy of the distribution it was drawn from [N], no grad),
            float32, both under softmax(logits / temperature) restricted to ``top_k``.
        """
        hidden_BTH = self.language_model.base_model(
            input_ids=batch.token_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        ).last_hidden_state
        hidden_NH = hidden_BTH.flatten(0, 1)[batch.predict_from]
        head: nn.Linear = self.language_model.get_output_embeddings()  # type: ignore[no-untyped-call]
        return token_logprobs(
            hidden_NH,
            head.weight,
            head.bias,
            batch.targets,
            temperature=temperature,
            top_k=top_k,
            chunk=max(1, LOGIT_ELEMENTS // head.weight.shape[0]),
        )
