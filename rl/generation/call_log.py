"""What the gateway saw of every model call, on its way from the vLLM actor to the driver: lines of one file.

    gateway: CallLog.add --> calls.jsonl (memory-backed folder) --> CallLogReader.find : driver

A line is written before the response leaves the gateway, so whoever holds a response finds its call.
"""

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gym_bridge.types import CallRecord, FinishReason


class CallLog:
    """The writing end."""

    def __init__(self, path: Path):
        self._file = path.open("a", encoding="ascii", buffering=1)

    def add(self, token_ids: Sequence[int], record: CallRecord) -> None:
        """Record a model call under the tokens that it sampled."""
        line = [_key(token_ids), record.finish_reason, record.policy_version, record.num_prompt_tokens]
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CallLogReader:
    """The reading end; reads on when it is asked for a call that it has not seen."""

    def __init__(self, path: Path):
        path.touch()
        self._file = path.open(encoding="ascii")
        self._unfinished = ""
        self._calls: dict[str, CallRecord] = {}

    def find(self, token_ids: Sequence[int]) -> CallRecord | None:
        """The call that sampled exactly these tokens, None if there was none.

        Several calls may have sampled the same tokens after different prompts; then the number of prompt tokens is
        None and the policy version the lowest.
        """
        key = _key(token_ids)
        if key not in self._calls:
            self._read_on()
        return self._calls.get(key)

    def forget(self) -> None:
        """Drop all calls so far; called when no rollout is in flight."""
        self._read_on()
        self._calls.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_on(self) -> None:
        *lines, self._unfinished = (self._unfinished + self._file.read()).split("\n")
        for line in lines:
            key, finish_reason, policy_version, num_prompt_tokens = json.loads(line)
            record = CallRecord(
                finish_reason=finish_reason, policy_version=policy_version, num_prompt_tokens=num_prompt_tokens
            )
            known = self._calls.get(key)
            self._calls[key] = record if known is None else _both(known, record)


def finish_reason(reported: object) -> FinishReason:
    """vLLM's finish reason under our names; anything unknown counts as aborted."""
    match reported:
        case "stop" | "length" | "tool_calls":
            return reported
        case _:
            return "abort"


def _both(one: CallRecord, other: CallRecord) -> CallRecord:
    same_prompt = one.num_prompt_tokens == other.num_prompt_tokens
    return replace(
        other,
        policy_version=min(one.policy_version, other.policy_version),
        num_prompt_tokens=other.num_prompt_tokens if same_prompt else None,
    )


def _key(token_ids: Sequence[int]) -> str:
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=12).hexdigest()
