"""A two-layer Llama with random float32 weights, and rollouts of random lengths to train it on."""

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gym_bridge.types import TrainSample
from rl.workers.policy import PolicyModel

VOCABULARY = 97


def tiny_policy(seed: int = 0) -> PolicyModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, tie_word_embeddings=True,
    )  # fmt: skip
    return PolicyModel(LlamaForCausalLM(config).float().train())


@pytest.fixture
def policy() -> PolicyModel:
    return tiny_policy()


@pytest.fixture(scope="session")
def samples() -> list[TrainSample]:
    """Four groups of three responses; the second turn of some has an observation that is not trained."""
    numbers = random.Random(5)
    made = []
    for group in range(4):
        prompt = tuple(numbers.randrange(VOCABULARY) for _ in range(numbers.randrange(3, 9)))
        for rollout in range(3):
            length = numbers.randrange(2, 14)
            response = tuple(numbers.randrange(VOCABULARY) for _ in range(length))
            mask = tuple(0 if length > 8 and 3 <= t < 5 else 1 for t in range(length))
            made.append(
                TrainSample(
                    group_id=group,
                    rollout_id=rollout,
                    token_ids=prompt + response,
                    loss_mask=(0,) * len(prompt) + mask,
                    logprobs=(0.0,) * len(prompt) + tuple(-4.0 - 0.1 * numbers.random() if m else 0.0 for m in mask),
                    truncated=False,
                )
            )
    return made
