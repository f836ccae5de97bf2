"""Two ranks with gloo compute what one computes."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gym_bridge.types import TrainSample
from launcher.schema.sampling import Sampling
from rl.layout import LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.workers.policy import PolicyModel
from rl.workers.step import StepSettings

SCRIPT = Path(__file__).with_name("two_ranks.py")
ADVANTAGES = np.array([1, -1, 0.5, 0, 0, 0, -0.5, 2, -1.5, 0.1, 0.2, -0.3], np.float32)
STEP = StepSettings(
    loss=LossSettings(
        ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
        use_on_policy_kl_approximation=True, use_importance_sampling_correction=True,
        truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
        truncated_importance_sampling_ratio_min=None,
    ),
    sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=16),
    compute_dtype=torch.float32,
    max_grad_norm=1.0,
)  # fmt: skip
LAYOUT = LayoutSettings(
    strategy="dynamic", micro_batch_size=1, train_mb_tokens=48, sequence_length_round=8, data_parallel_size=1,
    optimizer_steps=1, hidden_size=32, needs_all_gradients=False,
)  # fmt: skip


def run_ranks(folder: Path, samples: list[TrainSample], num_ranks: int) -> dict[str, Any]:
    (batches,) = rank_batches(samples, ADVANTAGES, replace(LAYOUT, data_parallel_size=num_ranks))
    (folder / f"batches-{num_ranks}.pkl").write_bytes(pickle.dumps((batches, STEP)))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(num_ranks), str(folder)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(num_ranks)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-3000:]
    result: dict[str, Any] = torch.load(folder / f"result-{num_ranks}.pt")
    return result


def test_two_data_parallel_ranks_give_the_gradient_and_weights_of_one(
    policy: PolicyModel, samples: list[TrainSample], tmp_path: Path
) -> None:
    policy.language_model.save_pretrained(tmp_path / "model")
    one, two = (run_ranks(tmp_path, samples, num_ranks) for num_ranks in (1, 2))
    assert one["gradients"].keys() == two["gradients"].keys()
    for name, gradient in one["gradients"].items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(two["gradients"][name], gradient, rtol=1e-5, atol=1e-5 * scale, msg=name)
    assert abs(one["grad_norm"] - two["grad_norm"]) <= 1e-5 * one["grad_norm"]
    assert one["weights"].keys() == two["weights"].keys()
    assert "lm_head.weight" not in one["weights"], "the head is tied to the embedding"
    assert "model.embed_tokens.weight" in one["weights"]
