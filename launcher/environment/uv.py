"""Calls of uv that depend on nothing but their arguments."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RESOLVE_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class UvResult:
    """How a call of uv ended.

    Example:
        UvResult(succeeded=False, output="", reason="Because pip was not found in the provided package locations ...")
    """

    succeeded: bool
    output: str
    """What it printed."""
    reason: str
    """Its complaint in one line; empty when it succeeded."""


def find_uv() -> Path | None:
    """The uv of this Python environment, else the one on PATH, else None."""
    beside = Path(sysconfig.get_path("scripts")) / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    return Path(found) if found else None


def run_uv(
    uv: Path, arguments: Sequence[str], *, folder: Path, timeout_s: float, keep_settings: bool = True
) -> UvResult:
    """Run uv and wait for it.

    Args:
        uv: from ``find_uv``.
        arguments: without the program name.
        folder: working directory.
        timeout_s: bound on the call.
        keep_settings: False hides the user's uv settings (indexes, overrides, find-links, configuration files).
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if keep_settings or not name.startswith(("UV_", "PIP_")) or name == "UV_CACHE_DIR"
    }
    variables |= {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
    if not keep_settings:
        variables["UV_NO_CONFIG"] = "1"
    try:
        done = subprocess.run(
            [str(uv), *arguments],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return UvResult(succeeded=False, output="", reason=f"uv gave no answer within {timeout_s:.0f} s")
    return UvResult(succeeded=done.returncode == 0, output=done.stdout, reason=_one_line(done.stderr))


def _one_line(text: str) -> str:
    """uv's drawn error tree as a sentence."""
    for drawing in ("×", "╰─▶", "├─▶", "│"):
        text = text.replace(drawing, " ")
    return " ".join(text.split())[:2000]
