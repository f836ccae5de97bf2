"""What Gym answered -> rollouts. The two recorded answers are NeMo Gym 0.4.0's, with long lists shortened."""

import json
from typing import Any

import pytest

from gym_bridge.responses import finished_rollout, http_failure, response_text
from gym_bridge.types import CallRecord, Rollout, RolloutRequest

ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "3+4?"}]},
    "agent_ref": {"type": "responses_api_agents", "name": "numfmt_simple_agent"},
    "expected": 7,
}  # fmt: skip
SINGLE_TURN = json.loads("""
{"responses_create_params": {"input": [{"content": "3+4?", "role": "user", "type": "message"}]},
 "response": {"id": "resp_1", "created_at": 1.79e9, "model": "fake-policy", "incomplete_details": null,
   "output": [{"type": "message", "role": "assistant", "status": "completed", "id": "msg_1",
               "content": [{"type": "output_text", "text": "I think seven.", "annotations": [], "logprobs": null}],
               "prompt_token_ids": [1, 120, 118], "generation_token_ids": [76, 35],
               "generation_log_probs": [-0.86, -0.79], "routed_experts": null}],
   "usage": {"input_tokens": 104, "output_tokens": 15, "total_tokens": 119}},
 "reward": 0.0, "expected": 7, "_ng_task_index": 0}
""")
TWO_TURNS = json.loads("""
{"response": {"incomplete_details": null, "output": [
   {"type": "function_call", "name": "get_weather", "call_id": "call_1",
    "arguments": "{\\"city\\": \\"San Francisco\\"}",
    "prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.1]},
   {"type": "function_call_output", "call_id": "call_1", "output": "{\\"weather_description\\": \\"cold\\"}"},
   {"type": "message", "role": "assistant", "content": [{"text": "It is cold."}],
    "prompt_token_ids": [1, 2, 3, 4], "generation_token_ids": [5, 6], "generation_log_probs": [-0.2, -0.3]}]},
 "reward": 1.0}
""")


def rollout_of(result: dict[str, Any], record: CallRecord | None = None) -> Rollout:
    return finished_rollout(
        RolloutRequest(group_id=4, rollout_id=2, row_index=9, row=ROW), result,
        agent="numfmt_simple_agent", find_call=lambda _: record, policy_version=3, duration_s=0.5,
    )  # fmt: skip


def record(**changes: Any) -> CallRecord:
    return CallRecord(**{"finish_reason": "stop", "policy_version": 2, "num_prompt_tokens": None, **changes})


def changed(result: dict[str, Any], *path: str | int, to: Any) -> dict[str, Any]:
    """A deep copy with the value at ``path`` replaced."""
    copy: Any = json.loads(json.dumps(result))
    *parents, last = path
    node = copy
    for key in parents:
        node = node[key]
    node[last] = to
    return dict(copy)


def test_a_single_turn() -> None:
    rollout = rollout_of(SINGLE_TURN)
    (turn,) = rollout.turns
    assert (turn.prompt_token_ids, turn.token_ids, turn.logprobs) == ((1, 120, 118), (76, 35), (-0.86, -0.79))
    assert (rollout.reward, rollout.failure, rollout.truncated) == (0.0, None, False)
    assert (rollout.group_id, rollout.rollout_id, rollout.row_index) == (4, 2, 9)
    assert (rollout.prompt, rollout.response) == ("3+4?", "I think seven.")


def test_two_turns_with_a_tool_call() -> None:
    rollout = rollout_of(TWO_TURNS)
    assert [turn.token_ids for turn in rollout.turns] == [(3,), (5, 6)]
    assert rollout.response == (
        '[call] get_weather({"city": "San Francisco"})\n[output] {"weather_description": "cold"}\nIt is cold.'
    )


@pytest.mark.parametrize(
    ("path", "value", "failure"),
    [
        (["response"], 3, "came back without token ids"),
        (["response", "output"], {"a": 1}, "came back without token ids"),
        (
            ["response", "output", 0, "generation_token_ids"],
            "76 35",
            "generation_token_ids of model call 1 is not a list",
        ),
        (
            ["response", "output", 0, "prompt_token_ids"],
            [1, None],
            "prompt_token_ids of model call 1 is not a list of num",
        ),
        (
            ["response", "output", 0, "generation_log_probs"],
            ["a", "b"],
            "generation_log_probs of model call 1 is not a",
        ),
        (["response", "output", 0, "content"], [{"text": 3}], None),
        (["response", "incomplete_details"], "none", None),
    ],
)
def test_an_answer_of_another_shape_costs_only_itself(path: list[str | int], value: Any, failure: str | None) -> None:
    found = rollout_of(changed(SINGLE_TURN, *path, to=value)).failure
    assert (found is None) == (failure is None)
    assert (found or "").startswith(failure or "")


def test_finish_reason_and_policy_version_come_from_the_gateway() -> None:
    rollout = rollout_of(SINGLE_TURN, record(finish_reason="length", num_prompt_tokens=3))
    assert (rollout.turns[0].finish_reason, rollout.truncated, rollout.policy_version) == ("length", True, 2)


def test_without_a_record_the_response_says_whether_it_was_cut() -> None:
    cut = changed(SINGLE_TURN, "response", "incomplete_details", to={"reason": "max_output_tokens"})
    assert (rollout_of(cut).turns[0].finish_reason, rollout_of(cut).truncated) == ("length", True)
    assert (rollout_of(SINGLE_TURN).turns[0].finish_reason, rollout_of(SINGLE_TURN).policy_version) == (None, 3)


def test_numbers_beside_the_reward_are_metrics_but_keys_of_the_row_are_not() -> None:
    result = {
        **SINGLE_TURN,
        "mask_sample": False,
        "num_lines": 3,
        "exact": True,
        "judge": "words",
        "metrics": {"format": 0.5},
    }
    assert rollout_of(result).metrics == {"num_lines": 3.0, "exact": 1.0, "format": 0.5}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (changed(SINGLE_TURN, "reward", to=None), "the reward is None, not a finite number"),
        (changed(SINGLE_TURN, "reward", to=float("nan")), "the reward is nan, not a finite number"),
        (changed(SINGLE_TURN, "reward", to="1.0"), "the reward is '1.0', not a finite number"),
        ({"response": SINGLE_TURN["response"]}, "the reward is None, not a finite number"),
        (
            changed(SINGLE_TURN, "response", "output", 0, "id", to="msg_empty"),
            "the model call failed and the agent put an empty message in its place",
        ),
        ({**SINGLE_TURN, "mask_sample": True}, "the environment asks not to train on it (mask_sample)"),
        (
            {**SINGLE_TURN, "failure_kind": "timeout", "failure_reason": "60 s"},
            "the agent reports failure_kind 'timeout' 60 s",
        ),
        (
            changed(SINGLE_TURN, "response", "output", 0, "generation_token_ids", to=[]),
            "came back without token ids (does policy_model set return_token_id_information: true?)",
        ),
        ({"reward": 1.0}, "came back without token ids (does policy_model set return_token_id_information: true?)"),
        (
            changed(SINGLE_TURN, "response", "output", 0, "generation_log_probs", to=[-0.1]),
            "model call 1 has 2 tokens and 1 log-probabilities",
        ),
        (
            changed(SINGLE_TURN, "response", "output", 0, "generation_log_probs", to=[-0.1, float("-inf")]),
            "model call 1 has a log-probability that is not finite",
        ),
        (
            changed(SINGLE_TURN, "response", "output", 0, "prompt_token_ids", to=[]),
            "model call 1 came back without the token ids of its prompt",
        ),
        (
            changed(TWO_TURNS, "response", "output", 0, "generation_token_ids", to=None),
            "a model call between others came back without token ids",
        ),
        (
            changed(TWO_TURNS, "response", "output", 2, "generation_token_ids", to=None),
            "the last model call came back without token ids",
        ),
    ],
)
def test_what_cannot_be_trusted_is_a_failed_rollout(result: dict[str, Any], reason: str) -> None:
    rollout = rollout_of(result)
    assert (rollout.reward, rollout.failure) == (None, reason)


def test_a_prompt_that_is_not_what_the_model_saw_fails_the_rollout() -> None:
    rollout = rollout_of(SINGLE_TURN, record(num_prompt_tokens=5))
    assert rollout.failure == "the model saw 5 prompt tokens in call 1, Gym reports 3"


def test_an_aborted_call_fails_the_rollout() -> None:
    assert rollout_of(SINGLE_TURN, record(finish_reason="abort")).failure == "vLLM aborted model call 1"


def test_a_full_context_before_the_first_token_and_after_it() -> None:
    cut = {"reason": "max_output_tokens"}
    nothing = changed(SINGLE_TURN, "response", "output", 0, "generation_token_ids", to=None)
    assert rollout_of(changed(nothing, "response", "incomplete_details", to=cut)).failure == (
        "the prompt leaves no room for a response within max_seq_length"
    )
    second = changed(TWO_TURNS, "response", "output", 2, "generation_token_ids", to=None)
    rollout = rollout_of(changed(second, "response", "incomplete_details", to=cut))
    assert (rollout.failure, rollout.truncated, len(rollout.turns)) == (None, True, 1)


def test_an_error_is_unwrapped_from_the_servers_it_passed() -> None:
    inner = "\"Hit an exception in VLLMModel___policy_model calling an inner server: b'no memory'\""
    outer = json.dumps(f"Hit an exception in SimpleAgent___agent calling an inner server: {inner.encode()!r}")
    assert http_failure(500, outer, agent="agent") == "500 from agent, in a server called by policy_model: no memory"
    assert http_failure(422, '{"detail": 1}', agent="agent") == '422 from agent: {"detail": 1}'
    assert http_failure(500, "", agent="agent").startswith("500 from agent: no message came with it")


def test_a_long_error_is_cut() -> None:
    assert len(http_failure(500, "x" * 5000, agent="agent")) < 700


def test_every_kind_of_item_has_a_readable_form() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": [{"text": "hm", "type": "summary_text"}]},
        {"type": "message", "role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"type": "image_call"},
    ]
    assert response_text(items) == "<think>hm</think>\n[user] look\nok\n[image_call]"
