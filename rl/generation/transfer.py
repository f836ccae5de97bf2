"""Weights straight from the policy's GPUs into vLLM's, by vLLM's own weight-transfer engines; no file in between.

every rank: WeightSender.send --(handles of GPU memory: ipc | broadcast: nccl)--> vLLM's workers
                 '-- rank 0 --> VllmActor.transfer: init once; start, update, finish each time
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gym_bridge.ports import free_port

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo

TransferStep = Literal["init", "start", "update", "finish"]
TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferTarget:
    """Where weights go when policy and sampler both live on GPUs; known before either starts.

    Example:
        TransferTarget(actor_name="vllm-3f9a", backend="ipc", num_workers=1, port=40123)
    """

    actor_name: str
    """Under which Ray knows the ``VllmActor``."""
    backend: Literal["ipc", "nccl"]
    """``ipc`` when both run on the same GPUs, ``nccl`` otherwise."""
    num_workers: int
    """Tensor-parallel workers of vLLM."""
    port: int
    """Free loopback port where ``nccl`` meets."""


def transfer_target(*, shares_gpus: bool, num_workers: int) -> TransferTarget:
    """A new one for a run: memory handles on shared GPUs, NCCL between separate ones."""
    return TransferTarget(
        actor_name=f"vllm-{secrets.token_hex(8)}",
        backend="ipc" if shares_gpus else "nccl",
        num_workers=num_workers,
        port=free_port(),
    )


class ActorClient:
    """How vLLM's trainer side reaches the sampler (its ``VLLMWeightSyncClient``): calls to our actor."""

    def __init__(self, actor: Any):
        self._actor = actor

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Tell the workers how weights will come."""
        self._call("init", init_info)

    def start_weight_update(self) -> None:
        """Stop sampling and expect weights."""
        self._call("start")

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Take some of them."""
        self._call("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """All have come."""
        self._call("finish")

    def _call(self, step: TransferStep, payload: Any = None) -> None:
        import ray

        ray.get(self._actor.transfer.remote(step, payload), timeout=TIMEOUT_S)


class PolicyWeights:
    """What vLLM calls a ``WeightSource``: names, shapes, and the whole tensors one after the other.

    Iterating gathers sharded tensors, so all ranks iterate together.
    """

    def __init__(
        self,
        weights: Callable[[], Iterator[tuple[str, "Tensor"]]],
        *,
        dtype: "dtype",
        as_in_files: Callable[[dict[str, "Tensor"]], dict[str, "Tensor"]],
    ):
        """
        Args:
            weights: a fresh pass over (name in the model, tensor, sharded or not) each time.
            dtype: the precision that the sampler computes in.
            as_in_files: a whole tensor of the model under the names, and in the parts, of the model's own files.
        """
        self._weights = weights
        self._dtype = dtype
        self._as_in_files = as_in_files

    def metadata(self) -> list["ParamMeta"]:
        """Name, precision on the wire and whole shape of each tensor, without gathering anything."""
        import torch
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [
            ParamMeta(part, self._dtype, tuple(shaped.shape))
            for name, tensor in self._weights()
            for part, shaped in self._as_in_files({name: torch.empty(tensor.shape, device="meta")}).items()
        ]

    def __iter__(self) -> Iterator[tuple[str, "Tensor"]]:
        from vllm.distributed.weight_transfer.base import materialize_full_tensor

        for name, tensor in self._weights():
            yield from self._as_in_files({name: materialize_full_tensor(tensor).to(self._dtype)}).items()


class WeightSender:
    """One rank's end. Made on all ranks together, used on all ranks together."""

    def __init__(self, weights: PolicyWeights, target: TransferTarget, *, rank: int):
        import ray
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        self._engine = WeightTransferTrainerFactory.trainer_init(
            trainer_info(target, rank=rank),
            client=ActorClient(ray.get_actor(target.actor_name)),
            source=weights,  # type: ignore[arg-type]  # its base class would make this file import vLLM
        )

    def send(self) -> None:
        """Push all weights; vLLM has them when this returns on rank 0."""
        self._engine.send_weights()


def trainer_info(target: TransferTarget, *, rank: int) -> "TrainerInitInfo":
    """What vLLM's trainer side needs to know; rank 0 of the policy sends, in pieces of bounded size."""
    if target.backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=rank, packed=True)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(
        rank=rank, master_address="127.0.0.1", master_port=target.port, world_size=1 + target.num_workers
    )
