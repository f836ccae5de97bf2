"""How transformers says that a model's layers are split between ranks; read by a rule and by the ranks themselves.

{"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise", ...}: module, with ``*`` for a layer's number
"""

from collections.abc import Mapping
from math import gcd
from typing import Any, Literal, get_args

TensorStyle = Literal[
    "colwise", "rowwise", "colwise_gather_output", "rowwise_split_input", "replicated_with_grad_allreduce"
]
"""Ways to split a module that engine=local has; the others are for experts and for latent attention."""


def known_plan(model_type: str) -> Mapping[str, str] | None:
    """The plan that transformers has for a model type, empty when it has none.

    Returns:
        None when transformers is not installed, or knows no such type.
    """
    try:
        from transformers import AutoConfig  # here: it takes seconds, and a machine that only checks may lack it

        return AutoConfig.for_model(model_type).base_model_tp_plan or {}
    except (ImportError, ValueError):
        return None


def layer_plan(plan: Mapping[str, str]) -> dict[str, str]:
    """The part of a plan that is about the layers: embedding and output head stay whole."""
    return {pattern: style for pattern, style in plan.items() if "*" in pattern}


def why_not(plan: Mapping[str, str]) -> str | None:
    """Why engine=local cannot split a model with this plan; None when it can."""
    layers = layer_plan(plan)
    if not layers:
        return "transformers has no tensor-parallel plan for the model"
    for pattern, style in layers.items():
        if style not in get_args(TensorStyle):
            return f"transformers splits the model's {pattern} as {style!r}, which engine=local does not implement"
    return None


def heads(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Attention heads and key-value heads of a model; None when its config does not say."""
    config = config.get("text_config") or config
    attention = config.get("num_attention_heads")
    key_value = config.get("num_key_value_heads") or attention
    return (attention, key_value) if isinstance(attention, int) and isinstance(key_value, int) else None


def uneven_heads(config: Mapping[str, Any], size: int) -> str | None:
    """Why a group of ``size`` ranks cannot have whole heads each; None when it can, or the config does not say."""
    counts = heads(config)
    if counts is None or gcd(*counts) % size == 0:
        return None
    return f"{size} does not divide both the model's {counts[0]} attention heads and its {counts[1]} key-value heads"


def uneven_width(config: Mapping[str, Any], size: int) -> str | None:
    """Why a group of ``size`` ranks cannot have equal parts of the feed-forward width; None when it can."""
    width = (config.get("text_config") or config).get("intermediate_size")
    if not isinstance(width, int) or width % size == 0:
        return None
    return f"{size} does not divide the model's intermediate_size ({width})"
