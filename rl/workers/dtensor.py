"""A model in float32, stock or Automodel's, with an adapter if wanted, divided over ranks.

config with overrides -> modules and weights of the backend -> adapter -> split layers (tensor parallel) -> FSDP2

A single rank is not wrapped: sharding over one rank changes no number and costs a copy of the weights per pass.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rl.workers.attention import CPU_ATTENTION
from rl.workers.automodel import load_automodel
from rl.workers.model_config import read_model_config
from rl.workers.policy import PolicyModel
from rl.workers.settings import ModelSettings
from rl.workers.tensor_parallel import DATA, TokenShares, split_layers, tensor_mesh

LOGIT_CHANGES = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def load_policy(settings: ModelSettings, mesh: DeviceMesh | None, device: torch.device) -> PolicyModel:
    """Load a model with float32 master weights, ready for training.

    Args:
        settings: what to load.
        mesh: ranks to divide it over, ``tensor_parallel.rank_mesh``; None when there is one rank.
        device: where the weights go.
    """
    language_model = load_language_model(settings, device)
    language_model.train()
    if settings.lora is not None:
        from rl.workers.lora import add_adapter  # here, since Automodel's import takes seconds

        add_adapter(language_model, settings.lora, use_triton=settings.lora.use_triton and device.type == "cuda")
    if settings.activation_checkpointing:
        language_model.gradient_checkpointing_enable({"use_reentrant": False})
    group = tensor_mesh(mesh)
    policy = PolicyModel(language_model, None if group is None else TokenShares(group)).to(device)
    if group is not None:
        split_layers(language_model, group, adapted=settings.lora is not None)
    if mesh is not None:
        for layer in decoder_layers(language_model):
            fully_shard(layer, mesh=mesh[DATA])
        fully_shard(policy, mesh=mesh._flatten())  # over all ranks, also those of a tensor group
    return policy


def load_language_model(settings: ModelSettings, device: torch.device) -> PreTrainedModel:
    """The model of the chosen backend with its weights.

    Raises:
        ValueError: a config override's key is none of the config's.
        NotImplementedError: the model changes its logits after the output head.
    """
    config = read_model_config(settings)
    refuse_scaled_logits(config)
    if settings.backend == "automodel" and device.type == "cuda":
        return load_automodel(settings, config)
    language_model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        settings.folder,
        config=config,
        dtype=torch.float32,
        attn_implementation=CPU_ATTENTION if device.type == "cpu" else "sdpa",
        trust_remote_code=settings.trust_remote_code,
        local_files_only=True,
    )
    return language_model


def refuse_scaled_logits(config: PretrainedConfig) -> None:
    """Stop for models that change their logits after the output head: we apply the head ourselves.

    Raises:
        NotImplementedError: names the key of the model's config.
    """
    text_config = config.get_text_config()
    for key in LOGIT_CHANGES:
        if (value := getattr(text_config, key, None)) not in (None, 1, 1.0):
            raise NotImplementedError(
                f"the model's config sets {key}={value}: its logits are changed after the output head, which "
                "engine=local does not do; use engine=nemo_rl"
            )


def decoder_layers(language_model: PreTrainedModel) -> nn.ModuleList:
    """The repeated layers of a model: its longest list of modules."""
    lists = [module for module in language_model.modules() if isinstance(module, nn.ModuleList)]
    assert lists, f"{type(language_model).__name__} has no list of layers"
    return max(lists, key=len)


def full_weights(policy: PolicyModel, *, trained_only: bool = False) -> dict[str, Tensor]:
    """Weights under the names of the model's modules; whole on every rank, so all ranks must call it.

    Tied weights appear once, under the name of the weight they are tied to.

    Args:
        policy: the model.
        trained_only: leave out what is frozen.
    """
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=trained_only)
    return dict(_under_module_names(policy, get_model_state_dict(policy, options=options)))


def named_weights(policy: PolicyModel) -> Iterator[tuple[str, Tensor]]:
    """The same weights one after the other, still sharded: whoever takes one gathers it, on all ranks together."""
    return _under_module_names(policy, policy.state_dict())


def in_file_format(policy: PolicyModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole weights as the model's own files hold them: transformers joins the experts of a layer into one tensor.

    Args:
        policy: the model.
        weights: some of its weights, all that one tensor of a file is made of.
    """
    converted: dict[str, Tensor] = revert_weight_conversion(policy.language_model, dict(weights))
    # A part of a tensor gets memory of its own, as files of tensors that share some are refused.
    return {
        name: value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
        for name, value in converted.items()
    }


def _under_module_names(policy: PolicyModel, weights: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    tied = policy.language_model.all_tied_weights_keys or {}
    for name, value in weights.items():
        module_name = name.removeprefix("language_model.")
        if isinstance(value, Tensor) and module_name not in tied:
            yield module_name, value.detach()
