"""The ``automodel`` backend: NeMo Automodel's modules on a GPU, the stock ones on a CPU, where Automodel has none."""

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from rl.workers.settings import ModelSettings


def load_automodel(settings: ModelSettings, config: PretrainedConfig) -> PreTrainedModel:
    """Load Automodel's implementation of a model, or the stock one that it patches, in float32.

    It is neither sharded nor adapted yet: both backends do that the same way.
    """
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
