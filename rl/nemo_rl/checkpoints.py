"""Checkpoints of NeMo RL: the one a run is about, and the same model in the format that transformers and vLLM load.

checkpoints/step_N/{training_info.json, policy/{weights, tokenizer}} --(best)--> step_N --(export)--> export/
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.schema.problems import RunFailed

_SHARD_SIZE = "5GB"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A finished ``step_N`` folder.

    Example:
        Checkpoint(folder=Path("checkpoints/step_12"), step=12, metric=0.81, newest_step=16)
    """

    folder: Path
    step: int
    metric: float | None
    """Validation reward, when validation ran in that step."""
    newest_step: int
    """The latest step that was saved."""


def best_checkpoint(folder: Path, *, metric: str) -> Checkpoint | None:
    """The checkpoint with the highest metric, of equals the later; the latest one when none has the metric.

    Args:
        folder: ``checkpointing.checkpoint_dir``; folders ``tmp_step_N`` in it are unfinished and ignored.
        metric: key of ``training_info.json``, such as ``val:total_reward/mean``.
    """
    found = dict(_step_folders(folder))
    if not found:
        return None
    metrics = {step: _metric(path, metric) for step, path in found.items()}
    scored = [(value, step) for step, value in metrics.items() if value is not None]
    best = max(scored)[1] if scored else max(found)
    return Checkpoint(folder=found[best], step=best, metric=metrics[best], newest_step=max(found))


def export_checkpoint(
    checkpoint: Checkpoint, target: Path, *, base_model: str, dtype: Literal["bfloat16", "float32"]
) -> None:
    """Write the trained model, or adapter, as a folder that transformers, PEFT and vLLM load.

    Args:
        checkpoint: what to export.
        target: folder to make.
        base_model: folder or hub name of the model before training, whose config the trained one keeps.
        dtype: of the weights that are converted here.

    Raises:
        RunFailed: the folder holds no weights in a known format.
    """
    policy = checkpoint.folder / "policy"
    weights = policy / "weights"
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if (weights / "model" / "adapter_config.json").is_file():
        _copy(weights / "model", partial)
    elif (weights / "model" / "consolidated").is_dir():
        _copy(weights / "model" / "consolidated", partial)
    elif (weights / ".metadata").is_file():
        _convert_distributed(weights, partial, dtype=dtype)
        _copy_missing(_config_folder(base_model), partial, names=("config.json", "generation_config.json"))
    else:
        raise RunFailed(
            f"{weights} holds neither an adapter (model/adapter_config.json), nor model/consolidated, nor a "
            "distributed checkpoint (.metadata): nothing can be exported from it"
        )
    if (policy / "tokenizer").is_dir():
        _copy_missing(policy / "tokenizer", partial, names=sorted(os.listdir(policy / "tokenizer")))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _step_folders(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("step_*"):
        if (match := re.fullmatch(r"step_(\d+)", path.name)) and (path / "training_info.json").is_file():
            yield int(match[1]), path


def _metric(checkpoint: Path, name: str) -> float | None:
    value = json.loads((checkpoint / "training_info.json").read_text(encoding="utf-8")).get(name)
    return float(value) if isinstance(value, int | float) else None


def _convert_distributed(weights: Path, target: Path, *, dtype: Literal["bfloat16", "float32"]) -> None:
    """A distributed checkpoint of torch -> safetensors, holding one shard in memory at a time."""
    # A second of imports that compiling and following a run do not need.
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    wanted = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    stored = {
        name.removeprefix("model."): entry
        for name, entry in FileSystemReader(weights).read_metadata().state_dict_metadata.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }

    def final_dtype(name: str) -> torch.dtype:
        own: torch.dtype = stored[name].properties.dtype
        return wanted if own.is_floating_point else own

    shapes = {name: torch.empty(stored[name].size, dtype=final_dtype(name), device="meta") for name in stored}
    shards = split_torch_state_dict_into_shards(shapes, max_shard_size=_SHARD_SIZE)
    target.mkdir(parents=True)
    for file, names in shards.filename_to_tensors.items():
        shard = {name: torch.empty(stored[name].size, dtype=stored[name].properties.dtype) for name in names}
        with warnings.catch_warnings():  # it warns that no process group exists
            warnings.simplefilter("ignore", UserWarning)
            load({"model": shard}, checkpoint_id=weights, no_dist=True)
        save_file({name: shard[name].to(final_dtype(name)) for name in names}, target / file, metadata={"format": "pt"})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def _config_folder(base_model: str) -> Path:
    if Path(base_model).is_dir():
        return Path(base_model)
    from huggingface_hub import snapshot_download  # half a second, and most models are local

    return Path(snapshot_download(base_model, allow_patterns=["*.json"]))


def _copy(source: Path, target: Path) -> None:
    """Copy a folder; weights, which are large and never rewritten in place, as hard links where that is possible."""
    shutil.copytree(source, target, copy_function=_link_weights)


def _copy_missing(source: Path, target: Path, *, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).is_file() and not (target / name).exists():
            shutil.copy2(source / name, target / name)


def _link_weights(source: str, target: str) -> None:
    if source.endswith(".safetensors"):
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without links
            pass
    shutil.copy2(source, target)
