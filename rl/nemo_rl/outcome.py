"""Why NeMo RL failed, told from its exit status and its last words. Pure."""

import re
from collections.abc import Sequence

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RAY_SOURCE = re.compile(r"^\((?:[\w.:<>]+ )*pid=\d+[^)]*\)\s?")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit)\b.*")

_KNOWN_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"CUDA out of memory|torch\.OutOfMemoryError|No available memory for the cache blocks",
        "a GPU ran out of memory: lower training.train_mb_tokens or training.vllm_gpu_memory_utilization, or set "
        "training.activation_checkpointing=true",
    ),
    (
        r"OOM-killed|running low on memory|OutOfMemoryError: Task was killed",
        "a node ran out of memory: use nodes with more, or fewer ranks per node",
    ),
    (r"No space left on device", "a disk is full: free some space, or set engine.runs_dir elsewhere"),
    (
        r"lockfile at .* needs to be updated",
        "uv.lock of the checkout does not fit its pyproject.toml: check out a release, unchanged",
    ),
    (
        r"network was disabled|[Nn]etwork connectivity is disabled",
        "something would have to be downloaded, and a package with vendored wheels runs offline: complete its wheels/, "
        "or, if it is a worker environment of NeMo RL that is missing, let NeMo RL make that once without the package",
    ),
    (
        r"requirements are unsatisfiable|No solution found when resolving",
        "a Gym server's environment cannot be installed: look at wheels/ and requirements.txt of the package",
    ),
    (
        r"ActorDiedError|ActorUnavailableError|RayActorError|WorkerCrashedError|NodeDiedError",
        "a worker process died: its last words stand in the log above the error",
    ),
)


def plain_lines(output: str) -> list[str]:
    """Lines without colours and without Ray's ``(Worker pid=12)`` in front."""
    return [_RAY_SOURCE.sub("", _ANSI.sub("", line)).rstrip() for line in output.splitlines()]


def failure_cause(lines: Sequence[str], *, exit_status: int) -> str:
    """One sentence on why the script ended with a status other than 0, and what to do about it.

    Args:
        lines: the end of its output, from ``plain_lines``.
        exit_status: negative for a signal.
    """
    if refused := _refused_keys(lines):
        keys = "; ".join(refused)
        return f"NeMo RL refused the config ({keys}): this checkout needs other keys than 0.7 and 0.8, use one of those"
    said = _last_exception(lines)
    text = "\n".join(lines)
    for pattern, cause in _KNOWN_CAUSES:
        if re.search(pattern, text):
            return cause + (f" ({said})" if said else "")
    ended = f"was ended by signal {-exit_status}" if exit_status < 0 else f"ended with status {exit_status}"
    return f"NeMo RL {ended}: {said or _last_line(lines)}"


def nothing_trained(*, num_rows: int, num_prompts_per_step: int) -> str:
    """Why a script that ended well left no checkpoint."""
    return (
        "NeMo RL ended without an error and without a checkpoint, so no step ran; it drops the last, partial batch: "
        f"{num_rows} rows make {num_rows // num_prompts_per_step} batches of {num_prompts_per_step}"
    )


def _refused_keys(lines: Sequence[str]) -> list[str]:
    """``key: reason`` of each error that pydantic reports for the master config."""
    start = next((i for i, line in enumerate(lines) if re.search(r"\d+ validation errors? for \w*Config", line)), None)
    if start is None:
        return []
    refused, key = [], ""
    for line in lines[start + 1 :]:
        if re.match(r"^[A-Za-z_][\w.]*$", line):
            key = line
        elif key and line.startswith("  ") and not line.startswith("   "):
            refused.append(f"{key}: {line.strip().partition(' [type=')[0]}")
            key = ""
    return refused


def _last_exception(lines: Sequence[str]) -> str | None:
    return next((line.strip() for line in reversed(lines) if _EXCEPTION.match(line.strip())), None)


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
