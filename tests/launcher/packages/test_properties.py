"""Random manifests, configs, listings, wheels and rows: a status of 0, 1 or 2, never a traceback."""

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import cli
from launcher.dataset import check_rows
from launcher.environment.layout import layout_problems
from launcher.environment.package import inspect_package
from launcher.environment.source import FolderSource
from launcher.local_files import Listing
from launcher.row_faults import RowExpectations, is_plain, parse_row, row_faults
from launcher.row_repair import repaired_row
from launcher.schema.manifest import MANIFEST
from launcher.schema.rows import ROW

unhurried = settings(deadline=None)  # a busy machine is no bug
EXPECTED = RowExpectations(agents=frozenset({"a"}), verifiers_agents=frozenset({"a"}), vf_env_id="v")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
words = st.sampled_from([
    "format", "config_paths", "metadata", "name", "adapter", "agent", "agent_type", "wheels-v1", "native-v1",
    "adapter-wheels-v1", "verifiers_agent", "configs/a.yaml", "../a", "responses_api_agents", "vf_env_id",
])  # fmt: skip
server_words = st.sampled_from([
    "policy_model", "responses_api_models", "resources_servers", "responses_api_agents", "vllm_model", "simple_agent",
    "entrypoint", "app.py", "domain", "math", "type", "name", "datasets", "jsonl_fpath", "${policy_base_url}", "???",
    "base_url", "config_paths", "head_server", "${x}", "return_token_id_information",
])  # fmt: skip
row_words = st.sampled_from([
    "responses_create_params", "input", "role", "user", "content", "type", "input_text", "text", "tools", "function",
    "name", "agent_ref", "responses_api_agents", "a", "vf_env_id", "v", "task_idx", "answer", "strict", "parameters",
])  # fmt: skip


def shaped(vocabulary: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Trees that use the words rules look for, so that they get past the first rule."""
    leaves = vocabulary | scalars
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(vocabulary, inner, max_size=5),
        max_leaves=25,
    )


def statuses_of(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        assert cli.main(["env", "validate", folder]) in (0, 1, 2)
        inspect_package(FolderSource(Path(folder)))


def dumped(tree: Any) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace")


@unhurried
@given(shaped(words) | trees)
def test_random_manifests(tree):
    statuses_of({"nemo-environment.yaml": dumped(tree), "configs/a.yaml": b"a: 1\n"})


@unhurried
@given(st.binary(max_size=200))
def test_random_bytes_as_manifest(content):
    statuses_of({"nemo-environment.yaml": content})


RIGHT = b"format: wheels-v1\nconfig_paths: [configs/a.yaml]\nmetadata: {name: a}\n"


@unhurried
@given(st.dictionaries(server_words | st.text(max_size=5), shaped(server_words), max_size=4))
def test_random_configs(tree):
    statuses_of({"nemo-environment.yaml": RIGHT, "configs/a.yaml": dumped(tree), "resources_servers/math/app.py": b""})


@unhurried
@given(
    st.text(st.characters(blacklist_characters="/\0", codec="utf-8"), min_size=1, max_size=30), st.binary(max_size=100)
)
def test_random_wheels(name, content):
    name = name if len(name.encode()) < 200 and name not in (".", "..") else "x"
    statuses_of({"nemo-environment.yaml": RIGHT, "configs/a.yaml": b"a: 1\n", f"wheels/{name}.whl": content})


@unhurried
@given(st.dictionaries(st.text(max_size=20), st.integers(min_value=0), max_size=8))
def test_random_listings(files):
    manifest = MANIFEST.validate_python(yaml.safe_load(RIGHT))
    for problem in layout_problems(manifest, Listing(files=files, problems=())):
        assert problem.message
        assert problem.fix


@unhurried
@given(shaped(row_words))
def test_random_rows_and_their_correction(tree):
    line = json.dumps(tree).encode()
    row, faults = parse_row(line)
    if row is not None:
        faults += row_faults(row, EXPECTED)
        repaired_row(dict(row), 0, EXPECTED)
    assert all(fault.message and fault.fix for fault in faults)


@unhurried
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_random_bytes_as_rows(lines):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "training.jsonl")
        path.write_bytes(b"\n".join(lines))
        check_rows(path, expected=EXPECTED)
        assert cli.main(["data", "check", str(path)]) in (0, 1, 2)


@unhurried
@given(shaped(row_words).filter(lambda tree: isinstance(tree, dict)))
def test_duplicate_keys_are_counted_right(tree):
    """The quick count of keys agrees with the slow one: a row without repeated keys has no fault of that kind."""
    _, faults = parse_row(json.dumps(tree).encode())
    assert [fault for fault in faults if fault.code == "row-duplicate-key"] == []


message = st.fixed_dictionaries({"role": row_words, "content": row_words | st.just("")})
plain_rows = st.fixed_dictionaries(
    {
        "responses_create_params": st.fixed_dictionaries({"input": st.lists(message, max_size=2)}),
        "agent_ref": st.fixed_dictionaries({"type": row_words, "name": row_words | st.just("")}),
    }
)


@unhurried
@given(plain_rows | shaped(row_words).filter(lambda tree: isinstance(tree, dict)))
def test_what_the_quick_check_accepts_the_full_check_accepts(tree):
    if is_plain(tree):
        ROW.validate_python(tree)
