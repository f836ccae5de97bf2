"""A mixture of experts from training to the real vLLM: the same coefficient, and the same weights after a step."""

import random
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from gym_bridge.types import TrainSample
from launcher.compile import compile_plan
from launcher.schema.job import JobConfig
from rl.layout import rank_batches
from rl.settings import generation_settings, loop_settings, rank_settings
from rl.workers.rank import PolicyRank

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VOCABULARY, HIDDEN = 49152, 64


@pytest.fixture
def model_folder(demo_model_folder, tmp_path):
    """Two layers of four random experts, with the demo model's tokenizer."""
    folder = tmp_path / "model"
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=64, vocab_size=VOCABULARY, num_experts=4, num_experts_per_tok=2,
        initializer_range=0.1,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    for file in (f for f in demo_model_folder.iterdir() if f.suffix != ".safetensors"):
        if not (folder / file.name).exists():
            shutil.copy(file, folder)
    return folder


def made_up_samples() -> list[TrainSample]:
    numbers = random.Random(0)
    return [
        TrainSample(
            group_id=0, rollout_id=rollout, token_ids=tuple(numbers.randrange(3, VOCABULARY) for _ in range(24)),
            loss_mask=(0,) * 8 + (1,) * 16, logprobs=(0.0,) * 8 + (-10.8,) * 16, truncated=False,
        )
        for rollout in range(4)
    ]  # fmt: skip


def test_the_sampler_has_the_experts_that_were_trained(start_vllm, runner, model_folder, prompt_logprobs, tmp_path):
    job = JobConfig.model_validate({
        "model": {"name": str(model_folder), "dtype": "float32"}, "dataset": "d", "environment": "e",
        "training": {
            "type": "grpo", "policy_backend": "dtensor", "batch_size": 4, "num_generations_per_prompt": 4,
            "max_seq_length": 128, "router_aux_loss_coef": 0.01,
        },
    })  # fmt: skip
    plan = compile_plan(job, num_training_rows=1, num_validation_rows=0)
    sampler = generation_settings(job, plan, model_folder=model_folder, device="cpu")
    assert sampler.config_overrides == {"router_aux_loss_coef": 0.01}
    settings = rank_settings(job, plan, model_folder=model_folder, device="cpu")
    threads = torch.get_num_threads()
    rank = PolicyRank(settings, rank=0, num_ranks=1, rendezvous="", num_threads=threads, log_file=None)
    layout = loop_settings(job, plan, hidden_size=HIDDEN).layout
    ((batch,),) = rank_batches(made_up_samples(), np.array([1, -1, 0.5, -0.5], np.float32), layout)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    message = [{"role": "user", "content": "The sky is blue."}]
    prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=True)

    def policy_logprobs() -> list[float]:
        tokens = prompt["input_ids"]
        with torch.no_grad():
            logits = rank._policy.language_model(input_ids=tokens).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None])[:, 0].tolist()

    engine = start_vllm(sampler, tmp_path)
    try:
        before = prompt_logprobs(engine)
        assert before == pytest.approx(policy_logprobs(), abs=1e-4)
        assert rank.train(batch, 0.02).router_aux_loss is not None
        (tmp_path / "weights").mkdir()
        rank.write_weights(tmp_path / "weights")
        runner.run(engine.update_weights(tmp_path / "weights", policy_version=1))
        after = prompt_logprobs(engine)
        assert after == pytest.approx(policy_logprobs(), abs=1e-4)
        assert after != pytest.approx(before, abs=0.1)
    finally:
        runner.run(engine.close())
