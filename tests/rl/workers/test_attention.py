"""The CPU's attention against the same in float64."""

import pytest
import torch
from torch import Tensor, nn

from rl.workers.attention import BLOCK_QUERIES, causal_attention, cpu_attention

BFLOAT16_EPS = 2**-8
HEADS, KV_HEADS, WIDTH = 6, 2, 24


def inputs(length: int, *, score_size: float = 3.0) -> list[Tensor]:
    """Queries, keys, values and an output gradient as a model holds them: [B, T, H, D] seen as [B, H, T, D]."""
    torch.manual_seed(length)
    query, grad = (torch.randn(2, length, HEADS, WIDTH) for _ in range(2))
    key, value = (torch.randn(2, length, KV_HEADS, WIDTH) for _ in range(2))
    return [tensor.bfloat16().transpose(1, 2) for tensor in (query * score_size, key, value, grad)]


def reference(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, allowed: Tensor, scale: float) -> list[Tensor]:
    leaves = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
    key_all, value_all = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in leaves[1:])
    scores = (leaves[0] @ key_all.mT * scale).masked_fill(~allowed, -torch.inf)
    output = scores.softmax(-1) @ value_all
    output.backward(grad.double())
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def attended(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, mask: Tensor | None, scale: float
) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    output = causal_attention(*leaves, mask, scale=scale)
    output.backward(grad)
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


@pytest.mark.parametrize("length", [2, 37, BLOCK_QUERIES, BLOCK_QUERIES + 1, 2 * BLOCK_QUERIES + 90])
@pytest.mark.parametrize("masked", [False, True])
def test_output_and_gradients_are_those_of_float64_up_to_bfloat16_s_rounding(length, masked):
    query, key, value, grad = inputs(length)
    mask = None
    if masked:
        mask = (torch.rand(2, 1, length, length) < 0.5).tril() | torch.eye(length, dtype=torch.bool)
    allowed = causal(length) if mask is None else mask
    found = attended(query, key, value, grad=grad, mask=mask, scale=0.2)
    for ours, exact in zip(found, reference(query, key, value, grad, allowed, 0.2), strict=True):
        assert torch.linalg.norm(ours.double() - exact) < 2 * BFLOAT16_EPS * torch.linalg.norm(exact)


def test_large_scores_lose_no_digits():
    """Scores of hundreds, rounded to 8 bits, would make probabilities wrong by whole factors."""
    query, key, value, grad = inputs(64, score_size=100.0)
    assert (query @ key.repeat_interleave(3, 1).mT).abs().max() * 0.2 > 200
    found = attended(query, key, value, grad=grad, mask=None, scale=0.2)
    for ours, exact in zip(found, reference(query, key, value, grad, causal(64), 0.2), strict=True):
        assert torch.linalg.norm(ours.double() - exact) < 4 * BFLOAT16_EPS * torch.linalg.norm(exact)


def test_a_token_that_nothing_may_see_gets_exactly_no_gradient():
    query, key, value, grad = inputs(40)
    mask = causal(40).repeat(2, 1, 1, 1)
    mask[:, :, :, 7] = False
    mask[:, :, 7, 7] = True
    grad[:, :, 7] = 0
    _, *gradients = attended(query, key, value, grad=grad, mask=mask, scale=0.2)
    assert all((gradient[:, :, 7] == 0).all() for gradient in gradients)
    assert all((gradient[:, :, 8] != 0).any() for gradient in gradients)


def test_other_precisions_are_transformers_own():
    query, key, value, _ = (tensor.float() for tensor in inputs(9))
    module = nn.Module()
    module.num_key_value_groups = 3
    module.is_causal = True
    exact = reference(query, key, value, query, causal(9), 0.2)[0]
    output, _ = cpu_attention(module, query, key, value, None, scaling=0.2)
    assert torch.allclose(output.transpose(1, 2).double(), exact, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = cpu_attention(module, query, key, value, None, scaling=0.2)
    assert output.dtype == torch.bfloat16
