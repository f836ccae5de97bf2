"""The norm of vLLM's CPU build, which vLLM itself leaves to the compiler; importing this registers it.

Without a compiler (``--enforce-eager``) vLLM 0.32.0 runs a norm as eight operations, a quarter of the time of a small
model's step. The kernel that it ships is one; it computes in float32 and rounds once.
"""

import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

from rl.generation.cpu_reload import CPU_KERNEL, CpuReload

current_platform.import_kernels()
LARGEST_VECTOR = 32
"""Values that a kernel handles at a time, at most."""


def _suits_kernel(values: Tensor, weight: Tensor | None, variance_size: int | None) -> bool:
    fits = values.is_contiguous() and values.shape[-1] % LARGEST_VECTOR == 0
    return fits and variance_size is None and weight is not None and weight.dtype == values.dtype


def _suits_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return _suits_kernel(x, weight, variance_size)


def _suits_added_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return x_residual.is_contiguous() and _suits_kernel(x, weight, variance_size)


@ir.ops.rms_norm.register_impl(CPU_KERNEL, supports_args=_suits_norm)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    output = torch.empty_like(x)
    torch.ops._C.rms_norm(output, x, weight, epsilon)
    return output


@ir.ops.fused_add_rms_norm.register_impl(CPU_KERNEL, supports_args=_suits_added_norm, inplace=True)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum, each in the place of an argument."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


class CpuWorker(CpuReload):
    """What ``--worker-extension-cls`` names, so that each worker imports this module before it loads a model."""
