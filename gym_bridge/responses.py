"""What a Gym agent's ``/run`` answered --> ``Rollout``, scored or failed with the reason. Pure.

    result = {"response": {"output": [item, ...], "incomplete_details"}, "reward", <numbers of the environment>}

One model call gives one or more items (reasoning, message, tool calls), and the last of them carries the call's token
ids and log-probabilities. Tool outputs and observations stand between calls. Whatever leaves a doubt about which tokens
were sampled, from which prompt and for which reward, makes the rollout a failed one: it must neither train nor set a
baseline.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gym_bridge.causes import missing_module
from gym_bridge.rows import content_text, prompt_text
from gym_bridge.types import CallRecord, Rollout, RolloutRequest, Turn

FindCall = Callable[[Sequence[int]], CallRecord | None]
"""Sampled token ids of a model call -> what the gateway recorded of it, None when it knows nothing."""

LONGEST_REASON = 600
_TOKEN_LISTS: Mapping[str, set[type]] = {
    "prompt_token_ids": {int},
    "generation_token_ids": {int},
    "generation_log_probs": {int, float},
}
_INNER_ERROR = re.compile(r"Hit an exception in \S+?___(\S+) calling an inner server: (.*)", re.DOTALL)


class UnusableError(Exception):
    """Why a result cannot be used; becomes ``Rollout.failure``."""


def finished_rollout(
    request: RolloutRequest,
    result: Mapping[str, Any],
    *,
    agent: str,
    find_call: FindCall,
    policy_version: int,
    duration_s: float,
) -> Rollout:
    """Read an answer of status 200.

    Args:
        request: what was asked.
        result: the JSON object that came back.
        agent: instance that answered.
        find_call: the gateway's records.
        policy_version: of calls that the gateway has no record of.
        duration_s: wall clock from request to result.
    """
    response = _mapping(result.get("response"))
    items = response.get("output")
    output = [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    cut_short = _mapping(response.get("incomplete_details")).get("reason") == "max_output_tokens"
    turns: tuple[Turn, ...] = ()
    records: list[CallRecord | None] = []
    failure = None
    reward = None
    try:
        _refuse_known_failures(result, output)
        calls = _model_calls(output)
        records = [find_call(item["generation_token_ids"]) for item in calls]
        turns = _turns(calls, records, cut_short=cut_short)
        _refuse_lost_calls(output, num_calls=len(calls), cut_short=cut_short)
        reward = _reward(result)
    except UnusableError as error:
        failure = str(error)
    return Rollout(
        group_id=request.group_id,
        rollout_id=request.rollout_id,
        row_index=request.row_index,
        agent=agent,
        turns=turns,
        reward=reward,
        failure=failure,
        truncated=cut_short or any(turn.finish_reason == "length" for turn in turns),
        policy_version=min((record.policy_version for record in records if record), default=policy_version),
        prompt=prompt_text(request.row),
        response=response_text(output),
        metrics=_metrics(request.row, result),
        duration_s=duration_s,
    )


def failed_rollout(
    request: RolloutRequest, reason: str, *, agent: str, policy_version: int, duration_s: float
) -> Rollout:
    """A rollout that gave no answer to read."""
    return Rollout(
        group_id=request.group_id,
        rollout_id=request.rollout_id,
        row_index=request.row_index,
        agent=agent,
        turns=(),
        reward=None,
        failure=reason,
        truncated=False,
        policy_version=policy_version,
        prompt=prompt_text(request.row),
        response="",
        duration_s=duration_s,
    )


def http_failure(status: int, body: str, *, agent: str) -> str:
    """Why an agent answered with an error, in one line.

    Gym wraps an error once per server that it passes, each time escaping the text again; unwrapped here.
    """
    callers = [agent]
    text = _unquoted(body)
    while match := _INNER_ERROR.fullmatch(text):
        callers.append(match[1])
        text = _unquoted(match[2])
    if "validation error" in text and re.search(r"\breward\b", text) and "None" in text:
        text = "verify() gave no finite reward (NaN arrives as null)"
    text = text.strip() or "no message came with it; the logs of the servers have more"
    inside = "" if len(callers) == 1 else f", in a server called by {callers[-1]}"
    cause = missing_module(text)
    return f"{status} from {agent}{inside}: {_shortened(text)}{'; ' if cause else ''}{cause}"


def response_text(output: Sequence[Mapping[str, Any]]) -> str:
    """All items of a response as a person reads them."""
    return "\n".join(filter(None, map(_item_text, output)))


def _item_text(item: Mapping[str, Any]) -> str:
    match item.get("type", "message"):
        case "message" if item.get("role") == "assistant":
            return content_text(item.get("content"))
        case "message":
            return f"[{item.get('role')}] {content_text(item.get('content'))}"
        case "reasoning":
            return f"<think>{content_text(item.get('summary'))}</think>"
        case "function_call":
            return f"[call] {item.get('name')}({item.get('arguments')})"
        case "function_call_output":
            return f"[output] {item.get('output')}"
        case other:
            return f"[{other}]"


def _refuse_known_failures(result: Mapping[str, Any], output: Sequence[Mapping[str, Any]]) -> None:
    if any(item.get("id") == "msg_empty" for item in output):
        # verifiers_agent answers 200 with reward 0 and one made-up token when the model call failed.
        raise UnusableError("the model call failed and the agent put an empty message in its place")
    for key in ("_ng_failure_class", "failure_kind"):
        if result.get(key):
            raise UnusableError(f"the agent reports {key} {result[key]!r} {result.get('failure_reason') or ''}".strip())
    if result.get("mask_sample"):
        raise UnusableError("the environment asks not to train on it (mask_sample)")


def _model_calls(output: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The items that carry a call's tokens, in order."""
    calls = [item for item in output if item.get("generation_token_ids")]
    for number, item in enumerate(calls, start=1):
        for key, types in _TOKEN_LISTS.items():
            values = item.get(key) or []
            if not isinstance(values, list) or not set(map(type, values)) <= types:
                raise UnusableError(f"{key} of model call {number} is not a list of numbers")
    return calls


def _mapping(value: object) -> Mapping[str, Any]:
    """An agent of the package's own may answer anything."""
    return value if isinstance(value, Mapping) else {}


def _turns(
    calls: Sequence[Mapping[str, Any]], records: Sequence[CallRecord | None], *, cut_short: bool
) -> tuple[Turn, ...]:
    turns = []
    for number, (item, record) in enumerate(zip(calls, records, strict=True), start=1):
        prompt, sampled = item.get("prompt_token_ids") or (), item["generation_token_ids"]
        logprobs = item.get("generation_log_probs") or ()
        if len(logprobs) != len(sampled):
            raise UnusableError(f"model call {number} has {len(sampled)} tokens and {len(logprobs)} log-probabilities")
        if not all(map(math.isfinite, logprobs)):
            raise UnusableError(f"model call {number} has a log-probability that is not finite")
        if not prompt:
            raise UnusableError(f"model call {number} came back without the token ids of its prompt")
        if record and record.num_prompt_tokens not in (None, len(prompt)):
            message = (
                f"the model saw {record.num_prompt_tokens} prompt tokens in call {number}, Gym reports {len(prompt)}"
            )
            raise UnusableError(message)
        if record and record.finish_reason == "abort":
            raise UnusableError(f"vLLM aborted model call {number}")
        last_was_cut = cut_short and number == len(calls)
        turns.append(
            Turn(
                prompt_token_ids=tuple(prompt),
                token_ids=tuple(sampled),
                logprobs=tuple(logprobs),
                finish_reason=record.finish_reason if record else "length" if last_was_cut else None,
            )
        )
    return tuple(turns)


def _refuse_lost_calls(output: Sequence[Mapping[str, Any]], *, num_calls: int, cut_short: bool) -> None:
    """Fail when something the model wrote stands there without its tokens."""
    if num_calls == 0:
        raise UnusableError(
            "the prompt leaves no room for a response within max_seq_length"
            if cut_short
            else "came back without token ids (does policy_model set return_token_id_information: true?)"
        )
    open_call = False  # items of a call whose tokens have not come yet
    for item in output:
        by_model = item.get("type") in ("reasoning", "function_call") or item.get("role") == "assistant"
        if not by_model and open_call:
            raise UnusableError("a model call between others came back without token ids")
        open_call = by_model and not item.get("generation_token_ids")
    # A last call that met a full context has no tokens: the rollout ends there, truncated.
    if open_call and not cut_short:
        raise UnusableError("the last model call came back without token ids")


def _reward(result: Mapping[str, Any]) -> float:
    reward = result.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise UnusableError(f"the reward is {reward!r}, not a finite number")
    return float(reward)


def _metrics(row: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers an environment reports beside the reward; row keys that it echoes are none."""
    nested = result.get("metrics")
    reported = {**result, **(nested if isinstance(nested, Mapping) else {})}
    return {
        key: float(value)
        for key, value in reported.items()
        if isinstance(value, int | float)
        and math.isfinite(value)
        and key not in ("reward", "mask_sample")
        and key not in row
        and not key.startswith("_ng_")
    }


def _unquoted(text: str) -> str:
    """Undo one level of JSON or Python quoting; the text itself when it has none."""
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = ast.literal_eval(text) if text[:2] in ("b'", 'b"') else text
        except (ValueError, SyntaxError):
            return text
    if isinstance(value, bytes):
        return _unquoted(value.decode(errors="replace"))
    return value if isinstance(value, str) else text


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}…"
