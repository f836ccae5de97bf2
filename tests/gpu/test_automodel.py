"""Automodel's own modules on a GPU: they load, take arguments and an adapter, and train."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from launcher.schema.plan import LoraPlan
from rl.workers.dtensor import full_weights, load_policy
from rl.workers.policy import DeviceBatch
from rl.workers.settings import ModelSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # importing NeMo Automodel warns about what it does without
]

LORA = LoraPlan(
    rank=8, alpha=16, multiplier=2.0, dropout=0.0, target_modules=None, exclude_modules=None, use_triton=False
)


@pytest.fixture
def settings(tmp_path: Path) -> ModelSettings:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=512
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return ModelSettings(
        folder=tmp_path / "model", trust_remote_code=False, activation_checkpointing=False, config_overrides={},
        backend="dtensor",
    )  # fmt: skip


def logprobs(settings: ModelSettings) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Of 24 tokens of one row, and the gradients of what is trained."""
    device = torch.device("cuda")
    policy = load_policy(settings, None, device)
    tokens = torch.arange(25, device=device)[None] * 7 % 512
    batch = DeviceBatch(
        token_ids=tokens, position_ids=torch.arange(25, device=device)[None], attention_mask=None,
        predict_from=torch.arange(24, device=device), targets=tokens[0, 1:],
    )  # fmt: skip
    scores = policy(batch, temperature=1.0, top_k=None).logprobs
    torch.autograd.backward(scores.sum())
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    assert set(full_weights(policy, trained_only=True)) == {
        name.removeprefix("language_model.") for name, p in policy.named_parameters() if p.requires_grad
    }
    return scores.detach(), gradients


@pytest.mark.parametrize("arguments", [{}, {"force_hf": True}])
def test_automodel_computes_what_stock_modules_do(settings: ModelSettings, arguments: dict[str, bool]) -> None:
    stock, _ = logprobs(settings)
    automodel, gradients = logprobs(replace(settings, backend="automodel", automodel_kwargs=arguments))
    torch.testing.assert_close(automodel, stock, rtol=1e-3, atol=1e-3)
    assert gradients


@pytest.mark.parametrize("use_triton", [False, True])
def test_an_adapter_starts_at_zero_and_alone_has_gradients(settings: ModelSettings, use_triton: bool) -> None:
    plain, _ = logprobs(replace(settings, backend="automodel"))
    lora = replace(LORA, use_triton=use_triton)
    adapted, gradients = logprobs(replace(settings, backend="automodel", lora=lora))
    torch.testing.assert_close(adapted, plain, rtol=1e-4, atol=1e-4)
    assert gradients
    assert all(".lora_" in name for name in gradients)
