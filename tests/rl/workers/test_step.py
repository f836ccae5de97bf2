"""The same gradient however the work is split, and none from tokens that are not trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gym_bridge.types import TrainSample
from launcher.schema.sampling import Sampling
from rl.layout import BatchingStrategy, LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.micro_batch import FloatArray
from rl.workers.policy import PolicyModel
from rl.workers.step import StepSettings, score, train_step

LOSS = LossSettings(
    ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
    use_on_policy_kl_approximation=True, use_importance_sampling_correction=True,
    truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
    truncated_importance_sampling_ratio_min=None,
)  # fmt: skip
STEP = StepSettings(
    loss=LOSS,
    sampling=Sampling(temperature=0.9, top_p=1.0, top_k=None, max_new_tokens=16),
    compute_dtype=torch.float32,
    max_grad_norm=0.0,
)
LAYOUT = LayoutSettings(
    strategy="dynamic", micro_batch_size=2, train_mb_tokens=64, sequence_length_round=8, data_parallel_size=1,
    optimizer_steps=1, hidden_size=32, needs_all_gradients=False,
)  # fmt: skip
ADVANTAGES = np.array([1, -1, 0.5, 0, 0, 0, -0.5, 2, -1.5, 0.1, 0.2, -0.3], np.float32)


class GradientKeeper(torch.optim.SGD):
    """Keeps the gradients that a step would use."""

    def __init__(self, policy: PolicyModel):
        super().__init__(policy.parameters(), lr=0.0)
        self.policy = policy
        self.gradients: dict[str, Tensor] = {}

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.gradients = {name: p.grad.clone() for name, p in self.policy.named_parameters() if p.grad is not None}


def gradients(
    policy: PolicyModel, samples: list[TrainSample], layout: LayoutSettings, advantages: FloatArray = ADVANTAGES
) -> dict[str, Tensor]:
    optimizer = GradientKeeper(policy)
    ((batch,),) = rank_batches(samples, advantages, layout)
    train_step(policy, optimizer, batch, STEP, learning_rate=0.0, reference=None)
    return optimizer.gradients


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        largest = one[name].abs().max()
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-5 * float(largest), msg=name)


@pytest.mark.parametrize(
    ("strategy", "micro_batch_size", "train_mb_tokens"),
    [
        ("static", 1, 64),
        ("static", 5, 64),
        ("dynamic", 1, 24),
        ("dynamic", 1, 400),
        ("sequence_packing", 1, 40),
        ("sequence_packing", 1, 400),
    ],
)
def test_batching_does_not_change_the_gradient(
    policy: PolicyModel, samples: list[TrainSample], strategy: BatchingStrategy, micro_batch_size: int,
    train_mb_tokens: int,
) -> None:  # fmt: skip
    alone = replace(LAYOUT, strategy="static", micro_batch_size=1)
    layout = replace(LAYOUT, strategy=strategy, micro_batch_size=micro_batch_size, train_mb_tokens=train_mb_tokens)
    assert_same(gradients(policy, samples, alone), gradients(policy, samples, layout))


def test_activation_checkpointing_does_not_change_the_gradient(policy: PolicyModel, samples: list[TrainSample]) -> None:
    expected = gradients(policy, samples, LAYOUT)
    policy.language_model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same(expected, gradients(policy, samples, LAYOUT))


def test_scoring_constant_groups_without_gradient_does_not_change_the_gradient(
    policy: PolicyModel, samples: list[TrainSample]
) -> None:
    ((batch,),) = rank_batches(samples, ADVANTAGES, LAYOUT)
    assert batch.scored, "the second group has no advantage"
    assert_same(
        gradients(policy, samples, LAYOUT), gradients(policy, samples, replace(LAYOUT, needs_all_gradients=True))
    )


def test_masked_tokens_contribute_nothing(policy: PolicyModel, samples: list[TrainSample]) -> None:
    """The last tokens of a sample are masked: their identity cannot matter."""
    masked = [
        replace(sample, loss_mask=(*sample.loss_mask[:-1], 0), logprobs=(*sample.logprobs[:-1], 0.0))
        for sample in samples
    ]
    other = [replace(sample, token_ids=(*sample.token_ids[:-1], 0)) for sample in masked]
    expected, found = gradients(policy, masked, LAYOUT), gradients(policy, other, LAYOUT)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_constant_groups_alone_give_exactly_no_gradient(policy: PolicyModel, samples: list[TrainSample]) -> None:
    assert gradients(policy, samples, LAYOUT, np.zeros(12, np.float32)) == {}


def test_scores_are_the_log_probabilities_of_the_sampled_tokens(
    policy: PolicyModel, samples: list[TrainSample]
) -> None:
    ((batch,),) = rank_batches(samples[:1], ADVANTAGES[:1], LAYOUT)
    (found,) = score(policy, batch, STEP)
    tokens = torch.tensor([samples[0].token_ids])
    logits = policy.language_model(input_ids=tokens).logits[0].detach() / STEP.sampling.temperature
    trained = [t for t, mask in enumerate(samples[0].loss_mask) if mask]
    expected = torch.log_softmax(logits, -1)[[t - 1 for t in trained], tokens[0, trained]]
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-5)
