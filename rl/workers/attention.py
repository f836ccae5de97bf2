"""Attention on a CPU in bfloat16: PyTorch's flash kernel forward, batched matrix products backward.

The kernel's own backward pass multiplies one head of one row at a time, which is slow for rows as short as rollouts
are: 14 ms where the products below take 5 (16 rows of 64 tokens, 9 heads of 64), 23 where they take 12 (2 rows of 512).
Importing this module registers the attention with transformers under ``CPU_ATTENTION``.

Shape suffixes: B rows, H query heads, K key-value heads, G = H / K, T tokens, D width of a head; N = B * K,
R = G * (queries of a block), S = keys that the block can see.

Backward of ``O = P V``, ``P = softmax(scale Q K^T)``, with the logarithms L of the softmax's denominators kept::

    P = exp(scale (Q K^T - L / scale))    dV = P^T dO    dS = P * (dO V^T - rowsum(dO * O))
    dQ = scale dS K                       dK = scale dS^T Q

Products come out in bfloat16, 8 bits, too coarse for scores of about 30. The two subtractions are therefore made
inside the products, which add up in float32: ``-L / scale`` is two further columns of Q (its bfloat16 value and the
remainder's) against two columns of ones in K. What is rounded is then near 0 wherever P is not.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

CPU_ATTENTION = "grpo_cpu"
BLOCK_QUERIES = 256
"""Probabilities exist for this many queries at a time, so memory grows with the tokens, not with their square."""
NUM_FURTHER_COLUMNS = 2


def cpu_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: [B, H, T, D] in, [B, T, H, D] out.

    What the backward pass below does not cover (other precisions, dropout, biases, a mask that is not boolean, values
    narrower than keys) goes through transformers' own function.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    covered = (
        dtype == torch.bfloat16
        and query.shape[2] == key.shape[2] > 1
        and query.shape[3] == value.shape[3]
        and dropout == 0.0
        and kwargs.get("position_bias") is None
        and kwargs.get("is_causal") is not False
        and getattr(module, "is_causal", True)
        and (attention_mask is None or attention_mask.dtype == torch.bool)
    )
    if not covered:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    output = causal_attention(query.to(dtype), key.to(dtype), value.to(dtype), attention_mask, scale=scale)
    return output.transpose(1, 2).contiguous(), None


def causal_attention(
    query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, mask_B1TT: Tensor | None, *, scale: float
) -> Tensor:
    """Attention of bfloat16 tensors on a CPU, each query to keys up to its own position.

    Args:
        query_BHTD: queries, [B, H, T, D].
        key_BKTD: keys, [B, K, T, D]; query head h attends with head ``h // (H / K)``.
        value_BKTD: values, [B, K, T, D].
        mask_B1TT: bool, True where a query (third index) may attend to a key (fourth), no later ones among them and in
            every row at least one; None for all keys up to the query's position.
        scale: of the scores.

    Returns:
        [B, H, T, D].
    """
    output: Tensor = _CausalAttention.apply(query_BHTD, key_BKTD, value_BKTD, mask_B1TT, scale)  # type: ignore[no-untyped-call]
    return output


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        group_size = query.shape[1] // key.shape[1]
        excluded = None if mask is None else query.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
        output, log_sums_BHT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key.repeat_interleave(group_size, 1), value.repeat_interleave(group_size, 1), 0.0, mask is None,
            attn_mask=excluded, scale=scale,
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, excluded, output, log_sums_BHT)
        ctx.scale = scale
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad_BHTD: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, excluded, output, log_sums_BHT = ctx.saved_tensors
        num_rows, num_heads, length, width = query.shape
        num_kv_heads = key.shape[1]

        def grouped(tensor: Tensor) -> Tensor:
            """[B, H, T, ...] as [N, G, T, ...]."""
            return tensor.reshape(num_rows * num_kv_heads, num_heads // num_kv_heads, *tensor.shape[2:])

        query_NGTD, grad_NGTD = grouped(query), grouped(grad_BHTD)
        deltas_BHT = (grad_BHTD.float() * output).sum(-1)
        query_NGTW = _with_subtracted(query_NGTD, grouped(log_sums_BHT / ctx.scale))
        grad_NGTW = _with_subtracted(grad_NGTD, grouped(deltas_BHT))
        key_NTD, value_NTD = (tensor.reshape(-1, length, width) for tensor in (key, value))
        key_NTW, value_NTW = (F.pad(tensor, (0, NUM_FURTHER_COLUMNS), value=1.0) for tensor in (key_NTD, value_NTD))
        grad_query_NGTD = torch.empty_like(query_NGTD, memory_format=torch.contiguous_format)
        grad_key_NTD, grad_value_NTD = key_NTD.new_zeros((2, *key_NTD.shape), dtype=torch.float32)
        for block in _blocks(length):
            seen = slice(0, block.stop)

            def rows(tensor: Tensor, block: slice = block) -> Tensor:
                return tensor[:, :, block].flatten(1, 2)  # [N, R, ...]

            p_NRS = torch.bmm(rows(query_NGTW), key_NTW[:, seen].mT)
            _exclude(p_NRS, excluded, block, num_kv_heads)
            p_NRS.mul_(ctx.scale).exp_()
            grad_value_NTD[:, seen] += torch.bmm(p_NRS.mT, rows(grad_NGTD))
            ds_NRS = torch.bmm(rows(grad_NGTW), value_NTW[:, seen].mT).mul_(p_NRS)
            grad_query_NGTD[:, :, block] = torch.bmm(ds_NRS, key_NTD[:, seen]).view_as(grad_query_NGTD[:, :, block])
            grad_key_NTD[:, seen] += torch.bmm(ds_NRS.mT, rows(query_NGTD))
        return (
            grad_query_NGTD.mul_(ctx.scale).view(query.shape),
            grad_key_NTD.mul_(ctx.scale).to(key.dtype).view(key.shape),
            grad_value_NTD.to(value.dtype).view(value.shape),
            None,
            None,
        )


def _with_subtracted(tensor_NGTD: Tensor, subtracted_NGT: Tensor) -> Tensor:
    """Two further columns, [N, G, T, D + 2]: against columns of ones they subtract what is given in float32."""
    high = subtracted_NGT.to(tensor_NGTD.dtype)
    low = (subtracted_NGT - high).to(tensor_NGTD.dtype)
    return torch.cat([tensor_NGTD, -high[..., None], -low[..., None]], -1)


def _exclude(scores_NRS: Tensor, excluded_B1TT: Tensor | None, queries: slice, num_kv_heads: int) -> None:
    """Make the scores of keys that a query does not attend to -inf; filling by a mask would take ten times as long."""
    num_queries = queries.stop - queries.start
    scores_BKGQS = scores_NRS.view(-1, num_kv_heads, scores_NRS.shape[1] // num_queries, num_queries, queries.stop)
    if excluded_B1TT is None:
        later = scores_NRS.new_full((num_queries, num_queries), -torch.inf).triu_(1)
        scores_BKGQS[..., queries.start :] += later
    else:
        scores_BKGQS += excluded_B1TT[:, :, None, queries, : queries.stop]


def _blocks(length: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK_QUERIES, length)) for start in range(0, length, BLOCK_QUERIES))


AttentionInterface.register(CPU_ATTENTION, cpu_attention)
AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)
