"""The Ray cluster of a run: started for it and ended with it, or one that is there already.

A cluster of our own listens with a token made for this run, has no dashboard, keeps its files in a short-lived folder
and gives every process it starts a private TMPDIR there, so that nothing of it is left afterwards.
"""

import asyncio
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from launcher.schema.problems import RunFailed

OBJECT_STORE_BYTES = 256 * 2**20
"""Batches of token ids and statistics travel through it; weights do not."""
START_TIMEOUT_S = 120.0
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""glibc's allocator gives large blocks back to the system at once, so that every micro-batch's and every decoding
step's tensors are mapped and zeroed anew: a tenth of a CPU's time. With these it keeps them, up to the peak."""


def prepare_ray(*, address: str | None) -> None:
    """Set what Ray reads when it is imported: call this before anything imports it.

    A cluster of our own gets a new token; one that is joined has its own (``RAY_AUTH_TOKEN``). A second run in the same
    process (a trial of a sweep) goes on with the variables of the first.
    """
    if "ray" in sys.modules:
        assert address is not None or os.environ.get("RAY_AUTH_MODE") == "token", "Ray has read its variables already"
        return
    if address is None:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        os.environ.pop("RAY_ADDRESS", None)
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_DISABLE_IMPORT_WARNING="1",
        RAY_prestart_worker_first_driver="0",  # workers are started when they are needed; idle ones poll all the time
        RAY_num_prestart_python_workers="0",
        RAY_worker_niceness="0",  # Ray's 15 lets anything else on the machine push sampling and training aside
    )


@asynccontextmanager
async def ray_cluster(*, address: str | None) -> AsyncIterator[Path]:
    """Connect to Ray for the length of the block; ``prepare_ray`` was called before.

    Args:
        address: cluster to join; None starts one on this machine.

    Yields:
        A folder for temporary files of this run, removed afterwards.

    Raises:
        RunFailed: Ray did not start or does not answer.
    """
    import ray  # after prepare_ray

    folder = Path(tempfile.mkdtemp(prefix="grpo-", dir="/tmp"))  # short: Ray's socket paths are limited to 107 bytes
    try:
        scratch = folder / "tmp"
        scratch.mkdir()
        variables = {"TMPDIR": str(scratch), "WANDB_MODE": "disabled", **KEEP_FREED_MEMORY}
        options: dict[str, Any] = {} if address else _own_cluster(folder)
        options |= {"runtime_env": {"env_vars": variables}, "log_to_driver": False, "logging_level": logging.ERROR}
        start = asyncio.create_task(asyncio.to_thread(ray.init, address=address, **options))
        try:
            await asyncio.wait_for(asyncio.shield(start), START_TIMEOUT_S)
        except TimeoutError:
            raise RunFailed(f"Ray did not start within {START_TIMEOUT_S:.0f} s") from None
        except asyncio.CancelledError:
            await asyncio.wait([start], timeout=START_TIMEOUT_S)  # a thread cannot be stopped; then end what it began
            await asyncio.to_thread(ray.shutdown)
            raise
        except Exception as error:  # Ray raises bare ones here, too
            raise RunFailed(f"Ray did not start: {error}") from error
        # Ray's own handler would print a stack trace; ours ends the run in order.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        try:
            yield scratch
        finally:
            await asyncio.to_thread(ray.shutdown)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _own_cluster(folder: Path) -> dict[str, Any]:
    return {
        "num_cpus": os.cpu_count() or 1,
        "num_gpus": 0,  # handed out by rl.gpus
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(folder / "ray"),
        "_node_ip_address": "127.0.0.1",
    }
