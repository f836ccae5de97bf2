"""What this machine would train on, found without torch, which takes seconds to import."""

import os
import shutil
import subprocess

from launcher.facts import DeviceFacts

_QUERY = ("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
_LONGEST_WAIT_S = 10


def find_device(wanted: str) -> DeviceFacts | None:
    """The device a job would use here.

    Args:
        wanted: ``cluster.device``: ``auto``, ``cpu`` or ``cuda``.

    Returns:
        None when ``cuda`` is wanted and no GPU can be seen: the job may be meant for another machine.
    """
    gpu = None if wanted == "cpu" else _first_gpu()
    if gpu is not None:
        return gpu
    return None if wanted == "cuda" else _machine()


def _first_gpu() -> DeviceFacts | None:
    if shutil.which("nvidia-smi") is None or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    try:
        answer = subprocess.run(
            ["nvidia-smi", *_QUERY], capture_output=True, text=True, timeout=_LONGEST_WAIT_S, check=True
        )
        lines = [line.split(", ") for line in answer.stdout.strip().splitlines()]
        name, capability, mebibytes = lines[0]
        major, minor = map(int, capability.split("."))
        memory = int(mebibytes) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None  # a driver that does not answer is a GPU that cannot be used
    return DeviceFacts(kind="cuda", name=name, memory_bytes=memory, count=len(lines), compute_capability=(major, minor))


def _machine() -> DeviceFacts:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceFacts(kind="cpu", name=f"CPU, {os.cpu_count()} cores", memory_bytes=memory)
