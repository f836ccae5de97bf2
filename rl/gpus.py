"""Which GPUs the policy and the sampler run on. We hand them out ourselves: Ray cannot say "the same ones as there"."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.schema.problems import LauncherError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLayout:
    """GPUs by the names that CUDA_VISIBLE_DEVICES knows; empty without GPUs.

    Example (two ranks, one sampler):
        GpuLayout(policy=("0", "1"), sampler=("2",))   # three GPUs or more: both work at their own pace
        GpuLayout(policy=("0", "1"), sampler=("0",))   # two GPUs: the sampler sleeps while the policy trains
    """

    policy: tuple[str, ...]
    """One per rank."""
    sampler: tuple[str, ...]
    """One per tensor-parallel worker of vLLM."""

    @property
    def shared(self) -> bool:
        """Whether the sampler runs on GPUs of the policy."""
        return bool(set(self.policy) & set(self.sampler))


NO_GPUS = GpuLayout(policy=(), sampler=())
"""A CPU."""


def gpu_layout(visible: Sequence[str], *, num_ranks: int, num_sampler_workers: int) -> GpuLayout:
    """The sampler's own GPUs where there are enough, else the policy's first ones.

    Args:
        visible: GPUs of this machine that may be used (``visible_gpus``); none on a CPU.
        num_ranks: of the policy; 0 when nothing is trained.
        num_sampler_workers: at most ``num_ranks`` when something is trained (R11).

    Raises:
        LauncherError: the machine shows fewer GPUs than the job needs.
    """
    if not visible:
        return NO_GPUS
    if (wanted := max(num_ranks, num_sampler_workers)) > len(visible):
        problem = Problem(
            code="few-gpus",
            path="training.parallelism.num_gpus_per_node",
            message=f"the job needs {wanted} GPUs and this machine shows {len(visible)} ({', '.join(visible)})",
            fix="lower it (and training.vllm_tensor_parallel_size), or let CUDA_VISIBLE_DEVICES show more",
        )
        raise LauncherError([problem])
    policy = tuple(visible[:num_ranks])
    free = visible[num_ranks : num_ranks + num_sampler_workers]
    return GpuLayout(
        policy=policy, sampler=tuple(free if len(free) == num_sampler_workers else visible[:num_sampler_workers])
    )


def visible_gpus(num_gpus: int) -> tuple[str, ...]:
    """Names of this machine's GPUs, those of ``CUDA_VISIBLE_DEVICES`` when it is set."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = chosen.split(",") if chosen else [str(index) for index in range(num_gpus)]
    return tuple(names[:num_gpus])


def gpu_variables(gpus: Sequence[str]) -> Mapping[str, str]:
    """Environment of an actor that runs on these GPUs and asks Ray for none."""
    if not gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
