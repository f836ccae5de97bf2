"""How transformers says that a model's layers are split between ranks; read by a rule and by the ranks themselves.

{"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise", ...}: module, with ``*`` for a layer's number
"""

from collections.abc import Mapping
from typing import Literal, get_args

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
