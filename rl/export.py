"""The trained model as a Hugging Face folder, which transformers and vLLM load."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor

COPIED = ("*.json", "*.jinja", "*.model", "*.txt", "*.py")
"""Everything of the source folder that is not weights: config, tokenizer, chat template, custom code."""


def export_model(weights: Mapping[str, Tensor], *, source: Path, folder: Path) -> None:
    """Write a model folder: the source's own files with the new weights in bfloat16.

    Args:
        weights: name -> tensor, under the names of the source's weight files; tied ones once.
        source: folder of the model that training started from.
        folder: appears complete or not at all.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for pattern in COPIED:
        for file in source.glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copy2(file, partial / file.name)
    save_torch_state_dict({name: value.to(torch.bfloat16) for name, value in weights.items()}, partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
