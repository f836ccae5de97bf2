"""What vLLM's workers get beyond their own methods on a CPU; mixed into their class by ``--worker-extension-cls``."""

from typing import Any

CPU_KERNEL = "cpu_kernel"
"""Name of our providers of vLLM's operations, in ``cpu_kernels``."""


class CpuReload:
    """New weights for a worker, experts included.

    vLLM 0.32.0 packs the weights of experts for the CPU's kernel after the first load only (``_setup_kernel`` of
    ``UnquantizedFusedMoEMethod`` takes a kernel that is there for one that needs no packing, as GPUs' do). Weights
    that are reloaded would be read as if they were packed, in silence.
    """

    def reload_all_weights(self, weights_path: str) -> None:
        """As ``reload_weights`` of the worker, with the experts packed anew."""
        worker: Any = self
        for module in worker.get_model().modules():
            method: Any = getattr(module, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None  # as before the first load
        worker.reload_weights(weights_path=weights_path)
