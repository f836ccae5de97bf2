"""Waiting for several coroutines: the first failure decides, and nothing goes on behind anyone's back."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def all_of(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all; their results in order. When one fails the others are cancelled, waited for, and its error is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await _end(tasks)
    return [task.result() for task in tasks]


async def first_of[T](main: Coroutine[Any, Any, T], watch: Coroutine[Any, Any, Any]) -> T:
    """The result of ``main``, unless ``watch`` fails before; then ``main`` is cancelled and that error is raised."""
    tasks = [asyncio.ensure_future(main), asyncio.ensure_future(watch)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        working, watching = tasks
        if watching.done():  # also when both are: what died explains what failed
            watching.result()
        result: T = working.result()
        return result
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
