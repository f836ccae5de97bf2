"""Prompt rows: every fault with file:line, and the mechanical corrections."""

import json
import os
from pathlib import Path

import pytest

from launcher.dataset import MAX_PROBLEMS, check_rows, count_rows, find_dataset, read_rows
from launcher.row_faults import RowExpectations
from launcher.row_repair import repair_dataset
from launcher.schema.problems import LauncherError

LISTS = RowExpectations(agents=frozenset({"lists_agent"}), verifiers_agents=frozenset(), vf_env_id=None)
VERIFIERS = RowExpectations(
    agents=frozenset({"verifiers_agent"}), verifiers_agents=frozenset({"verifiers_agent"}), vf_env_id="ascii-tree"
)


def row(content: object = "Name two planets.", agent: str = "lists_agent", **extra: object) -> dict[str, object]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": content}]},
        "agent_ref": {"type": "responses_api_agents", "name": agent},
        **extra,
    }


def changed(**params: object) -> dict[str, object]:
    return {**row(), "responses_create_params": {"input": [{"role": "user", "content": "hi"}], **params}}


def verifiers_row(**changes: object) -> dict[str, object]:
    return {**row(agent="verifiers_agent", vf_env_id="ascii-tree", task_idx=0, answer=""), **changes}


def write(folder: Path, *lines: object, end: str = "\n") -> Path:
    path = folder / "training.jsonl"
    path.write_bytes("".join((x if isinstance(x, str) else json.dumps(x)) + end for x in lines).encode())
    return path


def faults(folder: Path, *lines: object, expected: RowExpectations | None = LISTS) -> list[tuple[str, str]]:
    path = write(folder, *lines)
    report = check_rows(path, expected=expected)
    return [(problem.path.removeprefix(f"{path}:"), problem.message) for problem in report.problems]


def test_right_rows_have_none_and_are_counted(tmp_path):
    tools = [{"type": "function", "name": "look", "parameters": {}, "strict": None}]
    path = write(tmp_path, row("abc"), row("abcdefgh"), changed(tools=tools), row(answer=3))
    report = check_rows(path, expected=LISTS)
    assert report.problems == ()
    assert (report.num_rows, report.num_bad_rows, report.num_rows_with_tools) == (4, 0, 1)
    assert report.agents == {"lists_agent": 4}
    assert (report.prompt_characters.p50, report.prompt_characters.max) == (3, 17)
    assert count_rows(path) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "the line holds a list; a row is an object"),
        ("3", "the line holds 3; a row is an object"),
        ('{"a": 1,}', "is not JSON"),
        ('{"a": NaN}', "is not JSON"),
        ('{"a": "\\ud800"}', "is not JSON"),
        ("[" * 10_000, "is not JSON"),
        ({"agent_ref": row()["agent_ref"]}, "responses_create_params is missing"),
        ({**row(), "responses_create_params": []}, "responses_create_params is []: input should be a valid dictionary"),
        (changed(input=[]), "responses_create_params.input is empty"),
        (changed(input=""), "responses_create_params.input is empty"),
        (changed(input=[{"role": "bot", "content": "a"}]), "responses_create_params.input[0].role is 'bot'; allowed: "),
        (changed(input=[{"role": "user"}]), "responses_create_params.input[0].content is missing"),
        (changed(input=[{"role": "user", "content": ""}]), "responses_create_params.input[0].content is empty"),
        (changed(input=[{"role": "user", "content": None}]), "responses_create_params.input[0].content is None"),
        (changed(input=[{"role": "user", "content": [{"type": "text"}]}]), "input[0].content[0].type is 'text'"),
        (changed(input=["hello"]), "responses_create_params.input[0] is 'hello'"),
        (changed(input=[{"type": "function_call", "name": "a", "arguments": {}}]), "input[0].arguments is {}"),
        (changed(temprature=1.0), "responses_create_params.temprature is no key of a model request"),
        (changed(tools={}), "responses_create_params.tools is {}"),
        (changed(tools=[{"type": "function", "name": "a", "parameters": {}}]), "tools[0].strict is missing"),
        (changed(tools=[{"type": "web_search"}]), "tools[0].type is 'web_search'; allowed: 'function'"),
        ({"responses_create_params": row()["responses_create_params"]}, "agent_ref is missing"),
        ({**row(), "agent_ref": "lists_agent"}, "agent_ref is 'lists_agent'"),
        ({**row(), "agent_ref": {"name": "lists_agent"}}, "agent_ref.type is missing"),
        (row(agent="list_agent"), "agent_ref.name is 'list_agent'; agents of the environment: lists_agent"),
    ],
)  # fmt: skip
def test_each_fault_is_told_with_its_line(tmp_path, line, message):
    found = faults(tmp_path, row(n=1), line, row(n=2))
    assert [place for place, _ in found if place != "2"] == []
    assert any(message in text for _, text in found), found


def test_all_faults_of_a_row_are_told(tmp_path):
    bad = {"responses_create_params": {"input": [{"role": "bot"}], "tools": 3}, "agent_ref": {"type": "x"}}
    assert {text.split(" ")[0] for _, text in faults(tmp_path, bad)} == {
        "responses_create_params.input[0].role",
        "responses_create_params.input[0].content",
        "responses_create_params.tools",
        "agent_ref.type",
        "agent_ref.name",
    }


def test_nested_tools_get_the_right_fix(tmp_path):
    nested = changed(tools=[{"type": "function", "function": {"name": "a", "parameters": {}}}])
    problems = check_rows(write(tmp_path, nested)).problems
    assert "Responses API tools are flat" in problems[0].fix


def test_lines_that_are_no_rows(tmp_path):
    path = tmp_path / "training.jsonl"
    good = json.dumps(row()).encode()
    path.write_bytes(b"\xef\xbb\xbf" + good + b"\r\n" + b" \n" + good[:-5] + b"x\r\n" + b"\xff\n" + good[:-4])
    found = [(p.path.removeprefix(f"{path}:"), p.code) for p in check_rows(path).problems]
    assert found == [
        ("1", "row-bom"),
        ("1", "row-crlf"),
        ("2", "row-blank"),
        ("3", "row-json"),
        ("4", "row-json"),
        ("5", "row-truncated"),
        (str(path), "row-crlf"),
    ]


def test_duplicate_keys_at_any_depth_and_spelling(tmp_path):
    text = json.dumps(row(info={"b": 1}))
    for old, new in (
        ('"b": 1', '"b": 1, "b": 2'),
        ('"b": 1', '"b" : 1, "b":2'),
        ('{"role"', '{"role": "user", "role"'),
    ):
        ((place, message),) = faults(tmp_path, text.replace(old, new))
        assert (place, "stands twice in one object" in message) == ("1", True)
    assert faults(tmp_path, text.replace('"b": 1', '"b": "a\\": 1"')) == []


def test_the_same_row_twice_is_a_warning_in_training_only(tmp_path):
    path = write(tmp_path, row(n=1), row(n=2), row(n=1), row(n=1))
    report = check_rows(path)
    assert [(p.path, p.severity, p.message) for p in report.problems] == [
        (f"{path}:3", "warning", "is the same row as line 1"),
        (f"{path}:4", "warning", "is the same row as line 1"),
    ]
    assert check_rows(path, find_repeated=False).problems == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vf_env_id": "ascii-tre"}, "vf_env_id is 'ascii-tre'; the manifest's metadata.vf_env_id is 'ascii-tree'"),
        ({"task_idx": "0"}, "task_idx is '0'"),
        ({"answer": 7}, "answer is 7"),
        ({"info": "x"}, "info is 'x'"),
    ],
)
def test_verifiers_rows(tmp_path, change, message):
    ((_, text),) = faults(tmp_path, verifiers_row(**change), expected=VERIFIERS)
    assert message in text


def test_verifiers_rows_need_their_fields(tmp_path):
    found = faults(tmp_path, row(agent="verifiers_agent"), expected=VERIFIERS)
    assert [text for _, text in found] == ["vf_env_id is missing", "task_idx is missing"]


def test_the_published_row_is_right(tmp_path):
    published = {
        "task_idx": 0, "vf_env_id": "ascii-tree",
        "responses_create_params": {"input": [{"role": "user", "content": "Draw a binary tree of depth 3."}]},
        "agent_ref": {"type": "responses_api_agents", "name": "verifiers_agent"},
        "question": "Draw a binary tree of depth 3.", "answer": "", "task": "ascii-tree",
        "example_id": "ex-0", "info": {},
    }  # fmt: skip
    assert faults(tmp_path, published, expected=VERIFIERS) == []


def test_reading_keeps_extra_keys_and_stops_at_the_first_bad_row(tmp_path):
    path = write(tmp_path, row(expected=3), "{}")
    rows = read_rows(path)
    assert next(rows) == (1, row(expected=3))
    with pytest.raises(LauncherError, match=r"training\.jsonl:2: responses_create_params is missing"):
        next(rows)


def test_problems_are_bounded_and_the_rest_is_counted(tmp_path):
    report = check_rows(write(tmp_path, *["{}"] * (MAX_PROBLEMS + 5)))
    assert len(report.problems) == MAX_PROBLEMS + 1
    assert report.problems[-1].message == f"{MAX_PROBLEMS + 10} more faults; {MAX_PROBLEMS + 5} bad rows in all"


def test_a_line_without_end_is_reported_and_not_read_into_memory(tmp_path):
    path = tmp_path / "training.jsonl"
    path.touch()
    os.truncate(path, 5 * 2**30)
    (problem,) = check_rows(path).problems
    assert (problem.path, problem.code) == (f"{path}:1", "row-too-long")


def test_datasets_are_a_folder_or_a_file(tmp_path):
    with pytest.raises(LauncherError, match=r"needs training\.jsonl; the folder holds nothing"):
        find_dataset(tmp_path)
    path = write(tmp_path, row())
    assert find_dataset(tmp_path).validation is None
    assert find_dataset(path).training == path
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nothing", "a\0b"):
        with pytest.raises(LauncherError):
            find_dataset(tmp_path / name)
    with pytest.raises(LauncherError, match="holds no row"):
        raise LauncherError(check_rows(write(tmp_path)).problems)


def test_mechanical_faults_are_corrected_in_a_copy(tmp_path):
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    lines = [
        verifiers_row(),
        {k: v for k, v in verifiers_row(answer=7, vf_env_id="old").items() if k not in ("agent_ref", "task_idx")},
        "",
        {**verifiers_row(task_idx=2), "agent_ref": "verifiers_agent"},
        {**verifiers_row(task_idx=3), "agent_ref": {"name": "verifiers_agent"}},
        {**verifiers_row(task_idx=4), "responses_create_params": changed(tools=[tool])["responses_create_params"]},
    ]
    source = write(tmp_path, *lines, end="\r\n")
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    before = source.read_bytes()
    out = tmp_path / "fixed.jsonl"
    made = repair_dataset(find_dataset(source), out, expected=VERIFIERS)
    assert made == {
        "byte order mark removed": 1, "CRLF replaced by LF": 6, "blank line removed": 1,
        "agent_ref set to the only agent": 1, "agent_ref written as an object": 1, "agent_ref.type added": 1,
        "vf_env_id set to the manifest's": 1, "task_idx set to the row's index": 1, "answer written as text": 1,
        "tool flattened": 1, "tool strict added as null": 1,
    }  # fmt: skip
    assert check_rows(out, expected=VERIFIERS).problems == ()
    assert [content["task_idx"] for _, content in read_rows(out)] == [0, 1, 2, 3, 4]
    assert source.read_bytes() == before
    with pytest.raises(LauncherError, match="exists already"):
        repair_dataset(find_dataset(source), out, expected=VERIFIERS)


def test_what_has_two_possible_corrections_is_left_alone(tmp_path):
    two = RowExpectations(agents=frozenset({"a", "b"}), verifiers_agents=frozenset(), vf_env_id=None)
    source = write(tmp_path, {"responses_create_params": {"input": "x"}}, '{"cut": ')
    out = tmp_path / "fixed"
    assert repair_dataset(find_dataset(tmp_path), out, expected=two) == {}
    assert (out / "training.jsonl").read_bytes() == source.read_bytes()
