"""Weights on their way to the sampler."""

import shutil
from collections import namedtuple

import pytest
import torch
from safetensors.torch import load_file

from rl.generation import weights
from rl.generation.weights import weights_folder, write_weights


def test_weights_are_written_in_the_precision_of_the_sampler(tmp_path):
    trained = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.00001]]), "b": torch.arange(4.0)[::2]}
    write_weights(trained, tmp_path, dtype=torch.bfloat16)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    read = load_file(tmp_path / "model.safetensors")
    assert {name: value.dtype for name, value in read.items()} == {"a": torch.bfloat16, "b": torch.bfloat16}
    assert torch.equal(read["a"].float(), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert torch.equal(read["b"].float(), torch.tensor([0.0, 2.0]))


def test_the_folder_is_in_memory_and_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    with weights_folder(100, fallback=tmp_path) as folder:
        assert folder.parent == tmp_path / "shm"
        (folder / "model.safetensors").touch()
    assert list((tmp_path / "shm").iterdir()) == []


@pytest.mark.parametrize("shared_memory_exists", [True, False])
def test_small_or_absent_shared_memory_falls_back_to_the_scratch_folder(tmp_path, monkeypatch, shared_memory_exists):
    shared, scratch = tmp_path / "shm", tmp_path / "scratch"
    scratch.mkdir()
    if shared_memory_exists:
        shared.mkdir()
    monkeypatch.setattr(weights, "SHARED_MEMORY", shared)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(free=64 * 2**20))
    with weights_folder(100 * 2**20, fallback=scratch) as folder:
        assert folder.parent == scratch
    assert list(scratch.iterdir()) == []
