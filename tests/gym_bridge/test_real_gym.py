"""Rollouts through the real NeMo Gym, with a policy that answers at once."""

import os
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.samples import train_samples
from launcher.schema.problems import LauncherError
from tests.gym_bridge.conftest import API_KEY, MAX_ROLLOUT_TURNS, Trials, demo_rows
from tests.gym_bridge.fake_policy import Answer, Messages, tokens

ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "List two."}], "temperature": 0.1},
    "agent_ref": {"type": "responses_api_agents", "name": "numbered_list_agent"},
    "num_items": 2,
}
SPELL = {
    "type": "function", "name": "spell", "description": "spell a word", "strict": True,
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}  # fmt: skip
TOOL_ROW = {
    **ROW,
    "responses_create_params": {"input": [{"role": "user", "content": "Spell owl."}], "tools": [SPELL]},
}


def spells_then_answers(messages: Messages) -> Answer:
    if messages[-1]["role"] == "tool":
        return Answer(text="1. o-w-l")
    return Answer(tool_calls=[("spell", {"word": "owl"})], finish_reason="tool_calls")


def test_a_rollout_holds_exactly_the_tokens_that_were_sampled(trials: Trials) -> None:
    trials.policy.answer = lambda _: "1. red\n2. blue"
    (rollout,) = trials.collect([ROW])
    (turn,) = rollout.turns
    assert turn.prompt_token_ids == tuple(tokens("<user>List two.$<assistant>"))
    assert turn.token_ids == tuple(tokens("1. red\n2. blue$"))
    assert turn.logprobs == (-0.5,) * len(turn.token_ids)
    assert (rollout.reward, rollout.failure, rollout.truncated, rollout.policy_version) == (1.0, None, False, 5)
    assert (rollout.prompt, rollout.response) == ("List two.", "1. red\n2. blue")
    assert rollout.metrics == {"num_right_lines": 2.0, "num_surplus_lines": 0.0}
    assert rollout.agent == "numbered_list_agent"


def test_the_run_s_sampling_and_key_reach_the_policy_whatever_the_row_says(trials: Trials) -> None:
    trials.policy.requests.clear()
    trials.policy.answer = lambda _: "1. red"
    trials.collect([ROW])
    (request,) = trials.policy.requests
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.7, 1.0, 64)
    assert trials.policy.authorization == f"Bearer {API_KEY}"


def test_the_policy_s_key_is_in_no_command_line(trials: Trials) -> None:
    for pid in trials.servers.pids.values():
        assert API_KEY not in Path(f"/proc/{pid}/cmdline").read_text()


def test_two_turns_with_a_tool_become_one_sample_that_trains_only_what_was_sampled(trials: Trials) -> None:
    trials.policy.answer = spells_then_answers
    (rollout,) = trials.collect([TOOL_ROW])
    assert rollout.failure is None
    (sample,) = train_samples(rollout)
    text = "".join(map(chr, sample.token_ids))
    call = '<call>spell {"word": "owl"}</call>$'
    assert text == f'<user>Spell owl.$<assistant>{call}<tool>{{"letters":"o-w-l"}}$<assistant>1. o-w-l$'
    trained = "".join(chr(token) for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask)
    assert trained == f"{call}1. o-w-l$"
    assert rollout.response == '[call] spell({"word": "owl"})\n[output] {"letters":"o-w-l"}\n1. o-w-l'


def test_tokens_that_are_split_differently_in_the_next_prompt_are_not_merged(trials: Trials) -> None:
    def drifts(messages: Messages) -> Answer:
        if messages[-1]["role"] == "tool":
            return Answer(text="1. o-w-l")
        return Answer(tool_calls=[("spell", {"word": "owl"})], sampled="something else$", finish_reason="tool_calls")

    trials.policy.answer = drifts
    (rollout,) = trials.collect([TOOL_ROW])
    first, second = train_samples(rollout)
    assert first.token_ids == tuple(tokens("<user>Spell owl.$<assistant>something else$"))
    assert sum(second.loss_mask) == len("1. o-w-l$")


def test_the_limit_of_turns_ends_an_agent_that_calls_tools_for_ever(trials: Trials) -> None:
    trials.policy.answer = lambda _: Answer(tool_calls=[("spell", {"word": "owl"})], finish_reason="tool_calls")
    (rollout,) = trials.collect([TOOL_ROW])
    assert len(rollout.turns) == MAX_ROLLOUT_TURNS


def test_a_response_that_met_its_cap_is_truncated(trials: Trials) -> None:
    trials.policy.answer = lambda _: Answer(text="1. re", finish_reason="length")
    (rollout,) = trials.collect([ROW])
    assert rollout.truncated
    assert rollout.turns[0].finish_reason == "length"
    assert rollout.reward == 0.5


def test_one_row_in_twenty_that_hangs_and_one_that_raises_cost_only_themselves(trials: Trials) -> None:
    trials.policy.answer = lambda _: "1. red\n2. blue"
    rows = demo_rows(40)
    for index, row in enumerate(rows):
        row["fault"] = {0: "hang", 10: "raise"}.get(index % 20)
    rollouts = trials.collect(rows, timeout_s=10)
    failures = {rollout.row_index: rollout.failure for rollout in rollouts if rollout.failure}
    raised = (
        "500 from numbered_list_agent, in a server called by numbered_list_agent: "
        "ValueError('the judge is out to lunch')"
    )
    assert failures == {
        0: "timeout: no result after 10 s", 20: "timeout: no result after 10 s", 10: raised, 30: raised,
    }  # fmt: skip
    assert all(rollout.reward is not None for rollout in rollouts if not rollout.failure)


def test_a_reward_that_is_not_a_number_fails_the_rollout(trials: Trials) -> None:
    trials.policy.answer = lambda _: "1. red"
    (rollout,) = trials.collect([{**ROW, "fault": "nan"}])
    assert rollout.failure is not None
    assert rollout.failure.endswith("verify() gave no finite reward (NaN arrives as null)")


def test_a_row_the_environment_cannot_read_fails_with_its_reason(trials: Trials) -> None:
    trials.policy.answer = lambda _: "1. red"
    (rollout,) = trials.collect([{**ROW, "num_items": "two"}])
    assert rollout.failure is not None
    assert "num_items" in rollout.failure
    assert "valid integer" in rollout.failure


def test_a_prompt_that_fills_the_context_fails_the_rollout(trials: Trials) -> None:
    message = "This model's maximum context length is 256 tokens. However, you requested 300 tokens"
    trials.policy.answer = lambda _: Answer(text=message, status=400)
    (rollout,) = trials.collect([ROW])
    assert rollout.failure == "the prompt leaves no room for a response within max_seq_length"


def test_a_context_that_fills_up_in_the_second_turn_truncates_the_rollout(trials: Trials) -> None:
    def overflows(messages: Messages) -> Answer:
        if messages[-1]["role"] == "tool":
            return Answer(text="maximum context length is 256 tokens", status=400)
        return Answer(tool_calls=[("spell", {"word": "owl"})], finish_reason="tool_calls")

    trials.policy.answer = overflows
    (rollout,) = trials.collect([TOOL_ROW])
    assert (rollout.failure, rollout.truncated, len(rollout.turns)) == (None, True, 1)


def test_a_policy_that_fails_fails_the_rollout(trials: Trials) -> None:
    trials.policy.answer = lambda _: Answer(text="no more memory", status=500)
    (rollout,) = trials.collect([ROW])
    # Gym drops the message that a policy's error comes with.
    assert rollout.failure == (
        "500 from numbered_list_agent, in a server called by policy_model: "
        "no message came with it; the logs of the servers have more"
    )


def test_an_agent_that_does_not_exist_is_refused_before_anything_is_sampled(trials: Trials) -> None:
    trials.policy.requests.clear()
    rows: list[dict[str, Any]] = [ROW, {**ROW, "agent_ref": {"type": "responses_api_agents", "name": "nobody"}}]
    message = r"row 2: agent_ref.name is 'nobody'; the environment has number_game_agent, numbered_list_agent"
    with pytest.raises(LauncherError, match=message):
        trials.collect(rows)
    assert trials.policy.requests == []


def test_the_package_is_left_as_it_was(trials: Trials, trials_package: os.PathLike[str]) -> None:
    trials.policy.answer = lambda _: "1. red"
    trials.collect([ROW])
    written = [name for _, folders, files in os.walk(trials_package) for name in (*folders, *files)]
    assert not [name for name in written if name == "__pycache__" or name.endswith((".log", ".egg-info"))]
