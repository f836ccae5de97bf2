"""An adapter on two ranks: the frozen weights are sharded too, the reference is the same model with the adapter off."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from gym_bridge.types import TrainSample
from launcher.schema.plan import LoraPlan
from launcher.schema.sampling import Sampling
from rl.layout import LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.optimizer import OptimizerSettings
from rl.workers.settings import ModelSettings, RankSettings

SCRIPT = Path(__file__).with_name("lora_ranks.py")
ADVANTAGES = np.array([1, -1, 0.5, 0, 0, 0, -0.5, 2, -1.5, 0.1, 0.2, -0.3], np.float32)
LAYOUT = LayoutSettings(
    strategy="dynamic", micro_batch_size=1, train_mb_tokens=48, sequence_length_round=8, data_parallel_size=1,
    optimizer_steps=1, hidden_size=32, needs_all_gradients=True,
)  # fmt: skip


def settings(model: Path) -> RankSettings:
    return RankSettings(
        model=ModelSettings(
            folder=model, trust_remote_code=False, activation_checkpointing=False, config_overrides={},
            backend="automodel",
            lora=LoraPlan(rank=4, alpha=8, multiplier=2.0, dropout=0.0, target_modules=None, exclude_modules=None,
                          use_triton=False),
        ),
        optimizer=OptimizerSettings(
            optimizer_type="adamw_with_flat_lr", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.99, adam_eps=1e-2
        ),
        loss=LossSettings(
            ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.5,
            use_on_policy_kl_approximation=True, use_importance_sampling_correction=True,
            truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
            truncated_importance_sampling_ratio_min=None,
        ),
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=16),
        device="cpu", compute_dtype="float32", max_grad_norm=0.0, seed=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(samples: list[TrainSample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one rank, and then two, have trained."""
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=97, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder / "model")
    (folder / "settings.pkl").write_bytes(pickle.dumps(settings(folder / "model")))
    for size in (1, 2):
        (batches,) = rank_batches(samples, ADVANTAGES, replace(LAYOUT, data_parallel_size=size))
        (folder / f"batches-{size}.pkl").write_bytes(pickle.dumps(batches))
        run_ranks(folder, size)
    return folder


def run_ranks(folder: Path, num_ranks: int) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(num_ranks), str(folder)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(num_ranks)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors[-3000:]


@pytest.mark.parametrize("division", ["2-1", "1-2"], ids=["data parallel", "tensor parallel"])
def test_two_ranks_train_and_export_the_adapter_of_one(folder: Path, division: str) -> None:
    one, two = (torch.load(folder / f"result-{name}.pt") for name in ("1-1", division))
    assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=1e-4)
    assert one["grad_norms"][0] > 0
    assert one["weights"].keys() == two["weights"].keys()
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=1e-4, atol=1e-6, msg=name)
    exported = load_file(folder / f"export-{division}" / "adapter_model.safetensors")
    assert len(exported) == 2 * 7 * 2
    for name, weight in exported.items():
        assert torch.equal(weight, two["weights"][name.removeprefix("base_model.model.")])
