"""How much memory one training rank needs at its peak, from the shapes in a model's files.

The formula and how it was measured: docs/memory.md. On a CPU it is within a tenth of the resident memory that a step
takes (``benchmarks/memory.py``); on a GPU it is an estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from launcher.compile import data_parallel_size, num_ranks, train_mb_tokens
from launcher.facts import ModelFacts
from launcher.lora_modules import adapted_modules, linear_modules
from launcher.schema.job import JobConfig
from launcher.schema.training import LoraConfig, TrainingConfig

LIBRARIES_BYTES = {"cpu": 850 * 2**20, "cuda": 1500 * 2**20}
"""torch, transformers and Ray in a process without a model; on a GPU the CUDA context and the libraries' workspaces."""
HELD_BY_ONE, HELD_BY_SEVERAL, HELD_BY_SEVERAL_CHECKPOINTED = 25, 50, 36
"""On a CPU: bytes per token, layer and hidden unit that the C allocator holds on to, freed in between and too scattered
to be used again; more when a step has several micro-batches, whose activations come and go around the gradients."""
LOGIT_ELEMENTS = 256 * 2**20
"""Logits that the trainer holds at a time, at most."""

Term = Literal["libraries", "weights", "optimizer state", "gradients", "compute copy", "reference model", "activations",
               "logits"]  # fmt: skip
_KNOBS: Mapping[Term, str] = {
    "libraries": "nothing: it is small beside a larger model",
    "weights": "training.parallelism.num_gpus_per_node (weights are sharded over ranks)",
    "optimizer state": "lora, or training.parallelism.num_gpus_per_node (its state is sharded over ranks)",
    "gradients": "lora, or training.parallelism.num_gpus_per_node (gradients are sharded over ranks)",
    "compute copy": "training.parallelism.num_gpus_per_node (one layer at a time is gathered)",
    "reference model": "training.ref_policy_kl_penalty=0",
    "activations": "training.train_mb_tokens, or training.activation_checkpointing=true",
    "logits": "training.train_mb_tokens",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Memory of one rank at the moment it needs most.

    Example:
        MemoryEstimate(terms={"libraries": 964689920, "weights": 538060800, ...}, device="cpu")
    """

    terms: Mapping[Term, int]
    """Bytes of each part that is alive at that moment."""
    device: Literal["cpu", "cuda"]

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(self.terms.values())

    @property
    def dominant(self) -> Term:
        """The largest part."""
        return max(self.terms, key=lambda term: self.terms[term])

    @property
    def knob(self) -> str:
        """What makes the largest part smaller."""
        return _KNOBS[self.dominant]


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The sizes of a decoder that decide how much it keeps for the backward pass."""

    hidden: int
    intermediate: int
    """Width of the feed-forward part that one token passes through: all its active experts together."""
    key_value: int
    """Width of keys, and of values."""
    layers: int
    vocabulary: int


def architecture(config: Mapping[str, Any]) -> Architecture | None:
    """Sizes from a config.json; None for a model that does not say them under the usual names."""
    config = config.get("text_config") or config
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        experts = int(config.get("num_experts_per_tok") or 1)
        width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
        return Architecture(
            hidden=hidden,
            intermediate=experts * width,
            key_value=int(config.get("num_key_value_heads") or heads) * int(config.get("head_dim") or hidden // heads),
            layers=int(config["num_hidden_layers"]),
            vocabulary=int(config["vocab_size"]),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def memory_estimate(job: JobConfig, model: ModelFacts, device: Literal["cpu", "cuda"]) -> MemoryEstimate | None:
    """Memory of one rank; None when the model's files do not say enough.

    Args:
        job: the job.
        model: what the model's files say.
        device: where a rank computes.
    """
    sizes = architecture(model.config)
    if sizes is None or not model.tensors:
        return None
    training, ranks = job.training, num_ranks(job.training)
    all_weights = sum(map(prod, model.tensors.values()))
    trained = adapter_parameters(training, model) if training.finetuning_type == "lora" else all_weights
    low_precision = job.model.dtype == "bfloat16"
    tokens = _micro_batch_tokens(training)
    several = tokens < _share_of_batch(training)
    gathered = all_weights if ranks == 1 else all_weights // sizes.layers + sizes.vocabulary * sizes.hidden
    fixed: dict[Term, int] = {
        "libraries": LIBRARIES_BYTES[device],
        "weights": 4 * all_weights // ranks,
        "optimizer state": 8 * trained // ranks,
    }
    if training.ref_policy_kl_penalty:
        fixed["reference model"] = 4 * all_weights // ranks
    if low_precision or ranks > 1:
        fixed["compute copy"] = (2 if low_precision else 4) * gathered
    logits = min(tokens, LOGIT_ELEMENTS // sizes.vocabulary) * sizes.vocabulary * (2 if low_precision else 4)
    gradients = 4 * trained // ranks
    forward: dict[Term, int] = {
        "activations": activation_bytes(training, sizes, tokens, low_precision=low_precision),
        "logits": logits + 4 * sizes.vocabulary * sizes.hidden,  # and the gradient of the output head
    }
    if device == "cpu":
        forward["activations"] += _held(training, several=several) * sizes.hidden * sizes.layers * tokens
    if several:
        forward["gradients"] = gradients  # of the micro-batches before
    backward: dict[Term, int] = {"gradients": gradients, "logits": 8 * sizes.vocabulary * sizes.hidden}
    # Activations go while gradients appear: the peak is at one end of the backward pass.
    peak = max(forward, backward, key=lambda terms: sum(terms.values()))
    return MemoryEstimate(terms={**fixed, **peak}, device=device)


def activation_bytes(training: TrainingConfig, sizes: Architecture, tokens: int, *, low_precision: bool) -> int:
    """What a forward pass keeps for the backward pass.

    A layer keeps its residual stream and two norms in float32, and projections, attention and the feed-forward part in
    the compute precision. With checkpointing only the residual stream of each layer stays, and one layer is whole at a
    time.
    """
    if low_precision:
        per_token = 30 * sizes.hidden + 4 * sizes.key_value + 8 * sizes.intermediate
    else:
        per_token = 32 * sizes.hidden + 8 * sizes.key_value + 16 * sizes.intermediate
    if training.activation_checkpointing:
        return tokens * (4 * sizes.hidden * sizes.layers + per_token)
    return tokens * per_token * sizes.layers


def _held(training: TrainingConfig, *, several: bool) -> int:
    if not several:
        return HELD_BY_ONE
    return HELD_BY_SEVERAL_CHECKPOINTED if training.activation_checkpointing else HELD_BY_SEVERAL


def adapter_parameters(training: TrainingConfig, model: ModelFacts) -> int:
    """Trainable parameters of the adapter."""
    lora = training.lora or LoraConfig()
    return sum(lora.rank * (out + into) for out, into in adapted_layers(training, model).values())


def adapted_layers(training: TrainingConfig, model: ModelFacts) -> dict[str, tuple[int, int]]:
    """Linear layers that get an adapter, with (out, in) features."""
    lora = training.lora or LoraConfig()
    layers = linear_modules(model.tensors or {})
    names = adapted_modules(layers, target_modules=lora.target_modules, exclude_modules=lora.exclude_modules)
    return {name: layers[name] for name in names}


def _micro_batch_tokens(training: TrainingConfig) -> int:
    """Tokens of the largest micro-batch."""
    if training.batching_strategy == "static":
        return min(training.micro_batch_size * training.max_seq_length, _share_of_batch(training))
    return min(train_mb_tokens(training), _share_of_batch(training))


def _share_of_batch(training: TrainingConfig) -> int:
    """Tokens of a rank in one optimizer step, when every rollout is as long as it can be."""
    return max(training.batch_size // data_parallel_size(training), 1) * training.max_seq_length
