"""In what order vLLM is paused, woken, given weights and resumed. The engine is a fake that is as particular as vLLM's:
one that is only paused also calls itself asleep, and waking it up lets it sample again.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.schema.sampling import Sampling
from rl.generation.actor import CPU_WORKER, GenerationSettings, VllmActor, vllm_arguments
from rl.generation.cpu_reload import CpuReload


class FakeEngine:
    """Remembers what it was told, and whether it could have sampled meanwhile."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._paused = False
        self._asleep: set[str] = set()

    def _note(self, what: str) -> None:
        self.told.append(f"{what} (sampling)" if not self._paused else what)

    async def pause_generation(self, *, mode: str) -> None:
        self._paused = True
        self._note(f"pause, {mode}")

    async def sleep(self, *, level: int, mode: str) -> None:
        self._paused, self._asleep = True, {"weights", "kv_cache"}
        self._note(f"sleep {level}, {mode}")

    async def wake_up(self, tags: list[str]) -> None:
        self._asleep -= set(tags)
        self._paused = bool(self._asleep)
        self._note(f"wake {', '.join(tags)}")

    async def is_sleeping(self) -> bool:
        return self._paused or bool(self._asleep)

    async def start_weight_update(self) -> None:
        self._note("start")

    async def update_weights(self, request: Any) -> None:
        self._note("update")

    async def finish_weight_update(self) -> None:
        self._note("finish")

    async def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        self._note(method)

    async def reset_prefix_cache(self) -> None:
        self._note("reset prefixes")

    async def resume_generation(self) -> None:
        self._paused = False
        self._note("resume")


class FakeGateway:
    in_flight = 2
    policy_version = 0


@pytest.fixture
def actor(tmp_path: Path) -> VllmActor:
    settings = GenerationSettings(
        model_folder=tmp_path, sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64),
        device="cpu", dtype="bfloat16", max_model_len=256, max_num_seqs=64, tensor_parallel_size=1,
        gpu_memory_utilization=0.5, tool_call_parser=None, reasoning_parser=None, chat_template=None,
        trust_remote_code=False, seed=7,
    )  # fmt: skip
    made = VllmActor.__new__(VllmActor)  # without its process: log files, process group
    made._settings, made._num_aborted, made._asleep = settings, 0, False
    made._engine, made._gateway = FakeEngine(), FakeGateway()  # type: ignore[assignment]
    return made


def told(actor: VllmActor) -> list[str]:
    engine: Any = actor._engine
    found: list[str] = engine.told
    return found


def test_nothing_is_sampled_while_weights_load(actor: VllmActor, tmp_path: Path) -> None:
    async def step() -> int:
        return await actor.take_weights(tmp_path, 3)

    assert asyncio.run(step()) == 2
    assert told(actor) == ["pause, abort", "reload_all_weights", "reset prefixes", "resume (sampling)"]
    assert actor._gateway.policy_version == 3


def test_weights_wake_a_sampler_that_sleeps_and_the_cache_wakes_last(actor: VllmActor) -> None:
    async def step() -> None:
        await actor.sleep()
        await actor.transfer("start")
        await actor.transfer("update", {"names": []})
        await actor.transfer("finish")
        await actor.take_weights(None, 1)

    expected = [
        "sleep 1, abort", "pause, abort", "wake weights", "start", "update", "finish", "reset prefixes",
        "wake kv_cache (sampling)", "resume (sampling)",
    ]  # fmt: skip
    asyncio.run(step())
    assert told(actor) == expected
    asyncio.run(step())
    assert told(actor) == 2 * expected, "as in the first step"


class FakeWorker(CpuReload):
    """As vLLM's: two layers, of which one holds experts that are packed while there is no kernel."""

    def __init__(self) -> None:
        self.experts = SimpleNamespace(quant_method=SimpleNamespace(moe_kernel="kernel"))
        self.linear = SimpleNamespace(quant_method=SimpleNamespace())
        self.loaded: list[tuple[str, object]] = []

    def get_model(self) -> Any:
        return SimpleNamespace(modules=lambda: [SimpleNamespace(), self.linear, self.experts])

    def reload_weights(self, *, weights_path: str) -> None:
        self.loaded.append((weights_path, self.experts.quant_method.moe_kernel))


def test_experts_are_packed_anew_on_a_cpu(actor: VllmActor, tmp_path: Path) -> None:
    worker = FakeWorker()
    worker.reload_all_weights("weights")
    assert worker.loaded == [("weights", None)]
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8}', encoding="utf-8"
    )
    named = f"--worker-extension-cls={CPU_WORKER}"
    assert named in vllm_arguments(actor._settings)
    assert named not in vllm_arguments(replace(actor._settings, device="cuda"))
