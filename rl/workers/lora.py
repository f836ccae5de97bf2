"""LoRA: NeMo Automodel's adapted linear layers in a transformers model; ``rl.adapter`` handles their weights.

model --(add_adapter)--> model with A and B beside its linear layers, everything else frozen
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from launcher.lora_modules import adapted_modules, matches
from launcher.schema.plan import LoraPlan
from rl.adapter import DOWN
from rl.workers.policy import DeviceBatch, PolicyModel, PolicyOutput

logger = logging.getLogger(__name__)


def add_adapter(language_model: PreTrainedModel, lora: LoraPlan, *, use_triton: bool) -> None:
    """Put an adapter beside the chosen linear layers, in place, and freeze all other weights.

    The adapter starts at zero (B is zero), so that the model computes what it did before.

    Args:
        language_model: a model with its weights loaded, not sharded.
        lora: rank, multiplier, dropout (on the adapter's output) and layers.
        use_triton: Triton kernels instead of PyTorch's; needs a GPU.

    Raises:
        ValueError: a pattern matches no linear layer, or no layer is left.
    """
    # Here: these imports take seconds, which runs without an adapter need not spend.
    from nemo_automodel.components._peft.lora import (  # type: ignore[import-untyped]
        PeftConfig,
        apply_lora_to_linear_modules,
    )

    names = chosen_layers(language_model, lora)
    logger.info("LoRA adapts %d linear layers: %s", len(names), ", ".join(names))
    num_adapted = apply_lora_to_linear_modules(
        language_model,
        PeftConfig(
            target_modules=names,
            dim=lora.rank,
            alpha=lora.alpha,
            dropout=lora.dropout,
            dropout_position="post",
            use_triton=use_triton,
            # Automodel's own autograd functions, of which the Triton kernels are a part. Plain operations otherwise:
            # they follow autocast.
            use_memory_efficient_lora=use_triton,
        ),
    )
    assert num_adapted == len(names), f"Automodel adapted {num_adapted} of {len(names)} layers"


def chosen_layers(language_model: nn.Module, lora: LoraPlan) -> list[str]:
    """Full names of the linear layers that ``lora`` adapts.

    Raises:
        ValueError: a pattern matches no linear layer, or no layer is left.
    """
    linear = [name for name, module in language_model.named_modules() if isinstance(module, nn.Linear)]
    for key, patterns in (("target_modules", lora.target_modules), ("exclude_modules", lora.exclude_modules)):
        for pattern in patterns or ():
            if not any(matches(pattern, name) for name in linear):
                last_parts = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
                raise ValueError(
                    f"training.lora.{key}: {pattern!r} matches none of the model's {len(linear)} linear layers; use "
                    f"one of {last_parts}, or a pattern with *"
                )
    names = adapted_modules(linear, target_modules=lora.target_modules, exclude_modules=lora.exclude_modules)
    if not names:
        raise ValueError(
            f"training.lora leaves none of the model's {len(linear)} linear layers to adapt; name fewer in "
            "exclude_modules, or name layers other than lm_head in target_modules"
        )
    return names


class WithoutAdapter(nn.Module):
    """The policy with its adapter off, which is the model before training: a KL reference without a second copy."""

    def __init__(self, policy: PolicyModel):
        super().__init__()
        self.policy = policy

    def forward(self, batch: DeviceBatch, *, temperature: float, top_k: int | None) -> PolicyOutput:
        """As ``PolicyModel.forward``, of the frozen weights alone."""
        with adapter_off(self.policy):
            output: PolicyOutput = self.policy(batch, temperature=temperature, top_k=top_k)
        return output


@contextmanager
def adapter_off(policy: nn.Module) -> Iterator[None]:
    """Multiply the adapter's output by exactly 0 inside the block."""
    layers = [
        policy.get_submodule(name.removesuffix(DOWN)) for name, _ in policy.named_modules() if name.endswith(DOWN)
    ]
    scales = [layer.scale for layer in layers]
    try:
        for layer in layers:
            layer.scale = 0.0  # type: ignore[assignment]  # a number on Automodel's layer
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scale = scale
