"""Mechanical corrections of rows: those with one possible outcome. Always into a new file.

line --(line ends, byte order mark, blank)--> row --(agent, verifiers fields, tools)--> line
A row that needs none of the latter keeps its bytes.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.dataset import BYTE_ORDER_MARK, DatasetFiles, open_rows, row_lines
from launcher.row_faults import RowExpectations, parse_row
from launcher.schema.problems import LauncherError, Problem


def repair_dataset(dataset: DatasetFiles, out: Path, *, expected: RowExpectations | None) -> Counter[str]:
    """Write a corrected copy of a dataset.

    Args:
        dataset: its files.
        out: a new file for a dataset of one file, else a new folder.
        expected: what the environment demands; None corrects what needs no environment.

    Returns:
        How often each correction was made.

    Raises:
        LauncherError: ``out`` exists or cannot be written. What cannot be corrected is kept as it is.
    """
    if out.exists():
        raise _refused(out, "exists already")
    sources = [path for path in (dataset.training, dataset.validation) if path is not None]
    made: Counter[str] = Counter()
    try:
        (out if dataset.is_folder else out.parent).mkdir(parents=True, exist_ok=not dataset.is_folder)
        for source in sources:
            target = out / source.name if dataset.is_folder else out
            part = target.with_name(f".{target.name}.part")
            with part.open("wb") as file:
                file.writelines(_repaired_lines(source, expected=expected, made=made))
            part.replace(target)
    except OSError as error:
        raise _refused(out, f"cannot be written: {error.strerror}") from None
    return made


def repaired_row(row: dict[str, Any], index: int, expected: RowExpectations | None) -> list[str]:
    """Correct ``row`` in place; the names of the corrections made.

    Args:
        row: any JSON object.
        index: its 0-based place among the rows.
        expected: what the environment demands of it.
    """
    made: list[str] = []
    params = row.get("responses_create_params")
    tools = params.get("tools") if isinstance(params, dict) else None
    if isinstance(tools, list):
        made += [name for tool in tools if isinstance(tool, dict) for name in _repaired_tool(tool)]
    if expected is None:
        return made
    made += _repaired_agent(row, expected)
    agent = row.get("agent_ref")
    if not isinstance(agent, dict) or agent.get("name") not in expected.verifiers_agents:
        return made
    if expected.vf_env_id is not None and row.get("vf_env_id") != expected.vf_env_id:
        row["vf_env_id"] = expected.vf_env_id
        made.append("vf_env_id set to the manifest's")
    if row.get("task_idx") is None:
        row["task_idx"] = index
        made.append("task_idx set to the row's index")
    answer = row.get("answer")
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        row["answer"] = str(answer)
        made.append("answer written as text")
    return made


def _refused(out: Path, message: str) -> LauncherError:
    return LauncherError([Problem(code="fix-target", path=str(out), message=message, fix="give --fix another path")])


def _repaired_lines(source: Path, *, expected: RowExpectations | None, made: Counter[str]) -> Iterator[bytes]:
    index = 0
    with open_rows(source) as file:
        for number, line in enumerate(row_lines(file), start=1):
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if number == 1 and text.startswith(BYTE_ORDER_MARK):
                text = text[len(BYTE_ORDER_MARK) :]
                made["byte order mark removed"] += 1
            if line.endswith(b"\r\n"):
                made["CRLF replaced by LF"] += 1
            if not text.strip():
                made["blank line removed"] += 1
                continue
            row, faults = parse_row(text + b"\n")
            if row is not None and not faults:
                content: dict[str, Any] = dict(row)
                names = repaired_row(content, index, expected)
                made.update(names)
                text = json.dumps(content, ensure_ascii=False).encode() if names else text
            index += 1
            yield text + b"\n"


def _repaired_agent(row: dict[str, Any], expected: RowExpectations) -> list[str]:
    given = row.get("agent_ref")
    match given:
        case None if len(expected.agents) == 1:
            row["agent_ref"] = {"type": "responses_api_agents", "name": next(iter(expected.agents))}
            return ["agent_ref set to the only agent"]
        case str(name) if name in expected.agents:
            row["agent_ref"] = {"type": "responses_api_agents", "name": name}
            return ["agent_ref written as an object"]
        case {"name": str(name), **rest} if name in expected.agents and "type" not in rest:
            row["agent_ref"] = {"type": "responses_api_agents", "name": name, **rest}
            return ["agent_ref.type added"]
    return []


def _repaired_tool(tool: dict[str, Any]) -> list[str]:
    """Chat-completions tools are nested; Responses tools are flat and say ``strict``."""
    made: list[str] = []
    match tool:
        case {"type": "function", "function": {"name": str(), **_unused}}:
            tool.update(tool.pop("function"))
            made.append("tool flattened")
    if tool.get("type") == "function" and isinstance(tool.get("name"), str):
        for key in ("parameters", "strict"):
            if key not in tool:
                tool[key] = None
                made.append(f"tool {key} added as null")
    return made
