"""What a rank of the policy needs to know; no transformers here, which the driver need not spend seconds on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launcher.schema.plan import LoraPlan
from launcher.schema.sampling import Sampling
from rl.generation.transfer import TransferTarget
from rl.loss import LossSettings
from rl.optimizer import OptimizerSettings


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
    backend: Literal["automodel", "dtensor"] = "dtensor"
    """Whose modules the model is made of on a GPU; on a CPU both are the stock ones."""
    automodel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Automodel's ``from_pretrained``."""
    lora: LoraPlan | None = None
    """The adapter to train; None trains all weights."""
    router_aux_loss_coef: float = 0.0
    """Of the loss that balances the routers of a mixture of experts; 0 adds none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSettings:
    """Everything a rank needs to know; the same on all of them."""

    model: ModelSettings
    optimizer: OptimizerSettings
    loss: LossSettings
    sampling: Sampling
    device: Literal["cpu", "cuda"]
    compute_dtype: Literal["bfloat16", "float32"]
    """Precision of the forward and backward pass; master weights and optimizer state are float32."""
    max_grad_norm: float
    """Gradients are scaled down to this norm; 0 leaves them alone."""
    seed: int
    tensor_parallel_size: int = 1
    """Ranks in a row that split each layer between them and get the same batches."""
    transfer: TransferTarget | None = None
    """Where whole models go from GPU to GPU; None writes files."""
