"""What is wrong with one row, in words: from bytes to a dictionary, from a dictionary to faults.

line --(parse_row)--> row --(row_faults)--> faults of its shape, its agent and, for verifiers, its own fields
"""

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from launcher.schema.problems import Problem
from launcher.schema.rows import ROW, VERIFIERS_ROW, PromptRow, ResponsesCreateParams

_ROLES = frozenset({"user", "assistant", "system", "developer"})
_MODEL_REQUEST_KEYS = tuple(ResponsesCreateParams.__annotations__)
_EXAMPLE_PARAMS = 'add "responses_create_params": {"input": [{"role": "user", "content": "..."}]}'
_EXAMPLE_AGENT = 'add "agent_ref": {"type": "responses_api_agents", "name": "<agent of the environment>"}'
_FIX_BY_KEY = {
    "responses_create_params": _EXAMPLE_PARAMS,
    "agent_ref": _EXAMPLE_AGENT,
    "agent_ref.type": 'write "type": "responses_api_agents"',
    "agent_ref.name": "name an agent instance: a top-level key of the environment's YAML",
    "responses_create_params.input": 'give at least one message: [{"role": "user", "content": "..."}]',
    "vf_env_id": "write the manifest's metadata.vf_env_id",
    "task_idx": "write the index of the row",
}


@dataclass(frozen=True, slots=True)
class RowFault:
    """One thing that is wrong with a row, before it is known where the row stands."""

    code: str
    message: str
    fix: str

    def as_problem(self, path: str) -> Problem:
        """The fault at ``file:line``."""
        return Problem(code=self.code, path=path, message=self.message, fix=self.fix)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowExpectations:
    """What an environment demands of its rows.

    Example:
        RowExpectations(agents=frozenset({"verifiers_agent"}), verifiers_agents=frozenset({"verifiers_agent"}),
                        vf_env_id="ascii-tree")
    """

    agents: frozenset[str]
    """Agent instances of the package."""
    verifiers_agents: frozenset[str]
    """Those among them that run ``verifiers`` environments."""
    vf_env_id: str | None
    """The manifest's metadata.vf_env_id."""


def parse_row(line: bytes) -> tuple[PromptRow | None, list[RowFault]]:
    """The object on a line, or None with the fault that prevents it; repeated keys are a fault beside the object."""
    try:
        row = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        return None, [_syntax_fault(line, str(error))]
    if not isinstance(row, dict):
        message = f"the line holds {_kind(row)}; a row is an object"
        return None, [RowFault("row-not-object", message, 'write one {"responses_create_params": ...} object a line')]
    if line.count(b'":') == _num_keys(row) and not _spaced_key(line):
        return row, []  # type: ignore[return-value]  # its shape is row_faults' business
    return row, _repeated_keys(line)  # type: ignore[return-value]


def is_plain(row: PromptRow) -> bool:
    """Whether a row is of the commonest right shape: nothing but messages of text. A fraction of the full check's time.

    A row of another shape may be right as well; the full check decides.
    """
    params, agent = row.get("responses_create_params"), row.get("agent_ref")
    if type(params) is not dict or len(params) != 1 or type(agent) is not dict:
        return False
    messages = params.get("input")
    if type(messages) is not list or not messages:
        return False
    for message in messages:
        if type(message) is not dict or len(message) != 2 or message.get("role") not in _ROLES:
            return False
        content = message.get("content")
        if type(content) is not str or not content:
            return False
    name = agent.get("name")
    return agent.get("type") == "responses_api_agents" and type(name) is str and name != ""


def row_faults(row: PromptRow, expected: RowExpectations | None) -> list[RowFault]:
    """All faults of a row.

    Args:
        row: the object as it stands in the file.
        expected: what the environment demands; None leaves agents and verifiers fields alone.
    """
    faults: list[RowFault] = []
    if not is_plain(row):
        try:
            ROW.validator.validate_python(row)
        except ValidationError as error:
            faults += [_shape_fault(detail) for detail in error.errors(include_url=False)]
    if expected is None:
        return faults
    is_named = not faults or not any("agent_ref" in fault.message for fault in faults)
    agent = row["agent_ref"]["name"] if is_named else None
    if agent is not None and agent not in expected.agents:
        faults.append(_unknown_agent(agent, expected.agents))
    if agent in expected.verifiers_agents:
        faults += _verifiers_faults(row, expected.vf_env_id)
    return faults


def _verifiers_faults(row: PromptRow, vf_env_id: str | None) -> list[RowFault]:
    faults: list[RowFault] = []
    try:
        VERIFIERS_ROW.validator.validate_python(row)
    except ValidationError as error:
        faults += [_shape_fault(detail, code="row-verifiers") for detail in error.errors(include_url=False)]
    match row:
        case {"vf_env_id": str(given)} if given and vf_env_id is not None and given != vf_env_id:
            message = f"vf_env_id is {given!r}; the manifest's metadata.vf_env_id is {vf_env_id!r}"
            faults.append(RowFault("row-verifiers", message, f'write "vf_env_id": "{vf_env_id}"'))
    return faults


def _unknown_agent(agent: str, agents: frozenset[str]) -> RowFault:
    known = ", ".join(sorted(agents)) or "(none)"
    near = get_close_matches(agent, agents, n=1)
    fix = f'write "name": "{near[0]}"' if near else "name one of these agents, or add the agent to the package"
    return RowFault("row-agent", f"agent_ref.name is {agent!r}; agents of the environment: {known}", fix)


def _syntax_fault(line: bytes, reason: str) -> RowFault:
    if not line.endswith(b"\n") and ("EOF" in reason or "end of" in reason):
        return RowFault(
            "row-truncated", "the file ends in the middle of a row", "write the row to its end or delete it"
        )
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return RowFault("row-json", f"is not UTF-8 at byte {error.start + 1}", "save the file as UTF-8")
    return RowFault("row-json", f"is not JSON: {reason}", "write one complete JSON object on the line")


def _spaced_key(line: bytes) -> bool:
    """Whether white space stands between a key and its colon, where a count of ``":`` misses the key."""
    return (b" :" in line or b"\t:" in line or b"\r:" in line) and re.search(rb'"\s+:', line) is not None


def _repeated_keys(line: bytes) -> list[RowFault]:
    """Look again, slowly: Python's parser shows each object's keys before they are merged."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        merged = dict(pairs)
        if len(merged) != len(pairs):
            keys = [key for key, _ in pairs]
            repeated.extend(sorted({key for key in keys if keys.count(key) > 1}))
        return merged

    json.loads(line, object_pairs_hook=collect)
    return [
        RowFault("row-duplicate-key", f"key {_short(key)} stands twice in one object", "keep one of the two")
        for key in repeated
    ]


def _num_keys(value: dict[str, Any] | list[Any]) -> int:
    """Keys of all objects inside ``value``; the parser has bounded how deep they lie."""
    total, inner_values = (len(value), value.values()) if isinstance(value, dict) else (0, value)
    for inner in inner_values:
        if isinstance(inner, (dict, list)):
            total += _num_keys(inner)
    return total


def _shape_fault(detail: ErrorDetails, *, code: str = "row-shape") -> RowFault:
    key = _key_path(detail["loc"])
    found = _short(detail["input"])
    leaf = key.rsplit(".", 1)[-1]
    match detail["type"]:
        case "missing":
            message = f"{key} is missing"
        case "string_too_short" | "too_short":
            message = f"{key} is empty"
        case "literal_error":
            message = f"{key} is {found}; allowed: {detail['ctx']['expected']}"
        case "extra_forbidden":
            near = get_close_matches(leaf, _MODEL_REQUEST_KEYS, n=1)
            hint = f"write {near[0]!r}" if near else "move it out of responses_create_params, beside agent_ref"
            return RowFault(code, f"{key} is no key of a model request", hint)
        case _:
            message = f"{key} is {found}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
    if ".tools[" in key and isinstance(detail["input"], dict) and "function" in detail["input"]:
        fix = 'Responses API tools are flat: {"type": "function", "name": ..., "parameters": ..., "strict": ...}'
        return RowFault(code, message, fix)
    return RowFault(code, message, _FIX_BY_KEY.get(key, f"correct {key}"))


def _key_path(location: tuple[int | str, ...]) -> str:
    """``("responses_create_params", "input", "<list>", 0, "role")`` -> ``responses_create_params.input[0].role``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "a list"
        case str():
            return "a string"
        case _:
            return repr(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
