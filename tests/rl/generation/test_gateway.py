"""The gate in front of vLLM's app, with an app that writes down what reaches it."""

import asyncio
import json
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.types import CallRecord
from launcher.schema.sampling import Sampling
from rl.generation.call_log import CallLog, CallLogReader
from rl.generation.gateway import COMPLETIONS, MOST_BODY_BYTES, Gateway
from rl.generation.sampling_gate import sampling_differences, with_sampling

SAMPLING = Sampling(temperature=0.7, top_p=1.0, top_k=20, max_new_tokens=64)
ANSWER = {
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "message": {"role": "assistant", "content": "ok"},
            "logprobs": {
                "content": [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:2", "logprob": -0.1}]
            },
            "token_ids": [7, 2],
            "finish_reason": "length",
        }
    ],
}


class RecordingApp:
    """Answers everything with one status and object."""

    def __init__(self, status: int = 200, answer: Any = ANSWER):
        self.status = status
        self.answer = answer
        self.requests: list[tuple[str, Any]] = []
        self.in_flight: list[int] = []
        self.gateway: Gateway | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        assert dict(scope["headers"])[b"content-length"] == str(len(body)).encode()
        self.requests.append((scope["path"], json.loads(body) if body else None))
        if self.gateway:
            self.in_flight.append(self.gateway.in_flight)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(self.answer).encode()})


class Caller:
    """A gateway in front of an app, and requests to it."""

    def __init__(self, folder: Path, app: RecordingApp):
        self.reader = CallLogReader(folder / "calls.jsonl")
        self.log = CallLog(folder / "calls.jsonl")
        self.gateway = Gateway(app, model="policy", sampling=SAMPLING, api_key="secret", call_log=self.log)
        app.gateway = self.gateway

    def close(self) -> None:
        self.reader.close()
        self.log.close()

    def post(self, path: str, body: object, *, key: str = "secret") -> tuple[int, Any]:
        return self.post_raw(path, json.dumps(body).encode(), key=key)

    def post_raw(self, path: str, body: bytes, *, key: str = "secret") -> tuple[int, Any]:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-length", str(len(body)).encode())]
        asyncio.run(self.gateway({"type": "http", "path": path, "headers": headers}, receive, send))
        return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def app() -> RecordingApp:
    return RecordingApp()


@pytest.fixture
def caller(tmp_path: Path, app: RecordingApp) -> Iterator[Caller]:
    with closing(Caller(tmp_path, app)) as caller:
        yield caller


def test_what_a_request_leaves_out_comes_from_the_run(caller, app):
    assert caller.post(COMPLETIONS, {"messages": [], "temperature": None})[0] == 200
    assert app.requests == [
        (
            COMPLETIONS,
            {
                "messages": [],
                "temperature": 0.7,
                "top_p": 1.0,
                "top_k": 20,
                "max_completion_tokens": 64,
                "return_token_ids": True,
            },
        )
    ]


def test_the_runs_own_values_and_a_lower_limit_pass(caller, app):
    request = {"temperature": 0.7, "top_p": 1, "top_k": 20, "max_tokens": 5, "stop": [], "n": 1, "logit_bias": {}}
    assert caller.post(COMPLETIONS, request)[0] == 200
    assert app.requests[0][1]["max_completion_tokens"] == 5
    assert "max_tokens" not in app.requests[0][1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temperature": 1.0}, "temperature is 1.0, the run's is 0.7"),
        ({"temperature": "0.7"}, "temperature is '0.7', the run's is 0.7"),
        ({"top_p": 0.9}, "top_p is 0.9, the run's is 1.0"),
        ({"top_k": 5}, "top_k is 5, the run's is 20"),
        ({"top_k": -1}, "top_k is -1, the run's is 20"),
        ({"max_tokens": 65}, "65 new tokens are allowed, training.max_new_tokens is 64"),
        ({"max_completion_tokens": 100}, "100 new tokens are allowed, training.max_new_tokens is 64"),
        ({"presence_penalty": 0.5}, "presence_penalty is 0.5, the run's is 0"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is 1.1, the run's is 1"),
        ({"logit_bias": {"5": 1}}, "logit_bias is {'5': 1}, the run's is {}"),
        ({"stop": "\n"}, "stop is '\\n', the run's is []"),
        ({"seed": 0}, "seed is 0, the run's is None"),
        ({"n": 2}, "n is 2, the run's is 1"),
        ({"ignore_eos": True}, "ignore_eos is True, the run's is False"),
        ({"response_format": {"type": "json_object"}}, "response_format is {'type': 'json_object'}"),
        ({"tool_choice": "required"}, "tool_choice is 'required', the run's is 'auto'"),
        ({"stream": True}, "stream is True, the run's is False"),
    ],
)
def test_other_sampling_is_refused_with_both_values(caller, app, change, said):
    status, answer = caller.post(COMPLETIONS, {"messages": []} | change)
    assert status == 400
    assert said in answer["error"]["message"]
    assert app.requests == []


def test_no_refusal_reads_like_a_prompt_that_is_too_long(caller):
    _, answer = caller.post(COMPLETIONS, {"max_tokens": 1000, "max_completion_tokens": 1000})
    assert "max_tokens" not in json.dumps(answer)
    assert "context length" not in json.dumps(answer)


def test_all_differences_are_named_together():
    found = sampling_differences({"temperature": 0.1, "top_k": 1, "stop": ["x"]}, SAMPLING)
    assert [text.split(" is ")[0] for text in found] == ["temperature", "stop", "top_k"]


def test_a_run_without_top_k_accepts_both_spellings_of_none():
    whole = Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=8)
    assert sampling_differences({"top_k": -1}, whole) == sampling_differences({"top_k": 0}, whole) == []
    assert with_sampling({}, whole)["top_k"] == 0


def test_constraints_on_tool_calls_are_lifted():
    tool = {"type": "function", "function": {"name": "look", "strict": True, "parameters": {}}}
    sent = with_sampling({"tools": [tool], "parallel_tool_calls": False}, SAMPLING)
    assert sent["tools"] == [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert "parallel_tool_calls" not in sent
    assert tool["function"]["strict"] is True


def test_the_policy_goes_by_the_name_of_its_latest_adapter(caller, app):
    caller.gateway.model = "policy-3"
    caller.post(COMPLETIONS, {"model": "policy"})
    caller.post(COMPLETIONS, {"model": "other"})
    assert [request["model"] for _, request in app.requests] == ["policy-3", "other"]


def test_a_call_is_found_by_the_tokens_it_sampled(caller):
    caller.gateway.policy_version = 3
    caller.post(COMPLETIONS, {})
    assert caller.reader.find((7, 2)) == CallRecord(finish_reason="length", policy_version=3, num_prompt_tokens=3)
    assert caller.reader.find((7, 3)) is None


def test_gym_gets_prompt_ids_sampled_ids_and_logprobs_in_the_message(caller):
    _, answer = caller.post(COMPLETIONS, {"logprobs": True, "return_tokens_as_token_ids": True})
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "ok",
        "prompt_token_ids": [1, 2, 3],
        "generation_token_ids": [7, 2],
        "generation_log_probs": [-0.5, -0.1],
    }
    assert answer["choices"][0]["logprobs"] is None


def test_who_does_not_ask_as_gym_does_gets_vllms_own_answer(caller):
    assert caller.post(COMPLETIONS, {"logprobs": True})[1] == ANSWER


@pytest.mark.parametrize("key", ["", "wrong", "secrets"])
def test_without_the_key_nothing_is_answered(caller, app, key):
    assert caller.post(COMPLETIONS, {}, key=key)[0] == 401
    assert app.requests == []


def test_tokenize_passes_and_other_ways_to_generate_are_closed(caller, app):
    assert caller.post("/tokenize", {"prompt": "x"})[0] == 200
    for path in ("/v1/completions", "/v1/responses", "/v1/messages", "/v1/chat/completions/batch", "/pause"):
        status, answer = caller.post(path, {})
        assert status == 404
        assert COMPLETIONS in answer["error"]["message"]
    assert [path for path, _ in app.requests] == ["/tokenize"]


@pytest.mark.parametrize(("status", "seen"), [(503, 500), (429, 500), (400, 400), (500, 500)])
def test_statuses_that_gym_repeats_for_ever_become_failures_with_their_cause(tmp_path, status, seen):
    app = RecordingApp(status=status, answer={"error": "why"})
    with closing(Caller(tmp_path, app)) as caller:
        assert caller.post(COMPLETIONS, {}) == (seen, {"error": "why"})


def test_calls_in_flight_are_counted(caller, app):
    caller.post(COMPLETIONS, {})
    assert app.in_flight == [1]
    assert caller.gateway.in_flight == 0


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"text"'])
def test_bodies_that_are_no_objects_are_refused(caller, body):
    assert caller.post_raw(COMPLETIONS, body)[0] == 400


def test_a_body_beyond_the_bound_is_refused(caller, app):
    assert caller.post_raw(COMPLETIONS, b" " * (MOST_BODY_BYTES + 1))[0] == 413
    assert app.requests == []
