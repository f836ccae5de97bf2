"""Packages made to do harm: a problem each, in bounded time and memory, nothing followed, nothing written."""

import os
import resource
import time
from pathlib import Path

import pytest

from launcher.environment.package import check_package
from launcher.local_files import MAX_FILES

MANIFEST = "nemo-environment.yaml"
SERVER = "resources_servers/lists/configs/lists.yaml"


def errors(root: Path) -> list[tuple[str, str]]:
    return [(problem.path, problem.message) for problem in check_package(root) if problem.severity == "error"]


def only_error(root: Path) -> str:
    found = errors(root)
    assert len(found) == 1, found
    return ": ".join(found[0])


@pytest.fixture(autouse=True)
def bounded():
    """Each of these ends within seconds, a minute on a busy machine, and does not grow the process."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def test_symlinks_of_files_folders_and_configs(native):
    root = native({})
    (root / "notes.txt").symlink_to("/etc/passwd")
    assert only_error(root) == "notes.txt: is a symlink"
    (root / "notes.txt").unlink()
    (root / "etc").symlink_to("/etc")
    assert only_error(root) == "etc: is a symlink"
    (root / "etc").unlink()
    (root / SERVER).rename(root / "real.yaml")
    (root / SERVER).symlink_to(root / "real.yaml")
    assert only_error(root) == f"{SERVER}: is a symlink"


def test_a_symlinked_manifest_is_not_read(native):
    root = native({})
    (root / MANIFEST).rename(root / "real.yaml")
    (root / MANIFEST).symlink_to("real.yaml")
    assert (MANIFEST, "is a symlink") in errors(root)


def test_hard_links(native):
    root = native({})
    os.link(root / SERVER, root.parent / "elsewhere.yaml")
    assert only_error(root) == f"{SERVER}: is a hard link: the file has 2 names"


def test_pipes_and_sockets(native):
    root = native({})
    os.mkfifo(root / "pipe")
    assert "device, pipe or socket" in only_error(root)


@pytest.mark.parametrize("name", ["a\nb", "a\x1bb", "a\\b", "a b", "a;rm -rf", "$(id)", "a'b"])
def test_names_that_a_shell_would_read(native, name):
    assert len(errors(native({name: ""}))) == 1


def test_names_that_are_not_utf8(native):
    root = native({})
    with open(os.fsencode(root) + b"/\xff", "w"):
        pass
    assert "is not valid UTF-8" in only_error(root)


def test_yaml_aliases_that_explode(native):
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    assert "through its aliases" in only_error(native({SERVER: f"a0: &a0 x\n{levels}"}))
    assert "through its aliases" in only_error(native({MANIFEST: f"a0: &a0 x\n{levels}"}))


def test_plain_aliases_are_fine(native):
    text = native({}).joinpath(SERVER).read_text().replace("domain: instruction", "domain: &d instruction")
    assert errors(native({SERVER: text + "other: *d\n"})) == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("a: " + "[" * 40, "nests deeper"),
        ("a: " + "[" * 10_000, "nesting depth"),
        ("a: " + "{a: " * 10_000, "nests deeper"),
        ("a: 2024-13-45\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [id]\n", "not valid YAML"),
        ("a: \x00\n", "not valid YAML"),
        ("a: *b\n", "not valid YAML"),
        ("[a]: 1\n", "used as a key"),
        ("a:\n\t- b\n", "tab"),
    ],
)
def test_yaml_that_is_none(native, text, phrase):
    assert phrase in only_error(native({SERVER: text}))


def test_not_utf8(native):
    assert "is not UTF-8" in only_error(native({SERVER: b"a: \xff\n"}))


def test_a_manifest_of_50_mb(native):
    root = native({MANIFEST: "# " + "x" * 100})
    os.truncate(root / MANIFEST, 50 * 2**20)
    assert "is larger than" in only_error(root)


def test_a_sparse_file_of_5_gb(native):
    root = native({"big.bin": ""})
    os.truncate(root / "big.bin", 5 * 2**30)
    assert "big.bin: is 5.0 GiB" in only_error(root)
    root = native({"big.bin": "", SERVER: ""})
    os.truncate(root / SERVER, 3 * 2**30)
    assert any("is larger than" in message for _, message in errors(root))


def test_a_wheel_of_5_gb_of_nothing(native):
    manifest = native({}).joinpath(MANIFEST).read_text().replace("native-v1", "wheels-v1")
    root = native({MANIFEST: manifest, "wheels/a-1-py3-none-any.whl": ""})
    os.truncate(root / "wheels/a-1-py3-none-any.whl", 3 * 2**30)
    assert "is no zip archive" in only_error(root)


def test_too_many_files(native):
    root = native({})
    (root / "many").mkdir()
    for index in range(MAX_FILES + 10):
        os.close(os.open(root / "many" / str(index), os.O_CREAT))
    assert "holds more than 50,000 files" in only_error(root)


def test_folders_in_folders(native):
    root = native({})
    deep = root
    for _ in range(400):
        deep = deep / "dddd"
    os.makedirs(deep)
    (deep / "f").touch()
    assert "is longer than" in only_error(root)


def test_a_package_that_is_no_folder(tmp_path):
    from launcher.schema.problems import LauncherError

    for path in (tmp_path / "nothing", Path("/dev/null"), Path("/etc/passwd")):
        with pytest.raises(LauncherError):
            check_package(path)
