"""FileSets on a local folder, in memory and on an S3 server: whole or not at all, whatever happens."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from launcher.filesets import FileSetStore
from launcher.schema.problems import LauncherError

FILES = {"nemo-environment.yaml": "format: x\n", "configs/a.yaml": "a\n", "configs/b.yaml": "b\n", "copy/a.yaml": "a\n"}


@pytest.fixture(scope="module")
def s3_root() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("sets")
        yield "s3://sets"
    server.stop()


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileSetStore:
    if request.param == "s3":
        return FileSetStore(f"{request.getfixturevalue('s3_root')}/{uuid.uuid4().hex}")
    return FileSetStore(str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}")


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_created_uploaded_listed_downloaded_deleted(store, tmp_path):
    source = write(tmp_path / "src", FILES)
    store.create("env", purpose="environment")
    report = store.upload(source, "env")
    assert (report.num_files, report.num_sent, report.num_reused) == (4, 3, 1)
    assert store.names() == ["default/env"]
    fileset = store.get("env")
    assert (fileset.purpose, sorted(fileset.files)) == ("environment", sorted(FILES))
    store.download(fileset, tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    store.delete("env")
    assert store.names() == []
    with pytest.raises(LauncherError, match="no such FileSet"):
        store.get("env")


def test_a_second_upload_sends_only_what_changed_and_keeps_or_replaces_the_rest(store, tmp_path):
    store.create("env", purpose="environment")
    store.upload(write(tmp_path / "src", FILES), "env")
    changed = write(tmp_path / "new", {"configs/a.yaml": "new\n", "configs/b.yaml": "b\n"})
    report = store.upload(changed, "env")
    assert (report.num_sent, report.num_reused, len(report.fileset.files)) == (1, 1, 4)
    assert sorted(store.upload(changed, "env", replace=True).fileset.files) == ["configs/a.yaml", "configs/b.yaml"]


def test_a_reader_of_the_old_set_can_finish_reading_it(store, tmp_path):
    store.create("env", purpose="environment")
    old = store.upload(write(tmp_path / "src", FILES), "env").fileset
    store.upload(write(tmp_path / "new", {"configs/a.yaml": "new\n"}), "env", replace=True)
    store.download(old, tmp_path / "out")
    assert contents(tmp_path / "out") == FILES


def test_purposes(store):
    store.create("env", purpose="environment")
    assert store.create("env", purpose="environment", exist_ok=True).purpose == "environment"
    with pytest.raises(LauncherError, match="exists already"):
        store.create("env", purpose="environment")
    with pytest.raises(LauncherError, match="exists with purpose 'environment', not 'dataset'"):
        store.create("env", purpose="dataset", exist_ok=True)


def test_workspaces_are_apart(store):
    store.create("env", purpose="dataset")
    store.create("env", workspace="team", purpose="environment")
    assert store.names() == ["default/env", "team/env"]
    assert store.names("team") == ["team/env"]


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", ".hidden", "ü", "a" * 300, "a\0"])
def test_names_that_cannot_be(store, name):
    with pytest.raises(LauncherError, match="is no name"):
        store.create(name, purpose="generic")
    assert store.find(name) is None


def test_damaged_content_is_noticed(tmp_path):
    store = FileSetStore(str(tmp_path / "store"))
    store.create("env", purpose="generic")
    fileset = store.upload(write(tmp_path / "src", {"a": "1234"}), "env").fileset
    (blob,) = (path for path in (tmp_path / "store").rglob("blobs/*/*") if path.is_file())
    blob.write_text("1235")
    with pytest.raises(LauncherError, match="a does not match its hash"):
        store.download(fileset, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["../../evil", "/etc/evil", "a/../../b", "a\\b", "a\nb", "a//b"])
def test_a_damaged_list_cannot_write_elsewhere(tmp_path, path):
    store = FileSetStore(str(tmp_path / "store"))
    fileset = store.create("env", purpose="generic")
    index = json.loads(fileset.model_dump_json())
    index["files"] = {path: {"size": 0, "sha256": "0" * 64}}
    (tmp_path / "store/default/env/fileset.json").write_text(json.dumps(index))
    with pytest.raises(LauncherError, match=r"fileset\.json is damaged"):
        store.get("env")


def test_a_file_and_a_folder_of_one_name_are_refused(store, tmp_path):
    store.create("env", purpose="generic")
    store.upload(write(tmp_path / "one", {"a": "x"}), "env")
    with pytest.raises(LauncherError, match="'a' is a file and the folder of 'a/b'"):
        store.upload(write(tmp_path / "two", {"a/b": "x"}), "env")
    assert list(store.get("env").files) == ["a"]


def test_links_in_the_source_are_refused(store, tmp_path):
    store.create("env", purpose="generic")
    source = write(tmp_path / "src", {"a": "x"})
    (source / "link").symlink_to("/etc/passwd")
    with pytest.raises(LauncherError, match="link: is a symlink"):
        store.upload(source, "env")
    assert store.get("env").files == {}


def test_a_folder_that_is_taken_is_not_written_into(store, tmp_path):
    store.create("env", purpose="generic")
    fileset = store.upload(write(tmp_path / "src", {"a": "x"}), "env").fileset
    with pytest.raises(LauncherError, match="not an empty folder"):
        store.download(fileset, tmp_path / "src")


def test_the_cache_holds_one_folder_per_content(store, tmp_path):
    store.create("env", purpose="generic")
    first = store.upload(write(tmp_path / "src", {"a": "x"}), "env").fileset
    folder = store.cached(first, tmp_path / "cache")
    assert store.cached(first, tmp_path / "cache") == folder
    second = store.upload(write(tmp_path / "src", {"a": "y"}), "env").fileset
    assert store.cached(second, tmp_path / "cache") != folder
    assert contents(folder) == {"a": "x"}


def test_uploads_at_the_same_time_do_not_lose_each_others_files(tmp_path):
    store = FileSetStore(str(tmp_path / "store"))
    store.create("env", purpose="generic")
    sources = [write(tmp_path / str(index), {f"{index}.txt": str(index)}) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda source: store.upload(source, "env"), sources))
    assert sorted(store.get("env").files) == [f"{index}.txt" for index in range(8)]


def test_storage_that_cannot_be_reached():
    with pytest.raises(LauncherError, match="storage failed"):
        FileSetStore("nosuch://bucket").names()


UPLOAD = """
import sys
from pathlib import Path
from launcher.filesets import FileSetStore
store = FileSetStore(sys.argv[1])
print("ready", flush=True)
store.upload(Path(sys.argv[2]), "env", replace=True)
print("done", flush=True)
"""


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_killed_at_random_instants_a_set_is_old_or_new(kind, tmp_path, request):
    root = f"{request.getfixturevalue('s3_root')}/killed" if kind == "s3" else str(tmp_path / "store")
    store = FileSetStore(root)
    store.create("env", purpose="generic")
    chance = random.Random(7)
    versions = {}
    for version in ("old", "new"):
        files = {f"{version}/{index}.bin": version * 20_000 + str(index) for index in range(12)}
        versions[version] = write(tmp_path / version, files)
    expected = {version: contents(folder) for version, folder in versions.items()}
    store.upload(versions["old"], "env", replace=True)
    began = time.monotonic()
    store.upload(versions["new"], "env", replace=True)
    duration = time.monotonic() - began
    store.delete("env")
    store.create("env", purpose="generic")
    store.upload(versions["old"], "env", replace=True)
    current, finished = "old", 0
    for attempt in range(10):
        target = "new" if current == "old" else "old"
        command = [sys.executable, "-c", UPLOAD, root, str(versions[target])]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, start_new_session=True, env=os.environ.copy()
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 1.2 * duration))
            os.killpg(process.pid, signal.SIGKILL)
        seen = store.get("env")
        out = tmp_path / f"out-{attempt}"
        store.download(seen, out)
        assert contents(out) in (expected["old"], expected["new"])
        current = "old" if contents(out) == expected["old"] else "new"
        finished += current == target
    report = store.upload(versions["new"], "env", replace=True)
    assert sorted(report.fileset.files) == sorted(expected["new"])


def test_a_file_that_another_upload_finishes_meanwhile_is_no_error(tmp_path, monkeypatch):
    store = FileSetStore(str(tmp_path / "store"))
    store.create("env", purpose="generic")
    part = tmp_path / "store/default/env/blobs/ab/abc.part"
    part.parent.mkdir(parents=True)
    part.touch()
    ask = store._fs.modified

    def finished_before_it_was_asked(path):
        part.unlink()
        return ask(path)

    monkeypatch.setattr(store._fs, "modified", finished_before_it_was_asked)
    store.upload(write(tmp_path / "source", {"a.txt": "a"}), "env")
    assert not part.exists()
    assert store.get("env").files.keys() == {"a.txt"}
