"""The whole loss, from weights to number, against finite differences; and what filtering leaves of it."""

import math
from dataclasses import replace

import pytest
import torch

from rl.logprobs import token_logprobs
from rl.loss import LossSettings, policy_loss
from rl.loss_statistics import combined, loss_values

PLAIN = LossSettings(
    ratio_clip_min=0.2,
    ratio_clip_max=0.28,
    ratio_clip_c=None,
    ref_policy_kl_penalty=0.0,
    use_on_policy_kl_approximation=True,
    use_importance_sampling_correction=True,
    truncated_importance_sampling_type=None,
    truncated_importance_sampling_ratio=None,
    truncated_importance_sampling_ratio_min=None,
)
TRUNCATION = {"truncated_importance_sampling_ratio": 1.15, "truncated_importance_sampling_ratio_min": 0.75}
"""Of the tokens' weights (0.52 to 1.73) some lie on either side, of the sequences' (1.25, 0.73, 0.82) one inside."""
VARIANTS = {
    "asymmetric clip": PLAIN,
    "no clip": replace(PLAIN, ratio_clip_min=10.0, ratio_clip_max=10.0),
    "dual clip": replace(PLAIN, ratio_clip_c=1.05),
    "no importance sampling": replace(PLAIN, use_importance_sampling_correction=False),
    "tis": replace(PLAIN, truncated_importance_sampling_type="tis", **TRUNCATION),
    "icepop": replace(PLAIN, truncated_importance_sampling_type="icepop", **TRUNCATION),
    "seq-mask-tis": replace(PLAIN, truncated_importance_sampling_type="seq-mask-tis", **TRUNCATION),
    "kl": replace(PLAIN, ref_policy_kl_penalty=0.3),
    "everything": replace(
        PLAIN, ref_policy_kl_penalty=0.3, ratio_clip_c=1.05, truncated_importance_sampling_type="tis", **TRUNCATION
    ),
}
TOKENS = torch.tensor([3, 1, 4, 1, 5, 0, 2, 6, 5, 3, 5, 4])
TARGETS = torch.tensor([1, 4, 1, 5, 0, 2, 6, 5, 3, 5, 4, 0])
SEQUENCE = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
ADVANTAGES = torch.tensor([1.5, 1.5, 1.5, 1.5, -0.7, -0.7, -0.7, 0.4, 0.4, 0.4, 0.4, 0.4], dtype=torch.float64)


def weights(seed=0):
    """Embedding (tied to the head), and two layers."""
    random = torch.Generator().manual_seed(seed)
    shapes = ((7, 3), (3, 3), (3, 3))
    return [torch.randn(shape, generator=random, dtype=torch.float64).mul_(0.6).requires_grad_() for shape in shapes]


def logprobs_and_entropies(parameters, *, temperature=0.8, top_k=5, chunk=5):
    embedding, first, second = parameters
    hidden = torch.tanh(torch.tanh(embedding[TOKENS] @ first) @ second)
    return token_logprobs(hidden, embedding, None, TARGETS, temperature=temperature, top_k=top_k, chunk=chunk)


def noise(seed, scale):
    return torch.randn(len(TARGETS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


START = logprobs_and_entropies(weights())[0].detach()
PREVIOUS, SAMPLER, REFERENCE = START + noise(1, 0.3), START + noise(2, 0.3), START + noise(3, 0.5)


def loss(parameters, settings, *, previous=PREVIOUS, sampler=SAMPLER, advantages=ADVANTAGES):
    logprobs, entropies = logprobs_and_entropies(parameters)
    return policy_loss(
        logprobs,
        previous_T=previous,
        sampler_T=sampler,
        reference_T=REFERENCE if settings.ref_policy_kl_penalty else None,
        advantages_T=advantages,
        sequence_T=SEQUENCE,
        num_sequences=3,
        global_num_tokens=len(TARGETS),
        entropies_T=entropies,
        settings=settings,
    )[0]


def gradients(settings, **inputs):
    parameters = weights()
    return torch.autograd.grad(loss(parameters, settings, **inputs), parameters)


def finite_differences(settings, *, step=1e-5, **inputs):
    """Central differences for every single weight."""
    parameters = [parameter.detach() for parameter in weights()]
    found = []
    for parameter in parameters:
        gradient = torch.zeros_like(parameter)
        for index in range(parameter.numel()):
            value = parameter.view(-1)[index].item()
            sides = []
            for shift in (step, -step):
                parameter.view(-1)[index] = value + shift
                sides.append(loss(parameters, settings, **inputs).item())
            parameter.view(-1)[index] = value
            gradient.view(-1)[index] = (sides[0] - sides[1]) / (2 * step)
        found.append(gradient)
    return found


def relative_error(found, expected):
    found, expected = (torch.cat([part.reshape(-1) for part in parts]) for parts in (found, expected))
    assert expected.norm() > 1e-4
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_gradient_equals_finite_differences(settings):
    assert relative_error(gradients(settings), finite_differences(settings)) < 1e-6


def test_gradient_of_the_kl_penalty_without_the_on_policy_approximation():
    """The weight exp(now - constant now) has the gradient of exp(now - sampler) for a sampler frozen at now."""
    apart = replace(PLAIN, ref_policy_kl_penalty=0.3, use_importance_sampling_correction=False)
    ours = gradients(replace(apart, use_on_policy_kl_approximation=False))
    assert relative_error(ours, finite_differences(apart, sampler=START)) < 1e-6


def test_each_variant_changes_the_gradient():
    plain = gradients(PLAIN)
    changed = {name: relative_error(gradients(settings), plain) for name, settings in VARIANTS.items()}
    assert changed.pop("asymmetric clip") == 0
    assert min(changed.values()) > 1e-3, changed


def test_previous_logprobs_may_be_left_out_when_they_equal_the_current_ones():
    left_out, given = gradients(PLAIN, previous=None), gradients(PLAIN, previous=START)
    assert relative_error(left_out, given) < 1e-12


def part(rows, *, size=12):
    """Loss, gradient and statistics of some sequences, as one micro-batch."""
    parameters = weights()
    logprobs, entropies = logprobs_and_entropies(parameters)
    chosen = torch.isin(SEQUENCE, torch.tensor(rows, dtype=torch.int64))
    value, statistics = policy_loss(
        logprobs[chosen],
        previous_T=PREVIOUS[chosen],
        sampler_T=SAMPLER[chosen],
        reference_T=REFERENCE[chosen],
        advantages_T=ADVANTAGES[chosen],
        sequence_T=SEQUENCE[chosen].unique(return_inverse=True)[1],
        num_sequences=len(rows),
        global_num_tokens=size,
        entropies_T=entropies[chosen],
        settings=VARIANTS["everything"],
    )
    return value.detach(), torch.autograd.grad(value, parameters), statistics


def test_micro_batches_add_up():
    parts = [part([0]), part([1, 2])]
    value, gradient, statistics = part([0, 1, 2])
    torch.testing.assert_close(parts[0][0] + parts[1][0], value)
    for both, whole in zip(zip(parts[0][1], parts[1][1], strict=True), gradient, strict=True):
        torch.testing.assert_close(sum(both), whole)
    together = loss_values(combined([parts[0][2], parts[1][2]]))
    assert together == pytest.approx(loss_values(statistics), rel=1e-9)


def test_overlong_filtering_of_all_but_one_rollout():
    """Truncated rollouts stay in their group's baseline; their tokens are neither in the loss nor in its count."""
    kept_tokens = int((SEQUENCE == 1).sum())
    value, gradient, statistics = part([1], size=kept_tokens)
    assert value.isfinite()
    assert all(each.isfinite().all() for each in gradient)
    assert loss_values(statistics)["global_valid_toks"] == kept_tokens


def test_overlong_filtering_of_all_rollouts():
    value, gradient, statistics = part([], size=0)
    assert value == 0
    assert all((each == 0).all() for each in gradient)
    assert loss_values(statistics) == {"loss": 0, "global_valid_toks": 0, "global_valid_seqs": 0}


def test_a_rollout_without_advantage_gives_no_gradient():
    nothing = gradients(PLAIN, advantages=torch.zeros(len(TARGETS), dtype=torch.float64))
    assert all((each == 0).all() for each in nothing)


def test_a_weight_that_overflows_becomes_zero():
    value, statistics = policy_loss(
        torch.tensor([-1.0, -1.0]),
        previous_T=torch.tensor([-1.0, -1.0]),
        sampler_T=torch.tensor([-1000.0, -1.0]),
        reference_T=None,
        advantages_T=torch.tensor([1.0, 1.0]),
        sequence_T=torch.tensor([0, 0]),
        num_sequences=1,
        global_num_tokens=2,
        entropies_T=torch.zeros(2),
        settings=PLAIN,
    )
    assert value == -0.5
    values = loss_values(statistics)
    assert values["sampling_importance_ratio"] == 0.5
    assert values["token_mult_prob_error"] == pytest.approx((math.exp(20) + 1) / 2)  # large, and still a number
    assert all(math.isfinite(each) for each in values.values())
