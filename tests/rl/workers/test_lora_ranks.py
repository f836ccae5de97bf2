"""An adapter on two ranks: the frozen weights are sharded too, the reference is the same model with the adapter off."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gym_bridge.types import TrainSample
from launcher.schema.plan import LoraPlan
from launcher.schema.sampling import Sampling
from rl.layout import LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.optimizer import OptimizerSettings
from rl.workers.policy import PolicyModel
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


def run_ranks(folder: Path, samples: list[TrainSample], num_ranks: int) -> dict[str, Any]:
    (batches,) = rank_batches(samples, ADVANTAGES, replace(LAYOUT, data_parallel_size=num_ranks))
    (folder / f"batches-{num_ranks}.pkl").write_bytes(pickle.dumps(batches))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(num_ranks), str(folder)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(num_ranks)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors[-3000:]
    result: dict[str, Any] = torch.load(folder / f"result-{num_ranks}.pt")
    return result


def test_two_ranks_train_and_export_the_adapter_of_one(
    policy: PolicyModel, samples: list[TrainSample], tmp_path: Path
) -> None:
    policy.language_model.save_pretrained(tmp_path / "model")
    (tmp_path / "settings.pkl").write_bytes(pickle.dumps(settings(tmp_path / "model")))
    one, two = (run_ranks(tmp_path, samples, num_ranks) for num_ranks in (1, 2))
    assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=1e-4)
    assert one["grad_norms"][0] > 0
    assert one["weights"].keys() == two["weights"].keys()
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=1e-4, atol=1e-6, msg=name)
    exported = load_file(tmp_path / "export-2" / "adapter_model.safetensors")
    assert len(exported) == 2 * 7 * 2
    for name, weight in exported.items():
        assert torch.equal(weight, two["weights"][name.removeprefix("base_model.model.")])
