"""Two steps of the demo with the real model, vLLM and NeMo Gym, looked at from all sides."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_bridge.samples import train_samples
from launcher.schema.sampling import Sampling
from rl.layout import LayoutSettings, rank_batches

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
TIE = 0.02
"""Logits that vLLM and transformers may order differently in float32: they agree to 0.001 (test_agreement.py), and of
the likeliest tokens of this model about one in a hundred has another as near."""


def test_all_rollouts_are_scored_and_know_their_policy(two_steps: Any) -> None:
    assert all(rollout.failure is None for rollout in two_steps.first + two_steps.second)
    assert {rollout.policy_version for rollout in two_steps.first} == {0}
    assert {rollout.policy_version for rollout in two_steps.second} == {1}
    assert {turn.finish_reason for rollout in two_steps.first for turn in rollout.turns} <= {"stop", "length"}


def test_exactly_the_sampled_tokens_are_trained(two_steps: Any) -> None:
    for rollouts, metrics in zip((two_steps.first, two_steps.second), two_steps.metrics, strict=True):
        sampled = sum(len(turn.token_ids) for rollout in rollouts for turn in rollout.turns)
        assert metrics["train_global_valid_toks"] == sampled
    for rollout in two_steps.first:
        (sample,) = train_samples(rollout)
        trained = tuple(token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask)
        assert trained == rollout.turns[0].token_ids


def test_sampler_and_trainer_agree(two_steps: Any) -> None:
    """Measured on 2 cores: token_mult_prob_error 1.04 to 1.05 in bfloat16."""
    for metrics in two_steps.metrics:
        assert 1.0 < metrics["train_token_mult_prob_error"] < 1.06
        assert metrics["train_sampling_importance_ratio"] == pytest.approx(1.0, abs=0.01)


def test_the_sampled_tokens_have_the_models_own_probabilities(two_steps: Any, demo_model_folder: Path) -> None:
    """Against a plain forward pass in float32: the mean difference is that of bfloat16, 0.02 to 0.03 measured."""
    model = AutoModelForCausalLM.from_pretrained(demo_model_folder, dtype=torch.float32)
    differences = []
    with torch.no_grad():
        for rollout in two_steps.first[:8]:
            (turn,) = rollout.turns
            tokens = torch.tensor([turn.prompt_token_ids + turn.token_ids])
            start = len(turn.prompt_token_ids)
            logprobs = torch.log_softmax(model(tokens).logits[0, start - 1 : -1], -1)
            own = logprobs.gather(-1, tokens[0, start:, None])[:, 0]
            differences += (own - torch.tensor(turn.logprobs)).abs().tolist()
    assert np.mean(differences) < 0.06


def test_the_export_answers_alike_in_transformers_and_vllm(
    two_steps: Any, exported: Any, ask: Callable[..., Any], sampling_as: Callable[..., Any]
) -> None:
    folder = two_steps.run.export
    prompts = ["Write a numbered list of three birds, like '1. name'.", "What is the capital of France?"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    with sampling_as(exported, Sampling(temperature=1.0, top_p=1.0, top_k=1, max_new_tokens=24)):
        answers = ask(exported, *({"messages": message} for message in messages))
    assert [status for status, _ in answers] == [200, 200]
    for message, (_, answer) in zip(messages, answers, strict=True):
        prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
        sampled = answer["choices"][0]["message"]["generation_token_ids"]
        assert answer["choices"][0]["message"]["prompt_token_ids"] == prompt
        assert len(sampled) == 24 or sampled[-1] == tokenizer.eos_token_id
        assert short_of_likeliest(model, prompt, sampled) < TIE


@torch.no_grad()
def short_of_likeliest(model: Any, prompt: list[int], sampled: list[int]) -> float:
    """How far the logit of a token lies below the largest where it was sampled, at most."""
    logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(sampled)[:, None])[:, 0]
    return float((logits.max(1).values - chosen).max())


def test_training_changed_the_model(two_steps: Any, demo_model_folder: Path) -> None:
    before = AutoModelForCausalLM.from_pretrained(demo_model_folder, dtype=torch.bfloat16).state_dict()
    after = AutoModelForCausalLM.from_pretrained(two_steps.run.export, dtype=torch.bfloat16).state_dict()
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) > len(before) / 2


def test_the_layout_of_real_rollouts_covers_every_token_once(two_steps: Any) -> None:
    samples = [sample for rollout in two_steps.first for sample in train_samples(rollout)]
    layout = LayoutSettings(
        strategy="dynamic", micro_batch_size=1, train_mb_tokens=1024, sequence_length_round=64, data_parallel_size=1,
        optimizer_steps=1, hidden_size=576, needs_all_gradients=True,
    )  # fmt: skip
    ((batch,),) = rank_batches(samples, np.ones(len(samples), np.float32), layout)
    (other,) = rank_batches(samples, np.ones(len(samples), np.float32), replace(layout, data_parallel_size=2))
    for ranks in ([batch], other):
        trained = sum(len(micro_batch.targets) for rank in ranks for micro_batch in rank.micro_batches)
        assert trained == sum(sum(sample.loss_mask) for sample in samples)
    shared = sum(micro_batch.num_tokens for micro_batch in batch.micro_batches)
    assert shared < 0.7 * sum(len(sample.token_ids) for sample in samples), "prompts are computed once per group"
