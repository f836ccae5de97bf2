"""The norm that vLLM's workers use on a CPU is vLLM's own, in one operation."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.e2e
BFLOAT16_ERROR = 2**-7


@pytest.fixture(scope="module")
def providers() -> Any:
    """The norm and the norm of a sum, by provider."""
    from vllm.ir import ops

    import rl.generation.cpu_kernels  # noqa: F401
    from rl.generation.actor import CPU_KERNEL_OPERATIONS

    return {name: getattr(ops, name).impls for name in CPU_KERNEL_OPERATIONS}


def expected(values: Tensor, weight: Tensor) -> Tensor:
    values = values.double()
    return values * (values.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, BFLOAT16_ERROR)])
def test_the_norm_of_a_sum_is_exact_to_a_rounding(providers, dtype, error):
    torch.manual_seed(0)
    values, residual = torch.randn(2, 7, 576, dtype=dtype).unbind()
    weight = torch.randn(576, dtype=dtype)
    total = values + residual
    norm = providers["rms_norm"]["cpu_kernel"].impl_fn(values.clone(), weight, 1e-5)
    torch.testing.assert_close(norm.double(), expected(values, weight), rtol=error, atol=error / 100)
    norm, kept = providers["fused_add_rms_norm"]["cpu_kernel"].impl_fn(values.clone(), residual.clone(), weight, 1e-5)
    torch.testing.assert_close(norm.double(), expected(total, weight), rtol=2 * error, atol=error / 10)
    torch.testing.assert_close(kept, total)


def test_what_the_kernel_cannot_read_is_left_to_vllm(providers):
    suits = providers["rms_norm"]["cpu_kernel"].supports_args
    weight = torch.ones(64)
    assert suits(torch.ones(3, 64), weight, 1e-5)
    assert not suits(torch.ones(3, 128)[:, :64], weight, 1e-5), "rows with gaps, as of queries in a fused projection"
    assert not suits(torch.ones(3, 64), weight.bfloat16(), 1e-5)
    assert not suits(torch.ones(3, 64), None, 1e-5)
    assert not suits(torch.ones(3, 64), weight, 1e-5, 32)
    assert not suits(torch.ones(3, 20), torch.ones(20), 1e-5)


def test_the_running_engine_uses_it(vllm):
    assert "rms_norm=['cpu_kernel', 'native']" in vllm._log_file.read_text(encoding="utf-8")
