"""Which checkpoint a run is about, and what is exported from each format."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed import checkpoint as distributed

from launcher.schema.problems import RunFailed
from rl.nemo_rl.checkpoints import Checkpoint, best_checkpoint, export_checkpoint

METRIC = "val:total_reward/mean"


def saved(folder: Path, step: int, reward: float | None = None) -> Path:
    checkpoint = folder / f"step_{step}"
    (checkpoint / "policy" / "weights").mkdir(parents=True)
    info = {} if reward is None else {METRIC: reward}
    (checkpoint / "training_info.json").write_text(json.dumps(info))
    return checkpoint


def test_the_best_reward_wins_and_the_later_of_equals(tmp_path: Path):
    for step, reward in ((4, 0.5), (8, 0.7), (12, 0.7), (16, 0.1), (20, None)):
        saved(tmp_path, step, reward)
    assert best_checkpoint(tmp_path, metric=METRIC) == Checkpoint(
        folder=tmp_path / "step_12", step=12, metric=0.7, newest_step=20
    )


def test_without_rewards_the_latest_finished_one(tmp_path: Path):
    for step in (9, 10):
        saved(tmp_path, step)
    (tmp_path / "tmp_step_11").mkdir()
    (tmp_path / "step_12").mkdir()  # cut off before its training_info.json
    found = best_checkpoint(tmp_path, metric=METRIC)
    assert found is not None
    assert found.step == 10


def test_no_checkpoint(tmp_path: Path):
    assert best_checkpoint(tmp_path / "none", metric=METRIC) is None


def one_checkpoint(tmp_path: Path) -> Checkpoint:
    folder = saved(tmp_path / "checkpoints", 1)
    tokenizer = folder / "policy" / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("theirs")
    return Checkpoint(folder=folder, step=1, metric=None, newest_step=1)


def test_an_adapter_is_exported_as_it_is(tmp_path: Path):
    checkpoint = one_checkpoint(tmp_path)
    model = checkpoint.folder / "policy" / "weights" / "model"
    model.mkdir()
    (model / "adapter_config.json").write_text("{}")
    save_file({"a": torch.ones(2)}, model / "adapter_model.safetensors")
    export_checkpoint(checkpoint, tmp_path / "export", base_model="unused", dtype="bfloat16")
    names = sorted(path.name for path in (tmp_path / "export").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]


def test_a_distributed_checkpoint_becomes_safetensors_of_the_jobs_dtype(tmp_path: Path):
    checkpoint = one_checkpoint(tmp_path)
    state = {"model.embed.weight": torch.tensor([[1.0, 2.5]]), "model.steps": torch.tensor([3])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.save({"model": state}, checkpoint_id=checkpoint.folder / "policy" / "weights", no_dist=True)
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "llama"}')
    export_checkpoint(checkpoint, tmp_path / "export", base_model=str(base), dtype="bfloat16")
    exported = load_file(tmp_path / "export" / "model.safetensors")
    assert torch.equal(exported["model.embed.weight"], torch.tensor([[1.0, 2.5]], dtype=torch.bfloat16))
    assert torch.equal(exported["model.steps"], torch.tensor([3]))
    assert (tmp_path / "export" / "config.json").read_text() == '{"model_type": "llama"}'


def test_unknown_weights_are_named(tmp_path: Path):
    checkpoint = one_checkpoint(tmp_path)
    with pytest.raises(RunFailed, match="holds neither an adapter"):
        export_checkpoint(checkpoint, tmp_path / "export", base_model="unused", dtype="bfloat16")
