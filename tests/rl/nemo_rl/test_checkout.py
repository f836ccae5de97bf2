"""Checkouts that are used, and what is said about those that are not."""

import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.schema.problems import LauncherError
from rl.nemo_rl.checkout import Checkout, open_checkout


def said_about(root: str | None) -> str:
    with pytest.raises(LauncherError) as refusal:
        open_checkout(root)
    return str(refusal.value)


def test_a_clean_checkout_is_used(pristine_checkout: Path):
    checkout, warnings = open_checkout(str(pristine_checkout))
    assert (checkout.root, checkout.version, checkout.changed_files) == (pristine_checkout, "0.7.0", 0)
    assert len(checkout.commit) == 40
    assert warnings == ()


def test_python_runs_in_the_checkouts_environment():
    checkout = Checkout(root=Path("/nemo"), version="0.7.0", commit="c", changed_files=0)
    command = ["/uv", "run", "--locked", "--directory", "/nemo", "python", "-V"]
    assert checkout.command(Path("/uv"), "-V") == command


def test_an_unset_root_says_where_to_get_one():
    assert "engine.root is unset. git clone --recursive" in said_about(None)


def test_a_folder_that_is_not_there(tmp_path: Path):
    assert "does not exist" in said_about(str(tmp_path / "none"))


def test_a_config_file_of_another_tool(tmp_path: Path):
    (tmp_path / "trl.yaml").write_text("model_name_or_path: x\n")
    assert "trl.yaml is a file" in said_about(str(tmp_path / "trl.yaml"))


def test_a_folder_that_is_no_checkout_names_what_is_missing(tmp_path: Path):
    (tmp_path / "nemo_rl").mkdir()
    expected = "examples/nemo_gym/run_grpo_nemo_gym.py, pyproject.toml, uv.lock missing"
    assert expected in said_about(str(tmp_path))


def test_the_folder_above_a_checkout_is_corrected(pristine_checkout: Path):
    assert f"set engine.root={pristine_checkout}" in said_about(str(pristine_checkout.parent))


def test_a_copy_without_git(checkout_folder: Path):
    shutil.rmtree(checkout_folder / ".git")
    assert "not the root of a git checkout" in said_about(str(checkout_folder))


def test_a_checkout_without_submodules(checkout_folder: Path):
    command = ["git", "-C", str(checkout_folder), "submodule", "deinit", "--quiet", "--force", "--all"]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    message = said_about(str(checkout_folder))
    assert "submodule 3rdparty/Gym" in message
    assert "submodule update --init --recursive" in message


@pytest.mark.parametrize(("minor", "expected"), [(6, "its config needs 0.7.0"), (None, "states no version")])
def test_another_version_is_refused(checkout_folder: Path, minor: int | None, expected: str):
    text = "" if minor is None else f"MAJOR = 0\nMINOR = {minor}\nPATCH = 1\nPRE_RELEASE = ''\n"
    (checkout_folder / "nemo_rl" / "package_info.py").write_text(text)
    assert expected in said_about(str(checkout_folder))


def test_a_newer_version_and_changed_files_are_warned_about(checkout_folder: Path):
    text = "MAJOR = 1\nMINOR = 0\nPATCH = 0\nPRE_RELEASE = 'rc0'\n"
    (checkout_folder / "nemo_rl" / "package_info.py").write_text(text)
    checkout, warnings = open_checkout(str(checkout_folder))
    assert checkout.version == "1.0.0rc0"
    assert checkout.changed_files == 1
    assert [warning.severity for warning in warnings] == ["warning", "warning"]
    assert "newer than any" in warnings[0].message
    assert "1 changed file on top of commit" in warnings[1].message
