"""The streaming client against an agent that answers as the test says."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest
from aiohttp import web

from gym_bridge.client import GymClient
from gym_bridge.types import Rollout, RolloutRequest
from launcher.schema.problems import RunFailed
from launcher.schema.sampling import Sampling

RESULT = {
    "response": {"output": [{
        "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes " * 60}],
        "prompt_token_ids": list(range(40)), "generation_token_ids": list(range(60)),
        "generation_log_probs": [-0.5] * 60,
    }]},
    "reward": 1.0,
}  # fmt: skip
Answer = Callable[[dict[str, Any]], Awaitable[web.Response]]


@asynccontextmanager
async def agent(answer: Answer) -> AsyncIterator[str]:
    async def run(request: web.Request) -> web.Response:
        return await answer(await request.json())

    app = web.Application()
    app.router.add_post("/run", run)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def for_ever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


def client_of(url: str, watch: Callable[[], Awaitable[None]] = for_ever) -> GymClient:
    sampling = Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64)
    return GymClient({"agent": url}, sampling=sampling, find_call=lambda _: None, watch=watch)


def requests(num_requests: int) -> list[RolloutRequest]:
    row = {"responses_create_params": {"input": "hi"}, "agent_ref": {"name": "agent"}}
    return [RolloutRequest(group_id=i, rollout_id=0, row_index=i, row={**row, "i": i}) for i in range(num_requests)]


async def collected(
    client: GymClient, num_requests: int, *, max_in_flight: int = 256, timeout_s: float = 30.0
) -> list[Rollout]:
    rollouts = client.rollouts(
        requests(num_requests), max_in_flight=max_in_flight, timeout_s=timeout_s, policy_version=0
    )
    return [rollout async for rollout in rollouts]


async def at_once(_: dict[str, Any]) -> web.Response:
    return web.json_response(RESULT)


def test_a_thousand_rollouts_cost_at_most_5_ms_each() -> None:
    async def scenario() -> float:
        async with agent(at_once) as url:
            started = time.process_time()
            rollouts = await collected(client_of(url), 1000)
            assert [rollout.failure for rollout in rollouts] == [None] * 1000
            return time.process_time() - started  # the answering side's time is in it

    assert asyncio.run(scenario()) < 5.0


def test_rollouts_come_as_they_finish_and_no_more_than_allowed_are_in_flight() -> None:
    in_flight = most = 0

    async def scenario() -> list[Rollout]:
        three_arrived, eleven_came = asyncio.Event(), asyncio.Event()

        async def later(row: dict[str, Any]) -> web.Response:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            if in_flight == 3:
                three_arrived.set()
            await three_arrived.wait()
            await asyncio.sleep(0.05)  # a fourth would show itself
            if row["i"] == 0:
                await eleven_came.wait()
            in_flight -= 1
            return web.json_response(RESULT)

        rollouts = []
        async with agent(later) as url:
            stream = client_of(url).rollouts(requests(12), max_in_flight=3, timeout_s=60, policy_version=0)
            async for rollout in stream:
                rollouts.append(rollout)
                if len(rollouts) == 11:
                    eleven_came.set()
        return rollouts

    rollouts = asyncio.run(scenario())
    assert [rollout.failure for rollout in rollouts] == [None] * 12
    assert rollouts[-1].group_id == 0
    assert sorted(rollout.group_id for rollout in rollouts) == list(range(12))
    assert most == 3


def test_a_hang_and_an_answer_that_is_no_json_cost_only_themselves() -> None:
    async def answer(row: dict[str, Any]) -> web.Response:
        match row["i"]:
            case 1:
                await asyncio.sleep(60)
            case 2:
                return web.Response(text="<html>")
            case 3:
                return web.json_response([])
            case 4:
                return web.Response(body=b"\xff\xfe", content_type="application/json")
            case 5:
                return web.Response(text="[" * 100_000, content_type="application/json")
        return web.json_response(RESULT)

    async def scenario() -> dict[int, str | None]:
        async with agent(answer) as url:
            return {rollout.group_id: rollout.failure for rollout in await collected(client_of(url), 7, timeout_s=2.0)}

    assert asyncio.run(scenario()) == {
        0: None, 1: "timeout: no result after 2 s",
        2: "agent answered with something that is not a JSON object: '<html>'",
        3: "agent answered with something that is not a JSON object: '[]'",
        4: "agent answered with something that is not a JSON object: '\ufffd\ufffd'",
        5: f"agent answered with something that is not a JSON object: '{'[' * 80}'", 6: None,
    }  # fmt: skip


def test_an_agent_that_cannot_be_reached_fails_the_rollout_when_nobody_knows_why() -> None:
    (rollout,) = asyncio.run(collected(client_of("http://127.0.0.1:9"), 1))
    assert rollout.failure is not None
    assert rollout.failure.startswith("no connection to agent: ")


def test_the_death_of_a_server_ends_the_stream_and_wins_over_broken_connections() -> None:
    async def watch() -> NoReturn:
        await asyncio.sleep(0.2)
        raise RunFailed("server agent was killed")

    with pytest.raises(RunFailed, match="server agent was killed"):
        asyncio.run(collected(client_of("http://127.0.0.1:9", watch), 5))


def test_closing_the_stream_cancels_what_is_in_flight() -> None:
    async def answer(row: dict[str, Any]) -> web.Response:
        if row["i"] == 0:
            return web.json_response(RESULT)
        await asyncio.sleep(60)
        raise AssertionError

    async def scenario() -> None:
        async with agent(answer) as url:
            rollouts = client_of(url).rollouts(requests(8), max_in_flight=8, timeout_s=60, policy_version=0)
            first = await anext(rollouts)
            assert first.group_id == 0
            await rollouts.aclose()

    started = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - started < 30


def test_nothing_to_do() -> None:
    assert asyncio.run(collected(client_of("http://127.0.0.1:9"), 0)) == []


def test_the_body_is_the_row_with_the_run_s_sampling() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(row: dict[str, Any]) -> web.Response:
        bodies.append(row)
        return web.json_response(RESULT)

    async def scenario() -> None:
        async with agent(answer) as url:
            await collected(client_of(url), 1)

    asyncio.run(scenario())
    assert json.dumps(bodies[0]["responses_create_params"]) == (
        '{"input": "hi", "temperature": 1.0, "top_p": 1.0, "max_output_tokens": 64}'
    )
