"""Turns -> train samples."""

import json
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.samples import continuous_turns, train_samples
from gym_bridge.types import Rollout, TrainSample, Turn

MESSAGE_LOGS = json.loads((Path(__file__).parents[1] / "vectors" / "message_log.json").read_text())["cases"]


def turn(prompt: tuple[int, ...], sampled: tuple[int, ...]) -> Turn:
    logprobs = tuple(-token / 10 for token in sampled)
    return Turn(prompt_token_ids=prompt, token_ids=sampled, logprobs=logprobs, finish_reason="stop")


def rollout(*turns: Turn, truncated: bool = False) -> Rollout:
    return Rollout(
        group_id=1, rollout_id=2, row_index=0, agent="a", turns=turns, reward=1.0, failure=None, truncated=truncated,
        policy_version=0, prompt="", response="",
    )  # fmt: skip


def test_one_turn_is_one_sample() -> None:
    assert train_samples(rollout(turn((1, 120, 118), (7, 3)))) == (
        TrainSample(
            group_id=1, rollout_id=2, token_ids=(1, 120, 118, 7, 3), loss_mask=(0, 0, 0, 1, 1),
            logprobs=(0.0, 0.0, 0.0, -0.7, -0.3), truncated=False,
        ),
    )  # fmt: skip


def test_turns_that_continue_are_merged_and_what_lies_between_is_not_trained() -> None:
    (sample,) = train_samples(rollout(turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5, 6), (7,)), truncated=True))
    assert sample.token_ids == (1, 2, 3, 4, 5, 6, 7)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 0, 1)
    assert sample.logprobs == (0.0, 0.0, -0.3, -0.4, 0.0, 0.0, -0.7)
    assert sample.truncated


def test_a_prompt_that_does_not_continue_starts_a_new_sample() -> None:
    drifted = turn((1, 2, 3, 9, 5), (6,))
    first, second = train_samples(rollout(turn((1, 2), (3, 4)), drifted))
    assert (first.token_ids, first.loss_mask) == ((1, 2, 3, 4), (0, 0, 1, 1))
    assert (second.token_ids, second.loss_mask) == ((1, 2, 3, 9, 5, 6), (0, 0, 0, 0, 0, 1))


def test_turns_after_a_cut_merge_again() -> None:
    turns = [turn((1,), (2,)), turn((9,), (3,)), turn((9, 3, 4), (5,))]
    assert continuous_turns(turns) == [turns[:1], turns[1:]]


def test_a_prompt_shorter_than_what_came_before_is_a_cut() -> None:
    assert len(train_samples(rollout(turn((1, 2), (3, 4)), turn((1, 2, 3), (5,))))) == 2


def test_each_sampled_token_is_trained_exactly_once() -> None:
    turns = (turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6, 7)), turn((8,), (9,)))
    trained = [
        token
        for sample in train_samples(rollout(*turns))
        for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True)
        if mask
    ]
    assert trained == [token for each in turns for token in each.token_ids]


@pytest.mark.parametrize(
    "case", MESSAGE_LOGS, ids=lambda case: f"divisible by {case['make_sequence_length_divisible_by']}"
)
def test_tokens_masks_and_logprobs_equal_nemo_rls(case: dict[str, Any]) -> None:
    """The vector's rows are padded; ours have no padding, which the layout adds."""
    for index, messages in enumerate(case["message_logs"]):
        (sample,) = train_samples(rollout(*turns_of(messages)))
        length = case["input_lengths"][index]
        assert list(sample.token_ids) == case["token_ids"][index][:length]
        assert list(sample.loss_mask) == case["token_loss_mask"][index][:length]
        assert list(sample.logprobs) == case["generation_logprobs"][index][:length]


def turns_of(messages: list[dict[str, Any]]) -> list[Turn]:
    """NeMo RL's log of messages as model calls: an assistant message with log-probabilities is one, all before it its
    prompt."""
    turns, seen = [], []
    for message in messages:
        if logprobs := message.get("generation_logprobs"):
            turns.append(
                Turn(prompt_token_ids=tuple(seen), token_ids=tuple(message["token_ids"]), logprobs=tuple(logprobs),
                     finish_reason="stop")
            )  # fmt: skip
        seen += message["token_ids"]
    return turns
