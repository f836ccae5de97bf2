"""Folders that are made once."""

import asyncio
from pathlib import Path

import pytest

from gym_bridge.once import made_once
from launcher.schema.problems import RunFailed


async def make(
    folder: Path, made: list[str], *, seconds: float = 0.0, timeout_s: float = 10.0, said: list[str] | None = None
) -> None:
    async def fill() -> None:
        folder.mkdir()
        (folder / "half").touch()
        await asyncio.sleep(seconds)
        (folder / "whole").touch()
        made.append(folder.name)

    await made_once(
        folder, fill, is_intact=lambda: (folder / "whole").exists(), what="making it", timeout_s=timeout_s,
        on_progress=(said if said is not None else []).append,
    )  # fmt: skip


def test_the_second_time_nothing_is_made(tmp_path: Path) -> None:
    made: list[str] = []
    asyncio.run(make(tmp_path / "a", made))
    asyncio.run(make(tmp_path / "a", made))
    assert made == ["a"]


def test_two_at_once_make_it_once_and_the_one_that_waits_says_so(tmp_path: Path) -> None:
    made: list[str] = []
    said: list[str] = []

    async def both() -> None:
        await asyncio.gather(*(make(tmp_path / "a", made, seconds=0.3, said=said) for _ in range(2)))

    asyncio.run(both())
    assert made == ["a"]
    assert said == ["waiting for another run: making it"]


def test_what_an_interrupted_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rubbish").touch()
    asyncio.run(make(tmp_path / "a", []))
    assert not (tmp_path / "a" / "rubbish").exists()


def test_a_finished_folder_that_broke_is_made_again(tmp_path: Path) -> None:
    made: list[str] = []
    asyncio.run(make(tmp_path / "a", made))
    (tmp_path / "a" / "whole").unlink()
    asyncio.run(make(tmp_path / "a", made))
    assert made == ["a", "a"]


def test_cancelling_leaves_nothing_and_frees_the_lock(tmp_path: Path) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(make(tmp_path / "a", [], seconds=60))
        while not (tmp_path / "a" / "half").exists():
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (tmp_path / "a").exists()
        await make(tmp_path / "a", [])

    asyncio.run(scenario())


def test_taking_too_long_is_a_failure_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"making it: not done after 0.1 s. Check that the package index"):
        asyncio.run(make(tmp_path / "a", [], seconds=60, timeout_s=0.1))
    assert not (tmp_path / "a").exists()
