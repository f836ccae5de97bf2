"""Ranks with gloo compute what one computes, however the work is divided: over data, over tensors, over both.

Two processes, and then four, go through all cases: ``ranks.py``.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gym_bridge.types import TrainSample
from launcher.schema.sampling import Sampling
from rl.layout import LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.optimizer import OptimizerSettings
from rl.workers.settings import ModelSettings
from rl.workers.step import StepSettings, joined_results

SCRIPT = Path(__file__).with_name("ranks.py")
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
    max_grad_norm=0.3,
)  # fmt: skip
LAYOUT = LayoutSettings(
    strategy="dynamic", micro_batch_size=2, train_mb_tokens=48, sequence_length_round=8, data_parallel_size=1,
    optimizer_steps=1, hidden_size=32, needs_all_gradients=False,
)  # fmt: skip
OPTIMIZER = OptimizerSettings(
    optimizer_type="adamw_with_flat_lr", weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.99, adam_eps=1e-2
)
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97,
}  # fmt: skip
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    # Biases, and a head of its own.
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=False)),
    # A norm over each head; heads wider than hidden_size / heads.
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)),
}
Strategy = Literal["static", "dynamic", "sequence_packing"]
CASES: dict[str, tuple[str, Strategy, bool, float]] = {
    # name: (model, batching, activation checkpointing, KL penalty)
    "static": ("llama", "static", False, 0.0),
    "static, checkpointing": ("llama", "static", True, 0.0),
    "dynamic": ("llama", "dynamic", False, 0.0),
    "dynamic, checkpointing": ("llama", "dynamic", True, 0.0),
    "packing": ("llama", "sequence_packing", False, 0.0),
    "packing, checkpointing": ("llama", "sequence_packing", True, 0.0),
    "biases": ("qwen2", "dynamic", False, 0.0),
    "norms of heads, KL penalty": ("qwen3", "sequence_packing", True, 0.5),
}
DIVISIONS = {"data": (2, 1), "tensor": (2, 2), "data and tensor": (4, 2)}
"""Name -> (ranks, tensor parallel size)."""

type Results = dict[int, list[dict[str, dict[int, Any]]]]
"""Number of ranks -> rank -> case -> tensor parallel size (0: a single rank) -> what it gave."""


@pytest.fixture(scope="module")
def results(samples: list[TrainSample], tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ranks")
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make().float()
        for parameter in model.parameters():  # biases and norms too, which start alike
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1)
        model.save_pretrained(folder / name)
    several = {2: [*CASES], 4: [*CASES][-3:]}
    for num_ranks, names in several.items():
        cases = {name: case(folder, samples, *CASES[name]) for name in names}
        (folder / f"cases-{num_ranks}.pkl").write_bytes(pickle.dumps(cases))
    run = subprocess.run([sys.executable, str(SCRIPT), str(folder)], stderr=subprocess.PIPE, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-3000:]
    return {
        num_ranks: [
            torch.load(folder / f"results-{num_ranks}-{rank}.pt", weights_only=False) for rank in range(num_ranks)
        ]
        for num_ranks in several
    }


def case(
    folder: Path, samples: list[TrainSample], model: str, strategy: Strategy, checkpointing: bool, kl_penalty: float
) -> dict[str, Any]:
    layout = replace(LAYOUT, strategy=strategy, needs_all_gradients=kl_penalty > 0)
    return {
        "model": ModelSettings(
            folder=folder / model, trust_remote_code=False, activation_checkpointing=checkpointing, config_overrides={}
        ),
        "optimizer": OPTIMIZER,
        "step": replace(STEP, loss=replace(STEP.loss, ref_policy_kl_penalty=kl_penalty)),
        "batches": {
            size: rank_batches(samples, ADVANTAGES, replace(layout, data_parallel_size=size))[0] for size in (1, 2)
        },
    }


def chosen(results: Results, name: str, division: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one rank gave, and what each of several did."""
    num_ranks, size = DIVISIONS[division]
    several = [of_rank[name][size] for of_rank in results[num_ranks]]
    return results[2][0][name][0], several


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        scale = float(tensor.abs().max())
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance * scale, msg=name)


@pytest.mark.parametrize(
    ("name", "division"),
    [*((name, division) for name in CASES for division in ("data", "tensor")),
     *((name, "data and tensor") for name in [*CASES][-3:])],
)  # fmt: skip
def test_a_divided_step_is_that_of_one_rank(results: Results, name: str, division: str) -> None:
    one, several = chosen(results, name, division)
    assert_equal(several[0]["gradients"], one["gradients"], 1e-5)
    assert_equal(several[0]["weights"], one["weights"], 1e-5)
    norm = one["result"].grad_norm
    assert norm > STEP.max_grad_norm, "clipping is not put to the test"
    assert several[0]["result"].grad_norm == pytest.approx(norm, rel=1e-5)
    copies = DIVISIONS[division][1]
    joined = joined_results([rank["result"] for rank in several], copies=copies).statistics
    for kind in ("sums", "minima", "maxima"):
        torch.testing.assert_close(
            getattr(joined, kind), getattr(one["result"].statistics, kind), rtol=1e-5, atol=1e-5, msg=kind
        )
    if division == "tensor":  # the same micro-batches
        for found, wanted in zip(several[0]["scores"], one["scores"], strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, (model, *_) in CASES.items() if model == "llama"])
def test_batching_and_checkpointing_change_nothing(results: Results, name: str) -> None:
    (one, _), (wanted, _) = chosen(results, name, "data"), chosen(results, "static", "data")
    assert_equal(one["gradients"], wanted["gradients"], 1e-5)


@pytest.mark.parametrize(
    ("name", "division"), [("packing", "tensor"), ("norms of heads, KL penalty", "data and tensor")]
)
def test_ranks_of_a_tensor_group_stay_the_same_bit_for_bit(results: Results, name: str, division: str) -> None:
    """Each computes the gradient of what it has whole, so nothing else keeps the copies together."""
    _, several = chosen(results, name, division)
    for first, second in zip(several[::2], several[1::2], strict=True):
        assert all(torch.equal(first["weights"][key], second["weights"][key]) for key in first["weights"])
        assert first["result"].statistics.sums.tolist() == second["result"].statistics.sums.tolist()
        assert all(np.array_equal(a, b) for a, b in zip(first["scores"], second["scores"], strict=True))


@pytest.mark.parametrize("division", DIVISIONS)
def test_whole_weights_have_the_names_of_the_models_files(results: Results, division: str) -> None:
    for name, has_head in (("packing, checkpointing", False), ("biases", True)):
        _, several = chosen(results, name, division)
        assert "model.embed_tokens.weight" in several[0]["weights"]
        assert ("lm_head.weight" in several[0]["weights"]) is has_head, "a tied head is the embedding"
