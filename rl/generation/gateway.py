"""The gate in front of vLLM's OpenAI app: only this run's Gym, only this run's sampling, every model call on record.

Gym's model server --> Gateway --> vLLM's app
                        |  401 without the run's key
                        |  400 when a request samples differently from the run
                        |  fills in what a request leaves out
                        |  records finish reason and policy version under the sampled tokens
                        '- puts the token ids where Gym looks for them
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from gym_bridge.types import CallRecord
from launcher.schema.sampling import Sampling
from rl.generation.call_log import CallLog, finish_reason
from rl.generation.sampling_gate import sampling_differences, with_sampling

type Message = MutableMapping[str, Any]
type Scope = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type App = Callable[[Scope, Receive, Send], Awaitable[None]]

COMPLETIONS = "/v1/chat/completions"
PASSED_PATHS = ("/v1/models", "/tokenize", "/detokenize", "/version")
"""What needs no look. Other ways to generate stay closed: their responses do not carry what training needs."""
OPEN_PATHS = ("/health",)
"""Answered without the key."""
MOST_BODY_BYTES = 64 * 2**20
REPEATED_FOR_EVER = (429, 502, 503, 504, 520)
"""NeMo Gym 0.4.0 repeats requests that end so without limit; as 500 the rollout fails with its cause."""


class Gateway:
    """ASGI middleware around vLLM's app."""

    def __init__(self, app: App, *, model: str, sampling: Sampling, api_key: str, call_log: CallLog):
        self._app = app
        self._served_name = model
        self.model = model
        """What vLLM calls the weights that sample from now on; requests know them by the name they began with."""
        self.sampling = sampling
        """What every request is held to; one for a whole run."""
        self._authorization = f"Bearer {api_key}".encode()
        self._call_log = call_log
        self.policy_version = 0
        """Of the weights that sample from now on."""
        self.in_flight = 0
        """Model calls that have not been answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"]
        if path in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif not self._is_authorized(scope):
            await _answer(send, 401, "this server belongs to a training run and answers only its environment")
        elif path == COMPLETIONS:
            await self._complete(scope, receive, send)
        elif path in PASSED_PATHS:
            await self._app(scope, receive, send)
        else:
            open_paths = ", ".join((COMPLETIONS, *PASSED_PATHS, *OPEN_PATHS))
            await _answer(send, 404, f"{path} is closed during training; open are {open_paths}")

    def _is_authorized(self, scope: Scope) -> bool:
        given: bytes = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(given, self._authorization)

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, forward and record one chat completion."""
        body = await _read_body(receive)
        if body is None:
            await _answer(send, 413, f"the request has more than {MOST_BODY_BYTES} bytes")
            return
        try:
            request = json.loads(body)
        except ValueError as error:
            await _answer(send, 400, f"the request is not JSON: {error}")
            return
        if not isinstance(request, dict):
            await _answer(send, 400, "the request is not a JSON object")
            return
        if differences := sampling_differences(request, self.sampling):
            await _answer(send, 400, "the request does not sample as the run does: " + "; ".join(differences))
            return
        policy_version = self.policy_version
        response = _HeldResponse()
        self.in_flight += 1
        try:
            named = request | {"model": self.model} if request.get("model") == self._served_name else request
            filled = json.dumps(with_sampling(named, self.sampling)).encode()
            await self._app(_resized(scope, len(filled)), _replay(filled, receive), response)
        finally:
            self.in_flight -= 1
        if response.status == 200:
            answer = json.loads(response.body)
            self._record(answer, policy_version)
            response.body = json.dumps(with_token_ids(answer, request)).encode()
        await response.release(send)

    def _record(self, answer: Mapping[str, Any], policy_version: int) -> None:
        for choice in answer["choices"]:
            record = CallRecord(
                finish_reason=finish_reason(choice["finish_reason"]),
                policy_version=policy_version,
                num_prompt_tokens=len(answer["prompt_token_ids"]),
            )
            self._call_log.add(choice["token_ids"], record)


def with_token_ids(answer: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with its token ids where NeMo Gym looks for them.

    Gym asks for ``return_tokens_as_token_ids``, reads the sampled ids out of the names of the log-probabilities, and
    tokenises the prompt once more in a second request, unless the message brings all three along. It does, so a model
    call is one request, and the prompt is the one that the model saw.
    """
    if not request.get("return_tokens_as_token_ids"):
        return dict(answer)
    return {
        **answer,
        "choices": [_with_token_ids(choice, answer["prompt_token_ids"]) for choice in answer["choices"]],
    }


def _with_token_ids(choice: Mapping[str, Any], prompt_token_ids: Sequence[int]) -> dict[str, Any]:
    content = (choice.get("logprobs") or {}).get("content") or []
    training = {
        "prompt_token_ids": prompt_token_ids,
        "generation_token_ids": choice["token_ids"],
        "generation_log_probs": [entry["logprob"] for entry in content],
    }
    return {**choice, "logprobs": None, "message": {**choice["message"], **training}}


class _HeldResponse:
    """Keeps a response back until it is complete."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self._headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            self.status = 500 if status in REPEATED_FOR_EVER else status
            self._headers = [(name, value) for name, value in message["headers"] if name != b"content-length"]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    async def release(self, send: Send) -> None:
        headers = [*self._headers, (b"content-length", str(len(self.body)).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, None when it is too large."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MOST_BODY_BYTES:
            return None
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the app the changed body once, then whatever comes (a disconnect)."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def _resized(scope: Scope, length: int) -> Scope:
    kept = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*kept, (b"content-length", str(length).encode())]}


async def _answer(send: Send, status: int, message: str) -> None:
    """An error in the shape that OpenAI clients read."""
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
