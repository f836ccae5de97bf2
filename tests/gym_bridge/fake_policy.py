"""An OpenAI-compatible policy that answers at once, for tests of everything around a model.

A token is a character's code point, so prompts and responses can be read off their ids. What it answers is chosen by
``answer``: (messages) -> text, or an ``Answer`` for tool calls, an error, a length cap or a pause. With a real model
behind it, it hands every call on and notes what came back.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    text: str = ""
    tool_calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    finish_reason: str = "stop"
    status: int = 200
    delay_s: float = 0.0
    sampled: str | None = None
    """What the tokens spell when it is not the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A real model to ask."""

    base_url: str
    api_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What a real model saw and sampled in one call."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(kw_only=True, slots=True)
class FakePolicy:
    answer: Callable[[Messages], str | Answer]
    behind: Behind | None = None
    calls: list[Call] = field(default_factory=list)
    """Of the model behind, in the order of their answers."""
    base_url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of all chat completions so far."""
    authorization: str = ""
    """Header of the last one."""

    async def chat_completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.authorization = request.headers.get("Authorization", "")
        if self.behind is not None:
            return await self._hand_on(body, self.behind)
        answer = self.answer(body["messages"])
        if isinstance(answer, str):
            answer = Answer(text=answer)
        await asyncio.sleep(answer.delay_s)
        if answer.status != 200:
            return web.json_response({"message": answer.text, "code": answer.status}, status=answer.status)
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.tool_calls:
            message["tool_calls"] = [
                {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for i, (name, arguments) in enumerate(answer.tool_calls, start=1)
            ]
        ids = tokens(sampled_text(answer))
        num_prompt = len(rendered(body["messages"]))
        usage = {"prompt_tokens": num_prompt, "completion_tokens": len(ids), "total_tokens": num_prompt + len(ids)}
        return web.json_response({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [{
                "index": 0, "message": message, "finish_reason": answer.finish_reason,
                "logprobs": {"content": [
                    {"token": f"token_id:{i}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for i in ids
                ]},
            }],
            "usage": usage,
        })  # fmt: skip

    async def _hand_on(self, body: dict[str, Any], behind: Behind) -> web.Response:
        headers = {"Authorization": f"Bearer {behind.api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{behind.base_url}/chat/completions", json=body) as response,
        ):
            answer = await response.json()
        if response.status == 200:
            (choice,) = answer["choices"]
            logprobs = tuple(choice["message"]["generation_log_probs"])
            self.calls.append(
                Call(
                    prompt_token_ids=tuple(answer["prompt_token_ids"]), token_ids=tuple(choice["token_ids"]),
                    logprobs=logprobs,
                )
            )  # fmt: skip
        return web.json_response(answer, status=response.status)

    async def tokenize(self, request: web.Request) -> web.Response:
        ids = tokens(rendered((await request.json())["messages"]))
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 100_000})


def tokens(text: str) -> list[int]:
    return [ord(character) for character in text]


def sampled_text(answer: Answer) -> str:
    if answer.sampled is not None:
        return answer.sampled
    calls = "".join(f"<call>{name} {json.dumps(arguments)}</call>" for name, arguments in answer.tool_calls)
    return answer.text + calls + ("" if answer.finish_reason == "length" else "$")


def rendered(messages: Messages) -> str:
    """A chat template: ``<role>content$`` for each message, ``<assistant>`` at the end."""
    parts = []
    for message in messages:
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = "".join(f"<call>{function['name']} {function['arguments']}</call>" for function in functions)
        parts.append(f"<{message['role']}>{message.get('content') or ''}{calls}$")
    return "".join(parts) + "<assistant>"


@asynccontextmanager
async def fake_policy(answer: Callable[[Messages], str | Answer]) -> AsyncIterator[FakePolicy]:
    """Serve on a free loopback port."""
    policy = FakePolicy(answer=answer)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", policy.chat_completions)
    app.router.add_post("/tokenize", policy.tokenize)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    policy.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield policy
    finally:
        await runner.cleanup()
