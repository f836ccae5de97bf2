"""A vLLM with adapters; how one that dies is told, and what is left of one that is ended: nothing."""

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from launcher.schema.problems import RunFailed
from rl.generation.weights import write_weights
from rl.process_group import group_members

pytestmark = pytest.mark.e2e


def close(runner, engine) -> None:
    """End an engine; nothing of it is left."""
    started = time.monotonic()
    runner.run(engine.close())
    assert time.monotonic() - started < 15
    assert group_members(engine.pids["actor"]) == []


@pytest.fixture(scope="module")
def doomed(start_vllm, runner, demo_generation, tmp_path_factory):
    """A vLLM of this module's own, which takes adapters; the last test that uses it kills it."""
    engine = start_vllm(replace(demo_generation, lora_rank=8), tmp_path_factory.mktemp("doomed"))
    yield engine
    runner.run(engine.close())


def make_adapter(folder: Path, model: Path, *, seed: int) -> dict[str, torch.Tensor]:
    """An adapter of rank 8 on every q_proj in PEFT's format; gives the whole model that computes the same."""
    torch.manual_seed(seed)
    merged, adapter = load_file(model / "model.safetensors"), {}
    for name in [name for name in merged if name.endswith("q_proj.weight")]:
        down, up = torch.randn(8, 576) / 12, torch.randn(576, 8) / 12
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        adapter |= {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
        merged[name] = (merged[name].float() + 2 * up @ down).bfloat16()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(adapter, folder / "adapter_model.safetensors")
    return merged


def test_an_adapter_samples_as_the_model_that_it_is_merged_into(
    doomed, vllm, runner, ask, prompt_logprobs, demo_model_folder, tmp_path
):
    before = prompt_logprobs(doomed)
    for version in (1, 2):
        merged = make_adapter(tmp_path, demo_model_folder, seed=version)
        runner.run(doomed.update_weights(tmp_path, policy_version=version))
    adapted = prompt_logprobs(doomed)
    (tmp_path / "merged").mkdir()
    write_weights(merged, tmp_path / "merged", dtype=torch.bfloat16)
    runner.run(vllm.update_weights(tmp_path / "merged", policy_version=1))
    whole = prompt_logprobs(vllm)
    runner.run(vllm.update_weights(demo_model_folder, policy_version=0))
    changed = sum(abs(one - two) for one, two in zip(adapted, before, strict=True))
    # Adapter and merged weights are rounded to bfloat16 in different places.
    assert sum(abs(one - two) for one, two in zip(adapted, whole, strict=True)) < 0.5 * changed
    [(_, answer)] = ask(doomed, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
    assert doomed.find_call(answer["choices"][0]["message"]["generation_token_ids"]).policy_version == 2


def test_a_killed_engine_is_told_with_its_last_output(doomed, runner, tmp_path):
    with pytest.raises(RunFailed, match=r"vLLM failed: .*adapter"):
        runner.run(doomed.update_weights(tmp_path, policy_version=3))
    core = next(pid for name, pid in doomed.pids.items() if "EngineCore" in name)
    os.kill(core, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(RunFailed, match=f"EngineCore.*pid {core}") as told:
        runner.run(asyncio.wait_for(doomed.watch(), 15))
    assert "its last output" in str(told.value)
    assert time.monotonic() - killed < 15
    close(runner, doomed)


def test_closing_while_vllm_starts_leaves_nothing(runner, demo_generation, scratch, tmp_path):
    from rl.generation.engine import VllmEngine

    async def launch_and_begin_to_load() -> VllmEngine:
        loading = asyncio.Event()
        engine = await VllmEngine.launch(demo_generation, log_folder=tmp_path, scratch=scratch)
        load = asyncio.create_task(engine.load(lambda phase: loading.set() if phase == "loading the model" else None))
        await loading.wait()
        await asyncio.sleep(3)  # the engine's own process is starting now
        load.cancel()
        return engine

    engine = runner.run(launch_and_begin_to_load())
    assert len(group_members(engine.pids["actor"])) > 1
    close(runner, engine)


def test_a_killed_actor_is_told_and_takes_its_children_along(runner, demo_generation, start_vllm, tmp_path):
    engine = start_vllm(demo_generation, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFailed, match=r"vLLM failed: .*(safetensors|weights)"):
        runner.run(engine.update_weights(tmp_path / "empty", policy_version=1))
    os.kill(engine.pids["actor"], signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"the vLLM actor died; gone: actor"):
        runner.run(asyncio.wait_for(engine.watch(), 15))
    close(runner, engine)
