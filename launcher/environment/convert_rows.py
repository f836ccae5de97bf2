"""Examples of a ``verifiers`` dataset as prompt rows. Pure.

examples --(prompt_rows)--> rows --(split_rows)--> training rows, validation rows
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

AGENT = "verifiers_agent"


def prompt_rows(examples: Iterable[Mapping[str, Any]], *, vf_env_id: str) -> list[dict[str, Any]]:
    """Rows in the published shape, ``task_idx`` counting from 0.

    Args:
        examples: with ``prompt`` (chat messages, or one text) and, where the dataset has them, ``example_id``,
            ``answer``, ``task`` and ``info``.
        vf_env_id: what ``verifiers.load_environment()`` is asked for.
    """
    return [_row(index, example, vf_env_id) for index, example in enumerate(examples)]


def split_rows(
    rows: Sequence[dict[str, Any]], *, validation_fraction: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and validation rows; the last ones validate.

    Args:
        rows: all of them.
        validation_fraction: share of the rows that validate, 0 to below 1. Above 0 it is at least one row, and training
            keeps at least one, so that a single row is never held out.
    """
    wanted = max(1, round(len(rows) * validation_fraction)) if validation_fraction > 0 else 0
    num_training = max(min(1, len(rows)), len(rows) - wanted)
    return list(rows[:num_training]), list(rows[num_training:])


def _row(index: int, example: Mapping[str, Any], vf_env_id: str) -> dict[str, Any]:
    messages = _messages(example["prompt"])
    answer = example.get("answer")
    example_id = example.get("example_id")
    return {
        "task_idx": index,
        "vf_env_id": vf_env_id,
        "responses_create_params": {"input": messages},
        "agent_ref": {"type": "responses_api_agents", "name": AGENT},
        "question": next((m["content"] for m in reversed(messages) if m["role"] == "user"), ""),
        "answer": "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer),
        "task": str(example.get("task") or vf_env_id),
        "example_id": example_id if isinstance(example_id, int | str) else index,
        "info": _info(example.get("info")),
    }


def _messages(prompt: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A dataset's table gives every message every column: those that are empty were not written by anyone."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{key: value for key, value in message.items() if value is not None} for message in prompt]


def _info(info: Any) -> dict[str, Any]:
    """``verifiers`` stores it as a mapping or, so that rows may differ, as the JSON of one."""
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except json.JSONDecodeError:
            info = {"info": info}
    return info if isinstance(info, dict) else {}
