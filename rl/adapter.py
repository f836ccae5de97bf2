"""A LoRA adapter as weights: merged into those of its base for a sampler, and under PEFT's names on disk.

adapted model's weights --(merged_weights)--> the sampler's     --(adapter_weights)--> PEFT's names, for rl.export
base folder, adapter folder --(write_merged_model)--> folder with the sampler's
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from launcher.schema.problems import RunFailed
from rl.generation.weights import write_weights

PEFT_PREFIX = "base_model.model."
DOWN, UP = ".lora_A", ".lora_B"


def merged_weights(weights: Mapping[str, Tensor], *, multiplier: float) -> dict[str, Tensor]:
    """The weights of the model without adapter that computes the same: ``W + multiplier * B @ A``.

    Args:
        weights: of an adapted model, whole; they are left as they are.
        multiplier: alpha / rank.

    Returns:
        Adapted weights in the adapter's precision, the others as they were.
    """
    merged = {name: value for name, value in weights.items() if not _of_adapter(name)}
    for name, down in weights.items():
        if name.endswith(f"{DOWN}.weight"):
            layer = name.removesuffix(f"{DOWN}.weight")
            up, base = weights[f"{layer}{UP}.weight"], weights[f"{layer}.weight"]
            merged[f"{layer}.weight"] = torch.addmm(base.to(up.dtype), up, down, alpha=multiplier)
    return merged


def adapter_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter's weights alone, under the names that PEFT and vLLM read."""
    return {PEFT_PREFIX + name: value for name, value in weights.items() if _of_adapter(name)}


def write_merged_model(base: Path, adapter: Path, folder: Path, *, dtype: Literal["bfloat16", "float32"]) -> None:
    """Write the weights of a model with an adapter that ``rl.export`` wrote merged in.

    Args:
        base: folder of the model that the adapter was trained on.
        adapter: folder with adapter_config.json and adapter_model.safetensors.
        folder: exists; gets one safetensors file.
        dtype: the precision that the sampler computes in.

    Raises:
        RunFailed: the adapter belongs to another model.
    """
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    weights: dict[str, Tensor] = {}
    for file in sorted(base.glob("model*.safetensors")):
        weights |= load_file(file)
    adapted = load_file(adapter / "adapter_model.safetensors")
    weights |= {name.removeprefix(PEFT_PREFIX): value for name, value in adapted.items()}
    try:
        merged = merged_weights(weights, multiplier=config["lora_alpha"] / config["r"])
    except (KeyError, RuntimeError) as error:
        raise RunFailed(f"the adapter in {adapter} does not belong to the model in {base}: {error}") from None
    write_weights(merged, folder, dtype=torch.bfloat16 if dtype == "bfloat16" else torch.float32)


def _of_adapter(name: str) -> bool:
    return f"{DOWN}." in name or f"{UP}." in name
