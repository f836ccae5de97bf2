from pathlib import Path

import pytest

from launcher.run_directory import create_run_directory, make_run_directory, open_run_directory
from launcher.schema.problems import LauncherError


def test_two_runs_of_one_name_never_share_a_directory(tmp_path: Path) -> None:
    first, second = (create_run_directory(tmp_path, "demo") for _ in range(2))
    assert first.path != second.path
    assert first.path.parent == tmp_path / "demo"


def test_a_given_directory_is_not_reused(tmp_path: Path) -> None:
    make_run_directory(tmp_path / "0")
    with pytest.raises(LauncherError, match="exists already"):
        make_run_directory(tmp_path / "0")


def test_rollouts_come_back_as_written(tmp_path: Path) -> None:
    run = create_run_directory(tmp_path, "demo")
    records = [{"prompt": "Grüße\n[1]", "reward": 0.5}, {"prompt": "\ud800", "reward": None}]
    run.write_rollouts(3, records)
    run.write_rollouts(0, records[:1], validation=True)
    assert run.read_rollouts(3) == records
    assert run.rollout_steps() == [3]
    assert run.rollout_steps(validation=True) == [0]


def test_a_missing_step_names_those_there_are(tmp_path: Path) -> None:
    run = create_run_directory(tmp_path, "demo")
    run.write_rollouts(2, [])
    with pytest.raises(LauncherError, match="steps it has: 2"):
        run.read_rollouts(9)


def test_metrics_are_appended(tmp_path: Path) -> None:
    run = create_run_directory(tmp_path, "demo")
    assert run.read_metrics() == []
    run.append_metrics({"step": 1, "train_reward": 0.5})
    run.append_metrics({"step": 2, "train_reward": 0.75})
    assert [m["train_reward"] for m in run.read_metrics()] == [0.5, 0.75]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="no run directory"):
        open_run_directory(tmp_path)


def test_a_folder_that_cannot_be_made_says_which_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LauncherError, match=r"engine\.runs_dir"):
        create_run_directory(tmp_path / "file", "demo")
