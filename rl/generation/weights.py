"""Weights on their way from the trainer to the sampler: safetensors in a memory-backed folder.

policy rank 0 --(write_weights)--> <folder>/model.safetensors --(VllmEngine.update_weights)--> vLLM's workers
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")
SPARE_BYTES = 64 * 2**20


@contextmanager
def weights_folder(model_bytes: int, *, fallback: Path) -> Iterator[Path]:
    """A folder for weights in flight, removed afterwards.

    Args:
        model_bytes: size of one set of weights.
        fallback: used when shared memory is absent or too small (containers often have 64 MB).
    """
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > model_bytes + SPARE_BYTES
    folder = Path(tempfile.mkdtemp(prefix="grpo-weights-", dir=SHARED_MEMORY if roomy else fallback))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_weights(weights: "Mapping[str, Tensor]", folder: Path, *, dtype: "torch.dtype") -> None:
    """Write weights as one safetensors file.

    Args:
        weights: name -> tensor, whole, under the names of the model's own files.
        folder: exists.
        dtype: the precision that the sampler computes in.

    Raises:
        OSError: no space.
    """
    from safetensors.torch import save_file  # here, so that the driver can make folders without torch

    save_file(
        {name: value.to(device="cpu", dtype=dtype).contiguous() for name, value in weights.items()},
        folder / "model.safetensors",
    )
