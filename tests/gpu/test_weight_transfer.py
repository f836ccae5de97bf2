"""Weights from the policy's GPU to vLLM's. Needs one CUDA device (ipc, with sleep and wake) or two (nccl)."""

from dataclasses import replace

import pytest
import torch

from rl.generation.transfer import PolicyWeights, WeightSender, transfer_target
from rl.gpus import gpu_layout, gpu_variables, visible_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Trainer:
    """In a Ray actor on the policy's GPU: holds the demo model's weights, sends them scaled."""

    def __init__(self, folder, target):
        from safetensors.torch import load_file

        weights = load_file(folder / "model.safetensors", device="cuda")
        self._scale = 1.0
        source = PolicyWeights(
            lambda: ((name, value * self._scale) for name, value in weights.items()),
            dtype=torch.bfloat16,
            as_in_files=lambda one: one,
        )
        self._sender = WeightSender(source, target, rank=0)

    def send(self, scale: float) -> None:
        self._scale = scale
        self._sender.send()


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_the_sampler_computes_with_what_the_policy_sent(
    num_gpus, runner, start_vllm, demo_generation, demo_model_folder, prompt_logprobs, tmp_path
):
    import ray

    if torch.cuda.device_count() < num_gpus:
        pytest.skip(f"needs {num_gpus} CUDA devices")
    layout = gpu_layout(visible_gpus(num_gpus), num_ranks=1, num_sampler_workers=1)
    target = transfer_target(shares_gpus=layout.shared, num_workers=1)
    settings = replace(demo_generation, device="cuda", gpus=layout.sampler, shares_gpus=layout.shared, transfer=target)
    engine = start_vllm(settings, tmp_path)
    try:
        before = prompt_logprobs(engine)
        variables = {"env_vars": dict(gpu_variables(layout.policy))}
        trainer = ray.remote(Trainer).options(runtime_env=variables).remote(demo_model_folder, target)
        for scale, version in ((0.9, 1), (1.0, 2)):
            runner.run(engine.sleep())
            ray.get(trainer.send.remote(scale), timeout=300)
            runner.run(engine.update_weights(tmp_path, policy_version=version))
            difference = max(abs(a - b) for a, b in zip(before, prompt_logprobs(engine), strict=True))
            assert (difference > 0.1) if scale != 1.0 else (difference < 0.01)
    finally:
        runner.run(engine.close())
