"""What was trained as a folder that others load: a model (transformers, vLLM), or an adapter (PEFT, vLLM)."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import Tensor

from launcher.schema.plan import LoraPlan
from rl.adapter import PEFT_PREFIX

COPIED = ("*.json", "*.jinja", "*.model", "*.txt", "*.py")
"""Everything of the source folder that is not weights: config, tokenizer, chat template, custom code."""


def export_model(weights: Mapping[str, Tensor], *, source: Path, folder: Path) -> None:
    """Write a model folder: the source's own files with the new weights in bfloat16.

    Args:
        weights: name -> tensor, under the names of the source's weight files; tied ones once.
        source: folder of the model that training started from.
        folder: appears complete or not at all.
    """
    with _complete_folder(folder) as partial:
        for pattern in COPIED:
            for file in source.glob(pattern):
                if not file.name.endswith(".index.json"):
                    shutil.copy2(file, partial / file.name)
        save_torch_state_dict({name: value.to(torch.bfloat16) for name, value in weights.items()}, partial)


def export_adapter(weights: Mapping[str, Tensor], lora: LoraPlan, *, base_model: Path, folder: Path) -> None:
    """Write an adapter in PEFT's format: ``adapter_config.json`` and ``adapter_model.safetensors``, in float32.

    Args:
        weights: name -> tensor, under the names of ``rl.adapter.adapter_weights``.
        lora: rank, alpha and dropout.
        base_model: folder of the model that the adapter belongs to.
        folder: appears complete or not at all.
    """
    from peft import LoraConfig, TaskType  # here, since it imports transformers: seconds that the driver need not spend

    layers = {name.removeprefix(PEFT_PREFIX).partition(".lora_")[0] for name in weights}
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=str(base_model),
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=sorted(layers),
        inference_mode=True,
    )
    with _complete_folder(folder) as partial:
        config.save_pretrained(str(partial))
        save_file(
            {name: value.to(device="cpu", dtype=torch.float32).contiguous() for name, value in weights.items()},
            partial / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )


@contextmanager
def _complete_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of ``folder`` at the end."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
