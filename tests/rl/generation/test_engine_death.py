"""How a vLLM that dies is told, and what is left of one that is ended: nothing."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from launcher.schema.problems import RunFailed

pytestmark = pytest.mark.e2e


def group_of(leader: int) -> list[int]:
    """Living processes of a process group."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name_and_rest = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name_and_rest[0] not in "ZX" and int(name_and_rest[2]) == leader:
            members.append(int(stat.parent.name))
    return members


def wait_until_gone(leader: int, *, within_s: float) -> float:
    started = time.monotonic()
    while members := group_of(leader):
        assert time.monotonic() - started < within_s, f"still there after {within_s} s: {members}"
        time.sleep(0.1)
    return time.monotonic() - started


def test_bad_weights_and_a_killed_engine_are_told_with_their_cause(runner, demo_generation, start_vllm, tmp_path):
    engine = start_vllm(demo_generation, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFailed, match=r"vLLM failed: .*safetensors|vLLM failed: .*weights") as bad:
        runner.run(engine.update_weights(tmp_path / "empty", policy_version=1))
    assert "its last output" in str(bad.value)
    core = next(pid for name, pid in engine.pids.items() if "EngineCore" in name)
    os.kill(core, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(RunFailed, match=f"EngineCore.*pid {core}"):
        runner.run(asyncio.wait_for(engine.watch(), 15))
    assert time.monotonic() - killed < 15
    runner.run(engine.close())
    wait_until_gone(engine.pids["actor"], within_s=15)


def test_closing_while_vllm_starts_leaves_nothing(runner, demo_generation, scratch, tmp_path):
    from rl.generation.engine import VllmEngine

    shared_memory = set(os.listdir("/dev/shm"))

    async def give_up_while_loading() -> int:
        loading = asyncio.Event()
        engine = await VllmEngine.launch(demo_generation, log_folder=tmp_path, scratch=scratch)
        load = asyncio.create_task(engine.load(lambda phase: loading.set() if phase == "loading the model" else None))
        await loading.wait()
        await asyncio.sleep(3)  # the engine's own process is starting now
        load.cancel()
        await engine.close()
        return engine.pids["actor"]

    wait_until_gone(runner.run(give_up_while_loading()), within_s=15)
    assert set(os.listdir("/dev/shm")) <= shared_memory


def test_a_killed_actor_is_told_and_takes_its_children_along(runner, demo_generation, start_vllm, tmp_path):
    engine = start_vllm(demo_generation, tmp_path)
    os.kill(engine.pids["actor"], signal.SIGKILL)
    with pytest.raises(RunFailed, match="the vLLM actor died; gone: actor"):
        runner.run(asyncio.wait_for(engine.watch(), 15))
    runner.run(engine.close())
    wait_until_gone(engine.pids["actor"], within_s=15)
