"""Tensor parallel: the ranks of a group hold a part of each layer's matrices and work on the same micro-batches.

the model's own plan {"layers.*.mlp.up_proj": "colwise"}
  --(tensor_styles)--> a style per module {"layers.0.mlp.up_proj": ColwiseParallel(), ...}
  --(split_layers)--> layers whose matrices are split, and which add up what their parts give

Ranks form a mesh [data, tensor]: rank = data * tensor_parallel_size + tensor. FSDP2 then shards what a layer holds over
the data dimension. A layer's norms are whole on every rank of a group, which compute the same gradient for them.

What is outside the layers (embedding, final norm, output head) is not split. The loss needs log-probabilities under
the whole vocabulary, and the head is often the embedding itself: a group divides the *tokens* between its ranks
instead, each with the whole head (``TokenShares``). That is as little work and memory for logits per rank as a divided
vocabulary, without a reduction inside the softmax, and top-k stays as it is. Weights, gradients and optimizer state
of this part are sharded by FSDP2 over all ranks.
"""

from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from transformers import PreTrainedModel

from launcher.tensor_plan import TensorStyle, layer_plan, uneven_heads, uneven_width, why_not

DATA, TENSOR = "data", "tensor"


def rank_mesh(device: str, num_ranks: int, *, tensor_parallel_size: int) -> DeviceMesh | None:
    """How the ranks of the process group are arranged: [data, tensor], or [data] without tensor parallel.

    Returns:
        None for one rank.
    """
    if num_ranks == 1:
        return None
    if tensor_parallel_size == 1:
        return init_device_mesh(device, (num_ranks,), mesh_dim_names=(DATA,))
    shape = (num_ranks // tensor_parallel_size, tensor_parallel_size)
    return init_device_mesh(device, shape, mesh_dim_names=(DATA, TENSOR))


def tensor_mesh(mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The dimension of ``rank_mesh`` that layers are split over; None without tensor parallel."""
    return mesh[TENSOR] if mesh is not None and TENSOR in (mesh.mesh_dim_names or ()) else None


def split_layers(language_model: PreTrainedModel, mesh: DeviceMesh, *, adapted: bool) -> None:
    """Split a model's layers over a tensor group, in place.

    Args:
        language_model: with the same weights on every rank.
        mesh: the group, one dimension.
        adapted: the model has a LoRA adapter; its matrices are split too.

    Raises:
        ValueError: the group's size does not divide the model's heads.
        NotImplementedError: the model has no plan, or one that needs more than we have.
    """
    config = language_model.config.to_dict()
    if (uneven := uneven_heads(config, mesh.size()) or uneven_width(config, mesh.size())) is not None:
        raise ValueError(f"training.parallelism.tensor_parallel_size: {uneven}")
    base_model: nn.Module = language_model.base_model
    styles = tensor_styles(language_model)
    if adapted:
        from nemo_automodel.components.distributed.parallel_styles import (  # type: ignore[import-untyped]
            translate_to_lora,  # here, since Automodel's import takes seconds
        )

        styles = {name: translate_to_lora(style) for name, style in styles.items()}
    parallelize_module(base_model, mesh, styles, src_data_rank=None)
    if adapted:
        _sum_before_dropout(base_model)


def tensor_styles(language_model: PreTrainedModel) -> dict[str, ParallelStyle]:
    """Name of a module below the output head -> how it is split, from the plan in the model's config.

    Raises:
        NotImplementedError: the model has no plan, one that needs more than we have, or modules of other names.
    """
    plan = language_model.config.base_model_tp_plan or {}
    if (reason := why_not(plan)) is not None:
        raise NotImplementedError(f"training.parallelism.tensor_parallel_size: {reason}; use engine=nemo_rl, or 1")
    modules: dict[str, list[str]] = {}
    for name, _ in language_model.base_model.named_modules():
        modules.setdefault(".".join("*" if part.isdigit() else part for part in name.split(".")), []).append(name)
    styles = {}
    for pattern, style in layer_plan(plan).items():
        if pattern not in modules:
            raise NotImplementedError(
                f"training.parallelism.tensor_parallel_size: {type(language_model).__name__} has no {pattern}, which "
                "its plan splits; use backend=dtensor or engine=nemo_rl, or 1"
            )
        styles.update({name: _style(style) for name in modules[pattern]})
    return styles


def _style(name: str) -> ParallelStyle:
    assert name in get_args(TensorStyle)
    match cast("TensorStyle", name):
        case "colwise":
            return ColwiseParallel()
        case "rowwise":
            return RowwiseParallel()
        case "colwise_gather_output":
            return ColwiseParallel(output_layouts=Replicate())
        case "rowwise_split_input":
            return RowwiseParallel(input_layouts=Replicate())
        case "replicated_with_grad_allreduce":
            return HeadNorm()


class HeadNorm(ParallelStyle):
    """A norm over the width of one head, between split layers: every rank has the whole norm and some of the heads.

    Its input counts as some rows of a batch whose other rows the other ranks have. So the gradient is a sum over the
    group, which FSDP2 completes before it reduces over data-parallel ranks.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _replicate, _as_rows, _as_local)


def _replicate(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        replica = distribute_tensor(parameter.data, mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(replica, requires_grad=parameter.requires_grad))


def _as_rows(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:  # typed in torch as returning nothing
    return (DTensor.from_local(inputs[0], mesh, [Shard(0)], run_check=False), *inputs[1:])


def _as_local(_: nn.Module, output: DTensor, __: DeviceMesh) -> Any:
    return output.to_local()


def _sum_before_dropout(base_model: nn.Module) -> None:
    """Complete the adapter's output before dropout where ranks hold summands of it: dropout is not linear in them.

    Ranks of a group start from the same seed and draw as many numbers, so that they drop the same elements.
    """
    from nemo_automodel.components._peft.lora import LinearLoRA  # type: ignore[import-untyped]

    for module in base_model.modules():
        if isinstance(module, LinearLoRA) and module.dropout_p > 0:
            module.lora_B.register_forward_hook(_completed)


def _completed(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
    partial = isinstance(output, DTensor) and any(placement.is_partial() for placement in output.placements)
    return output.redistribute(placements=[Replicate()]) if partial else output


class TokenShares:
    """Divides the tokens whose log-probabilities are wanted over a tensor group, each rank having the whole head.

    Example (two ranks, five tokens): rank 0 scores tokens 0 to 2, rank 1 tokens 3 and 4, both get all five scores.
    """

    def __init__(self, mesh: DeviceMesh):
        self._mesh = mesh

    def share(self, whole: Tensor) -> Tensor:
        """This rank's rows of what all ranks have, [N, ...] -> [n, ...]; each gets the gradient of all rows."""
        replicas = DTensor.from_local(whole, self._mesh, [Replicate()], run_check=False)
        return replicas.redistribute(placements=[Shard(0)]).to_local()

    def joined(self, share_n: Tensor, num_rows: int) -> Tensor:
        """All rows on every rank, from what each has made of its own, [n] -> [N]."""
        rows = DTensor.from_local(
            share_n, self._mesh, [Shard(0)], run_check=False, shape=torch.Size((num_rows,)), stride=(1,)
        )
        return rows.full_tensor()

    def summed(self, weight: Tensor) -> Tensor:
        """A weight whose gradient is to be the sum of what the group's ranks find; FSDP2 takes their mean."""
        scaled: Tensor = _ScaledGradient.apply(weight, self._mesh.size())  # type: ignore[no-untyped-call]
        return scaled


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
