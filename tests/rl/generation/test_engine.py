"""The real vLLM with the demo model: sampling, records, new weights, death."""

import asyncio
import math
from typing import Any

import aiohttp
import pytest
import torch
from tokenizers import Tokenizer

from gym_bridge.types import CallRecord
from rl.generation.weights import weights_folder, write_weights

pytestmark = pytest.mark.e2e


def message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_call_brings_its_tokens_and_is_on_record(vllm, ask, demo_model_folder):
    [(status, answer)] = ask(vllm, message("Name a colour.") | {"max_tokens": 8})
    assert status == 200
    [choice] = answer["choices"]
    sampled = choice["message"]["generation_token_ids"]
    assert 1 <= len(sampled) <= 8
    assert len(choice["message"]["generation_log_probs"]) == len(sampled)
    assert all(math.isfinite(value) and value <= 0 for value in choice["message"]["generation_log_probs"])
    tokenizer = Tokenizer.from_file(str(demo_model_folder / "tokenizer.json"))
    decoded, content = tokenizer.decode(sampled, skip_special_tokens=True), choice["message"]["content"] or ""
    assert decoded.rstrip("\ufffd") == content.rstrip("\ufffd"), "the last token may hold half a character"
    prompt = tokenizer.decode(choice["message"]["prompt_token_ids"], skip_special_tokens=False)
    assert prompt.endswith("user\nName a colour.<|im_end|>\n<|im_start|>assistant\n")
    assert vllm.find_call(sampled) == CallRecord(
        finish_reason=choice["finish_reason"],
        policy_version=0,
        num_prompt_tokens=len(choice["message"]["prompt_token_ids"]),
    )


def test_other_sampling_and_other_keys_are_refused_by_the_running_server(vllm, ask):
    [(status, answer)] = ask(vllm, message("Hi") | {"temperature": 0.5})
    assert status == 400
    assert "temperature is 0.5, the run's is 1.0" in answer["error"]["message"]
    assert ask(vllm, message("Hi"), key="guess")[0][0] == 401


def test_the_length_of_prompt_and_response_together_is_bounded(vllm, ask):
    fits, too_long = ask(vllm, message("word " * 200), message("word " * 400))
    assert fits[0] == 200
    [choice] = fits[1]["choices"]
    num_tokens = len(choice["message"]["prompt_token_ids"]) + len(choice["message"]["generation_token_ids"])
    assert num_tokens <= 256
    assert num_tokens == 256 if choice["finish_reason"] == "length" else choice["finish_reason"] == "stop"
    assert too_long[0] == 400
    assert "context length" in too_long[1]["error"]["message"]


def test_a_later_turn_continues_the_tokens_of_the_turns_before(vllm, ask):
    first = message("Say one word.") | {"max_tokens": 4}
    [(_, answer)] = ask(vllm, first)
    said = answer["choices"][0]["message"]
    turns = [*first["messages"], {k: v for k, v in said.items() if v is not None}, {"role": "user", "content": "More."}]
    [(status, second)] = ask(vllm, {"messages": turns, "max_tokens": 4})
    assert status == 200
    prompt = second["choices"][0]["message"]["prompt_token_ids"]
    assert prompt[: len(said["prompt_token_ids"])] == said["prompt_token_ids"]


def test_new_weights_sample_and_old_ones_come_back(vllm, runner, ask, prompt_logprobs, demo_model_folder, tmp_path):
    from safetensors.torch import load_file

    before = prompt_logprobs(vllm)
    weights = load_file(demo_model_folder / "model.safetensors")
    torch.manual_seed(0)
    noisy = {name: value + 0.2 * torch.randn_like(value) * value.std() for name, value in weights.items()}
    with weights_folder(2**29, fallback=tmp_path) as folder:
        write_weights(noisy, folder, dtype=torch.bfloat16)
        runner.run(vllm.update_weights(folder, policy_version=1))
    changed = prompt_logprobs(vllm)
    assert max(abs(one - two) for one, two in zip(before, changed, strict=True)) > 0.1
    [(_, answer)] = ask(vllm, message("Hi") | {"max_tokens": 4})
    record = vllm.find_call(answer["choices"][0]["message"]["generation_token_ids"])
    assert record.policy_version == 1
    runner.run(vllm.update_weights(demo_model_folder, policy_version=0))
    assert prompt_logprobs(vllm) == pytest.approx(before, abs=1e-6)


def test_a_call_that_outlives_its_rollout_is_aborted_by_new_weights(vllm, runner, ask, demo_model_folder):
    async def sync_while_sampling() -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {vllm.api_key}"}
        body = {"model": vllm.model_name, "return_tokens_as_token_ids": True, "logprobs": True}
        body |= message("Write a long story about a fox.") | {"max_tokens": 64}
        async with aiohttp.ClientSession(headers=headers) as session:
            call = asyncio.create_task(session.post(f"{vllm.base_url}/chat/completions", json=body))
            await asyncio.sleep(0.3)
            await vllm.update_weights(demo_model_folder, policy_version=0)
            async with await call as response:
                return response.status, await response.json()

    status, answer = runner.run(sync_while_sampling())
    assert status == 200
    assert answer["choices"][0]["finish_reason"] in ("abort", "stop", "length")
    assert ask(vllm, message("Hi") | {"max_tokens": 2})[0][0] == 200
