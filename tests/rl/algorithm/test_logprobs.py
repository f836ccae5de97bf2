"""Log-probabilities of tokens equal a plain log-softmax, in value, gradient and entropy, however they are chunked."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from rl.logprobs import token_logprobs

LOGPROBS = json.loads((Path(__file__).parents[2] / "vectors" / "logprobs.json").read_text())["cases"]
NUM_TOKENS, HIDDEN, VOCABULARY = 7, 5, 13


def inputs(dtype=torch.float64):
    random = torch.Generator().manual_seed(3)
    shapes = ((NUM_TOKENS, HIDDEN), (VOCABULARY, HIDDEN), (VOCABULARY,))
    hidden, weight, bias = (torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes)
    return hidden, weight, bias, torch.randint(VOCABULARY, (NUM_TOKENS,), generator=random)


def plain(hidden, weight, bias, targets, *, temperature, top_k):
    """Full logits, restricted as vLLM's sampler does: everything below the k-th logit out, ties in."""
    logits = F.linear(hidden, weight, bias) / temperature
    if top_k is not None:
        outside = logits < logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(outside.scatter(1, targets[:, None], False), -torch.inf)
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(targets), distribution.entropy()


@pytest.mark.parametrize("chunk", [1, 3, NUM_TOKENS, 100])
@pytest.mark.parametrize("top_k", [None, 1, 4, VOCABULARY])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_full_logits(temperature, top_k, chunk):
    found, expected = [], []
    for compute, collected, more in ((token_logprobs, found, {"chunk": chunk}), (plain, expected, {})):
        hidden, weight, bias, targets = inputs()
        logprobs, entropies = compute(hidden, weight, bias, targets, temperature=temperature, top_k=top_k, **more)
        (logprobs * torch.arange(1, NUM_TOKENS + 1)).sum().backward()
        collected += [logprobs, entropies, hidden.grad, weight.grad, bias.grad]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_vocabulary_too_large_for_one_block_per_chunk():
    hidden, targets = torch.randn(5, 1, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4])
    weight = torch.randn(700_001, 1, dtype=torch.float64, requires_grad=True)
    logprobs, entropies = token_logprobs(hidden, weight, None, targets, temperature=0.7, top_k=4, chunk=5)
    (gradient,) = torch.autograd.grad(logprobs.sum(), weight)
    expected, expected_entropies = plain(hidden, weight, None, targets, temperature=0.7, top_k=4)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, expected_entropies)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), weight)[0])


def test_entropies_in_float32_of_a_real_vocabulary():
    """Sums over 49,152 tokens that lose nothing: one after the other they would be off by 1e-3."""
    random = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(50, 49_152, generator=random) * 3, torch.arange(50)
    logprobs, entropies = token_logprobs(
        torch.eye(50), logits.T.contiguous(), None, targets, temperature=1.0, top_k=None, chunk=50
    )
    exact = torch.distributions.Categorical(logits=logits.double())
    torch.testing.assert_close(entropies.double(), exact.entropy(), rtol=0, atol=1e-4)
    torch.testing.assert_close(logprobs.double(), exact.log_prob(targets), rtol=0, atol=1e-4)


def test_a_tied_embedding_gathers_both_gradients():
    _, embedding, _, targets = inputs()
    rows = torch.tensor([1, 2, 3, 4, 5, 6, 1])
    logprobs, _ = token_logprobs(embedding[rows], embedding, None, targets, temperature=1.0, top_k=None, chunk=3)
    (ours,) = torch.autograd.grad(logprobs.sum(), embedding)
    logprobs, _ = plain(embedding[rows], embedding, None, targets, temperature=1.0, top_k=None)
    torch.testing.assert_close(ours, torch.autograd.grad(logprobs.sum(), embedding)[0])


@pytest.mark.parametrize("chunk", [3, 100])
def test_a_second_backward_pass_gives_the_same_gradient(chunk):
    hidden, weight, bias, targets = inputs()
    logprobs, _ = token_logprobs(hidden, weight, bias, targets, temperature=1.0, top_k=None, chunk=chunk)
    first = torch.autograd.grad(logprobs.sum(), (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    torch.testing.assert_close(first, second)


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, bias, targets = inputs()
    head = (weight.detach(), bias.detach())
    logprobs, entropies = token_logprobs(hidden, *head, targets, temperature=1.0, top_k=None, chunk=3)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None
    assert not entropies.requires_grad


def test_no_tokens():
    _, weight, _, targets = inputs()
    hidden = torch.zeros(0, HIDDEN, dtype=torch.float64, requires_grad=True)
    logprobs, entropies = token_logprobs(hidden, weight, None, targets[:0], temperature=1.0, top_k=2, chunk=4)
    assert logprobs.shape == entropies.shape == (0,)
    logprobs.sum().backward()
    assert weight.grad.abs().sum() == 0


def test_the_sampled_token_belongs_to_the_top_k_set():
    """The sampler drew token 0 from its top 1; by rounding, the trainer's largest logit is token 1's."""
    hidden, weight = torch.ones(1, 1), torch.tensor([[1.0], [1.0001], [-5.0]])
    logprobs, _ = token_logprobs(hidden, weight, None, torch.tensor([0]), temperature=1.0, top_k=1, chunk=1)
    assert logprobs.item() == pytest.approx(-0.6931, abs=1e-3)  # log(1/2): tokens 0 and 1, not 2


def test_ties_with_the_last_of_the_top_k_are_inside():
    hidden, weight = torch.ones(1, 1), torch.tensor([[2.0], [1.0], [1.0], [0.0]])
    logprobs, _ = token_logprobs(hidden, weight, None, torch.tensor([1]), temperature=1.0, top_k=2, chunk=1)
    e = torch.e
    assert logprobs.item() == pytest.approx(float(torch.log(torch.tensor(e / (e * e + 2 * e)))))


def test_autocast_computes_logits_in_bfloat16_and_the_rest_in_float32():
    hidden, weight, bias, targets = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, entropies = token_logprobs(hidden, weight, bias, targets, temperature=1.0, top_k=None, chunk=3)
        logits = F.linear(hidden, weight, bias)
    assert logprobs.dtype == entropies.dtype == torch.float32
    expected = F.log_softmax(logits.float(), -1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    logprobs.sum().backward()
    assert weight.grad.dtype == hidden.grad.dtype == torch.float32


def test_extreme_logits_stay_finite():
    hidden, weight = torch.tensor([[1e4], [-1e4]]), torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    logprobs, entropies = token_logprobs(hidden, weight, None, torch.tensor([0, 0]), temperature=0.5, top_k=2, chunk=2)
    logprobs.sum().backward()
    assert logprobs.tolist() == [0.0, -4e4]
    assert entropies.tolist() == [0.0, 0.0]
    assert weight.grad.isfinite().all()


def test_memory_of_logits_is_bounded_by_the_chunk():
    """The largest tensor made in forward and backward holds no more than a chunk of logits."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.untyped_storage().nbytes())
            return out

    hidden, weight = torch.randn(64, 2, requires_grad=True), torch.randn(1000, 2, requires_grad=True)
    with Watch():
        logprobs, _ = token_logprobs(
            hidden, weight, None, torch.zeros(64, dtype=torch.int64), temperature=1.0, top_k=None, chunk=8
        )
        logprobs.sum().backward()
    assert largest <= 2 * 8 * 1000 * 4  # the two block buffers are one tensor


@pytest.mark.parametrize("case", LOGPROBS, ids=lambda case: f"temperature {case['temperature']}")
def test_equals_nemo_rls(case):
    """Logits as hidden states before an identity head: what is left is temperature, softmax and the shift by one."""
    logits, tokens = torch.tensor(case["logits"]), torch.tensor(case["input_ids"])
    rows, length, vocabulary = logits.shape
    logprobs, _ = token_logprobs(
        logits[:, :-1].reshape(-1, vocabulary),
        torch.eye(vocabulary),
        None,
        tokens[:, 1:].reshape(-1),
        temperature=case["temperature"],
        top_k=None,
        chunk=4,
    )
    torch.testing.assert_close(
        logprobs.view(rows, length - 1), torch.tensor(case["next_token_logprobs"]), rtol=1e-5, atol=1e-5
    )
