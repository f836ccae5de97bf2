"""The routers of a mixture of experts are balanced over the whole optimizer step, however it is split."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from gym_bridge.types import TrainSample
from launcher.schema.job import JobConfig
from launcher.schema.sampling import Sampling
from rl.batching import Unit
from rl.layout import BatchingStrategy, LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.micro_batch import FloatArray, micro_batch
from rl.router_loss import ExpertLoad, RouterSettings, balance_loss, expert_load, sample_counts
from rl.settings import config_overrides, router_aux_loss_coef
from rl.workers.model_config import router_settings
from rl.workers.policy import PolicyModel
from rl.workers.step import RankResult, StepSettings, train_step

VOCABULARY = 97
COEFFICIENT = 0.5
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "vocab_size": VOCABULARY, "num_experts_per_tok": 2,
}  # fmt: skip
ADVANTAGES = np.array([1, -1, 0.5, 0, 0, 0, -0.5, 2, -1.5, 0.1, 0.2, -0.3], np.float32)
STEP = StepSettings(
    loss=LossSettings(
        ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
        use_on_policy_kl_approximation=True, use_importance_sampling_correction=True,
        truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
        truncated_importance_sampling_ratio_min=None,
    ),
    sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=16),
    compute_dtype=torch.float32, max_grad_norm=0.0,
    router=RouterSettings(coefficient=COEFFICIENT, experts_per_token=2),
)  # fmt: skip
LAYOUT = LayoutSettings(
    strategy="static", micro_batch_size=1, train_mb_tokens=64, sequence_length_round=8, data_parallel_size=1,
    optimizer_steps=1, hidden_size=16, needs_all_gradients=True,
)  # fmt: skip


def experts(name: str = "qwen3_moe") -> PreTrainedModel:
    torch.manual_seed(0)
    match name:
        case "mixtral":
            return MixtralForCausalLM(MixtralConfig(**SIZES, intermediate_size=16, num_local_experts=4)).float()
        case "olmoe":
            return OlmoeForCausalLM(OlmoeConfig(**SIZES, intermediate_size=16, num_experts=4)).float()
        case _:
            config = Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, num_experts=4, head_dim=8)
            return Qwen3MoeForCausalLM(config).float()


class GradientKeeper(torch.optim.SGD):
    """Keeps the gradients that a step would use."""

    def __init__(self, policy: PolicyModel):
        super().__init__(policy.parameters(), lr=0.0)
        self.policy = policy
        self.gradients: dict[str, Tensor] = {}

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.gradients = {name: p.grad.clone() for name, p in self.policy.named_parameters() if p.grad is not None}


def step(
    model: PreTrainedModel, samples: list[TrainSample], *, advantages: FloatArray = ADVANTAGES,
    settings: StepSettings = STEP, layout: LayoutSettings = LAYOUT,
) -> tuple[dict[str, Tensor], RankResult]:  # fmt: skip
    policy = PolicyModel(model.train())
    optimizer = GradientKeeper(policy)
    ((batch,),) = rank_batches(samples, advantages, layout)
    result = train_step(policy, optimizer, batch, settings, learning_rate=0.0, reference=None)
    return optimizer.gradients, result


def test_the_loss_of_three_tokens_by_hand() -> None:
    """Two experts, one per token. Logits ln 3 to 0 are probabilities 3/4 and 1/4.

    f: expert 0 gets tokens a and b (b stands in two samples), expert 1 gets c: 3/4 and 1/4 of 4.
    P: expert 0 (3/4 + 2 * 3/4 + 1/4) / 4 = 5/8, expert 1 3/8. Loss 2 * (3/4 * 5/8 + 1/4 * 3/8) = 9/8.
    """
    high = math.log(3.0)
    logits = torch.tensor([[high, 0.0], [high, 0.0], [0.0, high], [9.0, 9.0]], requires_grad=True)
    counts = torch.tensor([1, 2, 1, 0])  # the last is padding
    load = expert_load([logits], counts, RouterSettings(coefficient=1.0, experts_per_token=1))
    assert (load.assignments_E.tolist(), float(load.num_routed)) == ([3.0, 1.0], 4.0)
    loss = balance_loss([logits], counts, load)
    assert loss.item() == pytest.approx(9 / 8)
    torch.autograd.backward(loss)
    # d/dz_0 of token a: 2 * (f_0 - f_1) * p_0 * p_1 / 4 = 2 * 1/2 * 3/16 / 4
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([3 / 64, -3 / 64])
    assert logits.grad[1].tolist() == pytest.approx([6 / 64, -6 / 64])
    assert logits.grad[3].tolist() == [0.0, 0.0]


def test_load_adds_up() -> None:
    one = ExpertLoad(assignments_E=torch.tensor([1.0, 0.0]), num_routed=torch.tensor(1.0))
    both = one + ExpertLoad(assignments_E=torch.tensor([1.0, 2.0]), num_routed=torch.tensor(3.0))
    assert (both.assignments_E.tolist(), float(both.num_routed)) == ([2.0, 2.0], 4.0)


def test_a_shared_prompt_counts_once_for_each_response() -> None:
    def sample(*tokens: int) -> TrainSample:
        mask = (0, 0, *(1 for _ in tokens[2:]))
        return TrainSample(
            group_id=0, rollout_id=0, token_ids=tokens, loss_mask=mask, logprobs=(0.0,) * len(tokens), truncated=False
        )

    samples = [sample(1, 2, 3), sample(1, 2, 4, 5), sample(6, 7, 8)]
    shared = Unit(samples=(0, 1), num_prompt_tokens=2, num_tokens=5)
    alone = Unit(samples=(2,), num_prompt_tokens=2, num_tokens=3)
    batch = micro_batch([[shared, alone], [alone]], samples, width=9)
    assert sample_counts(batch).tolist() == [[2, 2, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]]
    assert sample_counts(micro_batch([], samples, width=2)).tolist() == [[0, 0]]


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "olmoe"])
def test_the_gradient_is_that_of_transformers(name: str, samples: list[TrainSample]) -> None:
    """Without advantages only the routers' loss is left: all samples as one padded batch, by transformers."""
    model = experts(name)
    found, result = step(model, samples, advantages=np.zeros(12, np.float32))
    width = max(len(sample.token_ids) for sample in samples)
    tokens = torch.tensor([[*s.token_ids, *[0] * (width - len(s.token_ids))] for s in samples])
    mask = torch.tensor([[1] * len(s.token_ids) + [0] * (width - len(s.token_ids)) for s in samples])
    model.zero_grad()
    loss = model(input_ids=tokens, attention_mask=mask, output_router_logits=True).aux_loss
    torch.autograd.backward(COEFFICIENT * loss)
    expected = {f"language_model.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    routers = [n for n in found if n.endswith("gate.weight")]
    assert len(routers) == 2
    assert result.router_aux_loss == pytest.approx(loss.item(), rel=1e-5)
    for router in routers:
        assert float(expected[router].abs().max()) > 1e-3
    for router in found.keys() & expected.keys():
        scale = float(expected[router].abs().max())
        torch.testing.assert_close(found[router], expected[router], rtol=1e-4, atol=1e-5 * scale, msg=router)


@pytest.mark.parametrize(
    ("strategy", "micro_batch_size", "train_mb_tokens"),
    [("static", 5, 64), ("dynamic", 1, 24), ("dynamic", 1, 400), ("sequence_packing", 1, 64)],
)
def test_micro_batches_only_split_the_work(
    samples: list[TrainSample], strategy: BatchingStrategy, micro_batch_size: int, train_mb_tokens: int
) -> None:
    model = experts()
    expected, alone = step(model, samples)
    layout = replace(LAYOUT, strategy=strategy, micro_batch_size=micro_batch_size, train_mb_tokens=train_mb_tokens)
    found, result = step(model, samples, layout=layout)
    assert result.router_aux_loss == pytest.approx(alone.router_aux_loss, rel=1e-5)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5 * scale, msg=name)


def test_activation_checkpointing_does_not_change_it(samples: list[TrainSample]) -> None:
    model = experts()
    expected, _ = step(model, samples)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    found, _ = step(model, samples)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_the_coefficient_scales_it_and_none_leaves_it_out(samples: list[TrainSample]) -> None:
    """Without advantages the policy loss has no gradient of its own."""
    model, none = experts(), np.zeros(12, np.float32)
    settings = [replace(STEP, router=RouterSettings(coefficient=c, experts_per_token=2)) for c in (0.1, 0.2)]
    (once, _), (twice, _) = (step(model, samples, advantages=none, settings=each) for each in settings)
    router = "language_model.model.layers.0.mlp.gate.weight"
    torch.testing.assert_close(twice[router], 2 * once[router])
    without, result = step(model, samples, advantages=none, settings=replace(STEP, router=None))
    assert result.router_aux_loss is None
    assert not any(gradient.any() for gradient in without.values())


@pytest.mark.parametrize(
    ("training", "coefficient", "overrides"),
    [
        ({}, 0.0, {}),
        ({"router_aux_loss_coef": 0.0}, 0.0, {"router_aux_loss_coef": 0.0}),
        ({"router_aux_loss_coef": 0.02}, 0.02, {"router_aux_loss_coef": 0.02}),
        ({"hf_config_overrides": {"text_config": {"router_aux_loss_coef": 0.03}}}, 0.03,
         {"text_config": {"router_aux_loss_coef": 0.03}}),
    ],
)  # fmt: skip
def test_the_coefficient_reaches_model_and_vllm(training: object, coefficient: float, overrides: object) -> None:
    job = JobConfig.model_validate({
        "model": "m", "dataset": "d", "environment": "e", "training": {"type": "grpo", **training},  # type: ignore[dict-item]
    })  # fmt: skip
    assert router_aux_loss_coef(job.training) == coefficient
    assert config_overrides(job.training) == overrides


def test_a_dense_model_has_no_routers_to_balance(samples: list[TrainSample]) -> None:
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=97
    )
    assert router_settings(config, 0.0) is None
    with pytest.raises(NotImplementedError, match="LlamaConfig has no num_experts_per_tok"):
        router_settings(config, 0.01)
    with pytest.raises(NotImplementedError, match="do not give the logits of their routers"):
        step(LlamaForCausalLM(config), samples)
    assert router_settings(experts().config, 0.01) == RouterSettings(coefficient=0.01, experts_per_token=2)
