"""What vLLM is told on its command line and in its environment."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.schema.sampling import Sampling
from rl.generation.actor import GenerationSettings, cpu_cache_bytes, vllm_arguments
from rl.generation.engine import actor_variables
from rl.generation.transfer import TransferTarget


@pytest.fixture
def settings(tmp_path: Path) -> GenerationSettings:
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return GenerationSettings(
        model_folder=tmp_path, sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64),
        device="cpu", dtype="bfloat16", max_model_len=256, max_num_seqs=64, tensor_parallel_size=1,
        gpu_memory_utilization=0.5, tool_call_parser=None, reasoning_parser=None, chat_template=None,
        trust_remote_code=False, seed=7,
    )  # fmt: skip


def test_every_setting_reaches_the_command_line(settings, tmp_path):
    changed = replace(
        settings, dtype="float32", max_model_len=300, max_num_seqs=5, seed=9, tool_call_parser="hermes",
        reasoning_parser="qwen3", chat_template="t.jinja", trust_remote_code=True, config_overrides={"rope_theta": 5},
    )  # fmt: skip
    arguments = vllm_arguments(changed)
    assert {
        f"--model={tmp_path}", "--dtype=float32", "--max-model-len=300", "--max-num-seqs=5", "--seed=9",
        "--tool-call-parser=hermes", "--enable-auto-tool-choice", "--reasoning-parser=qwen3", "--chat-template=t.jinja",
        "--trust-remote-code", '--hf-overrides={"rope_theta": 5}',
    } <= set(arguments)  # fmt: skip


def test_the_models_own_sampling_values_are_never_used(settings):
    assert "--generation-config=vllm" in vllm_arguments(settings)
    assert "--logprobs-mode=processed_logprobs" in vllm_arguments(settings)


def test_parsers_and_remote_code_are_off_unless_wanted(settings):
    flags = {argument.partition("=")[0] for argument in vllm_arguments(settings)}
    optional = {"--tool-call-parser", "--enable-auto-tool-choice", "--reasoning-parser", "--trust-remote-code"}
    assert not flags & (optional | {"--hf-overrides", "--chat-template"})


def test_a_gpu_has_its_share_of_memory_and_graphs(settings):
    on_gpu = vllm_arguments(replace(settings, device="cuda", gpu_memory_utilization=0.3, tensor_parallel_size=2))
    assert {"--gpu-memory-utilization=0.3", "--tensor-parallel-size=2"} <= set(on_gpu)
    assert "--enforce-eager" not in on_gpu
    assert not any(argument.startswith("--kv-cache-memory-bytes") for argument in on_gpu)


@pytest.mark.parametrize("backend", ["ipc", "nccl"])
def test_whole_models_go_from_gpu_to_gpu(settings, backend):
    target = TransferTarget(actor_name="vllm-1", backend=backend, num_workers=1, port=1)
    changed = replace(settings, device="cuda", shares_gpus=backend == "ipc", transfer=target)
    assert f'--weight-transfer-config={{"backend": "{backend}"}}' in vllm_arguments(changed)
    assert ("--enable-sleep-mode" in vllm_arguments(changed)) == changed.shares_gpus
    assert ("VLLM_ALLOW_INSECURE_SERIALIZATION" in actor_variables(changed)) == (backend == "ipc")


def test_files_need_no_transfer_engine(settings):
    assert not any(argument.startswith("--weight-transfer") for argument in vllm_arguments(settings))


def test_an_adapters_rank_is_rounded_up_to_one_that_vllm_knows(settings):
    assert {"--enable-lora", "--max-lora-rank=16"} <= set(vllm_arguments(replace(settings, lora_rank=9)))
    assert not any("lora" in argument for argument in vllm_arguments(settings))


def test_vllm_sees_its_own_gpus_only(settings):
    assert actor_variables(replace(settings, device="cuda", gpus=("2", "3")))["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in actor_variables(settings)


def test_a_cpu_caches_every_sequence_at_full_length(settings):
    per_token = 2 * 30 * 3 * 64 * 2  # keys and values, layers, heads, head size, bytes
    assert cpu_cache_bytes(settings) == per_token * 256 * 64
    assert cpu_cache_bytes(replace(settings, dtype="float32")) == 2 * per_token * 256 * 64
    assert cpu_cache_bytes(replace(settings, max_num_seqs=1)) == 256 * 2**20
    assert cpu_cache_bytes(replace(settings, max_model_len=8192)) == 4 * 2**30


def test_one_cpu_rank_runs_inside_the_engine_on_all_cores(settings, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert "--distributed-executor-backend=uni" in vllm_arguments(settings)
    assert actor_variables(settings)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert actor_variables(settings)["OMP_NUM_THREADS"] == "3"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in actor_variables(settings)
    two = replace(settings, tensor_parallel_size=2)
    assert "--distributed-executor-backend=uni" not in vllm_arguments(two)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in actor_variables(two)
    assert actor_variables(two)["OMP_NUM_THREADS"] == "1"
    assert actor_variables(two)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_nothing_is_fetched_and_nothing_is_reported(settings):
    for device in ("cpu", "cuda"):
        variables = actor_variables(replace(settings, device=device))
        assert variables["HF_HUB_OFFLINE"] == variables["VLLM_NO_USAGE_STATS"] == "1"
