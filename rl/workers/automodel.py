"""The ``automodel`` backend: NeMo Automodel's modules on a GPU, the stock ones on a CPU, where Automodel has none."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from rl.workers.settings import ModelSettings


def load_automodel(settings: ModelSettings, config: PretrainedConfig) -> PreTrainedModel:
    """Load Automodel's implementation of a model, or the stock one that it patches, in float32.

    It is neither sharded nor adapted yet: both backends do that the same way.

    Raises:
        NotImplementedError: Automodel's implementation cannot be called as transformers' models are.
    """
    refuse_foreign_modules(config, settings.automodel_kwargs)
    from nemo_automodel import (  # type: ignore[import-untyped]
        NeMoAutoModelForCausalLM,  # here, since its import takes seconds and looks for a GPU
    )

    arguments: dict[str, Any] = {
        "config": config,
        "dtype": torch.float32,
        "attn_implementation": "sdpa",
        "trust_remote_code": settings.trust_remote_code,
        "local_files_only": True,
        **settings.automodel_kwargs,
    }
    language_model: PreTrainedModel = NeMoAutoModelForCausalLM.from_pretrained(str(settings.folder), **arguments)
    return language_model


def refuse_foreign_modules(config: PretrainedConfig, automodel_kwargs: Mapping[str, Any]) -> None:
    """Stop where Automodel's own modules are none of transformers': its mixtures of experts, which take no mask of who
    attends to whom and hold their weights in a form of their own.

    Raises:
        NotImplementedError: says how to get transformers' modules.
    """
    from nemo_automodel._transformers.model_init import get_is_hf_model  # type: ignore[import-untyped]
    from nemo_automodel._transformers.registry import ModelRegistry  # type: ignore[import-untyped]

    if get_is_hf_model(config, automodel_kwargs.get("force_hf", False)):
        return
    assert config.architectures, "Automodel knows its own modules by the architecture"
    architecture = config.architectures[0]
    if not issubclass(ModelRegistry.get_model_cls_from_model_arch(architecture), PreTrainedModel):
        raise NotImplementedError(
            f"training.policy_backend: NeMo Automodel's own {architecture} does not fit engine=local; set "
            "training.automodel_kwargs={force_hf: true} for transformers' modules, or use engine=nemo_rl"
        )
