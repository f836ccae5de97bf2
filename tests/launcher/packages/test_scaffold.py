"""``grpo env new``: what it writes validates, its rows fit, its reward is tested and its wheel can be built again."""

import importlib.util
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launcher import cli
from launcher.dataset import check_rows
from launcher.environment.package import inspect_package, load_package, row_expectations
from launcher.environment.scaffold import scaffold_package
from launcher.environment.source import FolderSource
from launcher.environment.uv import find_uv
from launcher.schema.problems import LauncherError

FORMATS = ("native-v1", "wheels-v1", "adapter-wheels-v1")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["lists", "word-count", "word_count2"])
def test_scaffolded_packages_validate_and_their_rows_fit(tmp_path, format, name):
    scaffold = scaffold_package(name, format=format, into=tmp_path)
    inspection = inspect_package(FolderSource(Path(scaffold.package)), prove=True)
    assert inspection.is_valid, inspection.problems
    expected = row_expectations(load_package(Path(scaffold.package)))
    for file, num_rows in (("training.jsonl", 60), ("validation.jsonl", 24)):
        report = check_rows(Path(scaffold.dataset, file), expected=expected)
        assert (report.num_rows, report.problems) == (num_rows, ())


@pytest.mark.parametrize("format", FORMATS)
def test_what_it_tells_to_type_works(tmp_path, monkeypatch, format):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    scaffold = scaffold_package("word-count", format=format, into=Path())
    for step in scaffold.next_steps:
        match shlex.split(step, comments=True):
            case ["uv", *_] as command:
                subprocess.run(command, check=True, timeout=60)
            case ["grpo", "train", *arguments]:
                assert cli.main(["check", *arguments]) == 0
            case ["grpo", "env", "vendor", *_]:
                continue  # test_vendor.py
            case ["grpo", *arguments]:
                assert cli.main(arguments) == 0


@pytest.mark.parametrize("format", FORMATS)
def test_its_own_tests_pass(tmp_path, format):
    scaffold = scaffold_package("word-count", format=format, into=tmp_path)
    folder = Path(scaffold.project or Path(scaffold.package, "resources_servers/word_count"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("format", FORMATS)
def test_every_python_file_compiles(tmp_path, format):
    scaffold_package("word-count", format=format, into=tmp_path)
    files = list(tmp_path.rglob("*.py"))
    assert files
    for file in files:
        assert "@" not in file.read_text()
        compile(file.read_text(), str(file), "exec")


def test_the_wheel_holds_what_its_project_holds(tmp_path):
    scaffold = scaffold_package("word-count", format="adapter-wheels-v1", into=tmp_path)
    (wheel,) = Path(scaffold.package, "wheels").iterdir()
    assert wheel.name == "word_count-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        for module in ("word_count.py", "word_count_reward.py"):
            assert archive.read(module).decode() == Path(str(scaffold.project), module).read_text()
    assert load_package(Path(scaffold.package)).manifest.metadata.vf_env_id == "word-count"


def test_the_wheel_installs(tmp_path):
    scaffold = scaffold_package("word-count", format="wheels-v1", into=tmp_path)
    (wheel,) = Path(scaffold.package, "wheels").iterdir()
    command = [str(find_uv()), "pip", "install", "--offline", "--no-config", "--no-deps", "--target"]
    subprocess.run([*command, str(tmp_path / "site"), str(wheel)], check=True, capture_output=True, timeout=60)
    spec = importlib.util.spec_from_file_location("reward", tmp_path / "site" / "word_count_reward.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.word_count_reward("one two", 2) == 1.0


@pytest.mark.parametrize("name", ["", "Lists", "1st", "a b", "../x", "a/b", "-a", "a--b", "ä"])
def test_names_that_cannot_be(tmp_path, name):
    with pytest.raises(LauncherError, match="is no environment name"):
        scaffold_package(name, format="native-v1", into=tmp_path)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "lists-rows").mkdir()
    with pytest.raises(LauncherError, match="exists already"):
        scaffold_package("lists", format="native-v1", into=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lists-rows"]
