"""The ``dtensor`` backend: a stock transformers model in float32, sharded over data-parallel ranks by PyTorch FSDP2.

A single rank is not wrapped: sharding over one rank changes no number and costs a copy of the weights per pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel

from rl.workers.policy import PolicyModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """What is loaded, and how."""

    folder: Path
    """Local folder with config, safetensors and tokenizer."""
    trust_remote_code: bool
    activation_checkpointing: bool
    """Recompute each layer's activations in the backward pass."""
    config_overrides: Mapping[str, Any]
    """Keys of the model's config to replace, nested keys included."""


def load_policy(settings: ModelSettings, mesh: DeviceMesh | None, device: torch.device) -> PolicyModel:
    """Load a model with float32 master weights, ready for training.

    Args:
        settings: what to load.
        mesh: data-parallel ranks to shard over; None when there is one rank.
        device: where the weights go.
    """
    language_model = AutoModelForCausalLM.from_pretrained(
        settings.folder,
        dtype=torch.float32,
        attn_implementation="sdpa",
        trust_remote_code=settings.trust_remote_code,
        local_files_only=True,
        **settings.config_overrides,
    )
    language_model.train()
    if settings.activation_checkpointing:
        language_model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = PolicyModel(language_model.to(device))
    if mesh is not None:
        for layer in decoder_layers(language_model):
            fully_shard(layer, mesh=mesh)
        fully_shard(policy, mesh=mesh)
    return policy


def decoder_layers(language_model: PreTrainedModel) -> nn.ModuleList:
    """The repeated layers of a model: its longest list of modules."""
    lists = [module for module in language_model.modules() if isinstance(module, nn.ModuleList)]
    assert lists, f"{type(language_model).__name__} has no list of layers"
    return max(lists, key=len)


def full_weights(policy: PolicyModel) -> dict[str, Tensor]:
    """All weights under the names of the model's own files; whole on every rank, so all ranks must call it.

    Tied weights appear once.
    """
    weights = get_model_state_dict(policy, options=StateDictOptions(full_state_dict=True))
    prefix = "language_model."
    seen: set[int] = set()
    named: dict[str, Tensor] = {}
    for name, value in weights.items():
        tensor = value.detach()
        if tensor.data_ptr() not in seen:  # tied weights share their storage
            seen.add(tensor.data_ptr())
            named[name.removeprefix(prefix)] = tensor
    return named
