"""Examples of a ``verifiers`` environment, read by loading it in an environment made for that and thrown away.

project, verifiers --(uv, host's own wheels)--> temporary environment --(convert_load.py, bounded)--> HubExamples
The environment is code that others wrote: it sees none of our keys, and whatever it starts ends with it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_bridge.session import kill_session
from gym_bridge.variables import HUB, NETWORK, SYSTEM
from launcher.environment.uv import find_uv, run_uv
from launcher.schema.problems import LauncherError, Problem

INSTALL_TIMEOUT_S = 900.0
LOAD_TIMEOUT_S = 900.0
LOADER = Path(__file__).with_name("convert_load.py")
NUM_LAST_LINES = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class HubExamples:
    """What the environment's dataset holds.

    Example:
        HubExamples(version="0.1.5", examples=({"prompt": [{"role": "user", "content": "Draw."}], "answer": ""},))
    """

    version: str
    """Of the environment's project, as the index gave it."""
    examples: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadRequest:
    """Which environment to load, and how much of its dataset to read.

    Example:
        LoadRequest(project="ascii-tree", vf_env_id="ascii-tree", vf_env_args={}, size=-1, seed=None)
    """

    project: str
    vf_env_id: str
    vf_env_args: Mapping[str, Any]
    size: int
    """Number of examples; -1 for all."""
    seed: int | None
    """Shuffles the dataset before the first ``size`` are taken; None keeps its order."""


def hub_examples(
    request: LoadRequest,
    requirements: Sequence[str],
    *,
    index_url: str,
    wheels: Path | None,
    scratch: Path,
    load_timeout_s: float = LOAD_TIMEOUT_S,
) -> HubExamples:
    """Install an environment for this machine and read its dataset.

    Args:
        request: what to load.
        requirements: the environment's project and ``verifiers``, pinned where they are to be.
        index_url: an index that wins for the projects it has.
        wheels: a folder that has some of them, too.
        scratch: gets the environment and the examples.
        load_timeout_s: bound on loading.

    Raises:
        LauncherError: it cannot be installed or loaded, takes too long, or has no example; with its last words.
    """
    python = _install(requirements, index_url=index_url, wheels=wheels, scratch=scratch)
    rows = scratch / "examples.jsonl"
    asked = {
        "vf_env_id": request.vf_env_id, "vf_env_args": request.vf_env_args, "size": request.size,
        "seed": request.seed, "project": request.project, "rows": str(rows),
    }  # fmt: skip
    answer = _load(python, json.dumps(asked), request, scratch=scratch, timeout_s=load_timeout_s)
    examples = tuple(json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines())
    if not examples:
        raise _refused(f"the dataset of {request.vf_env_id} is empty", "raise --dataset-size, or check --vf-env-args")
    return HubExamples(version=json.loads(answer)["version"], examples=examples)


def _install(requirements: Sequence[str], *, index_url: str, wheels: Path | None, scratch: Path) -> Path:
    uv = find_uv()
    if uv is None:
        raise _refused("uv is not installed", "pip install uv")
    root = scratch / "environment"
    python = root / "bin" / "python"
    links = ("--find-links", str(wheels)) if wheels else ()
    for arguments in (
        ("venv", "--no-project", "--python", sys.executable, str(root)),
        ("pip", "install", "--python", str(python), "--index", index_url, *links, *requirements),
    ):
        result = run_uv(uv, arguments, folder=scratch, timeout_s=INSTALL_TIMEOUT_S)
        if not result.succeeded:
            message = f"{', '.join(requirements)} cannot be installed here: {result.reason}"
            raise _refused(message, "check --hub-id, --hub-version and that --index-url can be reached")
    return python


def _load(python: Path, asked: str, request: LoadRequest, *, scratch: Path, timeout_s: float) -> str:
    """The loader's answer: the last line it prints."""
    names = {*SYSTEM, *NETWORK, *HUB, "PATH"}
    variables = {name: value for name, value in os.environ.items() if name in names and value}
    process = subprocess.Popen(
        [str(python), "-P", str(LOADER)], cwd=scratch, env=variables, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = process.communicate(asked, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        message = f"verifiers.load_environment({request.vf_env_id!r}) gave no dataset within {timeout_s:g} s"
        raise _refused(message, "see whether it waits for a network or a key; try a smaller --dataset-size") from None
    finally:
        kill_session(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if process.returncode != 0:
        words = "\n".join(f"  {line}" for line in errors.splitlines()[-NUM_LAST_LINES:])
        message = f"verifiers.load_environment({request.vf_env_id!r}) failed; its last words:\n{words}\n"
        raise _refused(message, "correct --vf-env-id or --vf-env-args; keys of ours are not handed to it")
    return output.splitlines()[-1]


def _refused(message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="convert", path="--hub-id", message=message, fix=fix)])
