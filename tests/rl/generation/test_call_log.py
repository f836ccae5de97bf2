"""Model calls on their way from the gateway to the driver."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gym_bridge.types import CallRecord
from rl.generation.call_log import CallLog, CallLogReader, finish_reason


def record(reason: str = "stop", version: int = 1, prompt: int | None = 5) -> CallRecord:
    return CallRecord(finish_reason=finish_reason(reason), policy_version=version, num_prompt_tokens=prompt)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[CallLogReader, CallLog]]:
    with closing(CallLogReader(tmp_path / "calls")) as reader, closing(CallLog(tmp_path / "calls")) as log:
        yield reader, log


def test_a_call_is_found_as_soon_as_it_is_written(ends):
    reader, log = ends
    assert reader.find([1, 2]) is None
    log.add([1, 2], record())
    assert reader.find((1, 2)) == record()


def test_half_a_line_waits_for_the_rest(ends, tmp_path):
    reader, log = ends
    log.add([1], record())
    line = (tmp_path / "calls").read_text()
    with closing(CallLogReader(tmp_path / "half")) as other, (tmp_path / "half").open("w") as file:
        for half in (line[:10], line[10:]):
            assert other.find([1]) is None
            file.write(half)
            file.flush()
        assert other.find([1]) == reader.find([1]) == record()


def test_equal_responses_after_different_prompts_have_no_prompt_length(ends):
    reader, log = ends
    log.add([1], record(version=2, prompt=5))
    log.add([1], record(version=1, prompt=6))
    assert reader.find([1]) == record(version=1, prompt=None)


def test_forgotten_calls_are_gone(ends):
    reader, log = ends
    log.add([1], record())
    reader.forget()
    assert reader.find([1]) is None


def test_an_unknown_finish_reason_counts_as_aborted():
    assert [finish_reason(r) for r in ("stop", "length", "tool_calls", "abort", "error", None)] == [
        "stop", "length", "tool_calls", "abort", "abort", "abort",
    ]  # fmt: skip
