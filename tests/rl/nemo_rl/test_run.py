"""A whole run of the stand-in, as ``grpo train engine=nemo_rl`` starts it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.compile import compile_plan
from launcher.run_directory import RunDirectory, make_run_directory
from launcher.schema.job import JobConfig
from launcher.schema.problems import LauncherError
from rl.nemo_rl.run import train

DEMO = Path(__file__).parents[3] / "recipes" / "demo"


def demo_job(root: str, address: str | None) -> JobConfig:
    return JobConfig.model_validate(
        {
            "model": "hf://org/none",
            "dataset": str(DEMO / "dataset"),
            "environment": str(DEMO / "environment"),
            "engine": {"name": "nemo_rl", "root": root},
            "cluster": {"address": address},
            "training": {"type": "grpo"},
        }
    )


async def train_demo(job: JobConfig, run: RunDirectory) -> None:
    await train(job, compile_plan(job, num_training_rows=230, num_validation_rows=256), run)


def test_a_run_that_completes(
    pristine_checkout: Path,
    gpu_cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("STAND_IN", "success")
    run = make_run_directory(tmp_path / "run")
    asyncio.run(train_demo(demo_job(str(pristine_checkout), gpu_cluster), run))
    assert "step  2/57  reward 0.500  val 0.750  mixed 50%" in capsys.readouterr().err
    status = run.read_json("status.json")
    assert (status["status"], status["error"]) == ("completed", None)
    details = status["status_details"]
    assert (details["backend"], details["step"], details["metrics"]["train_reward"]) == ("nemo_rl", 2, 0.5)


def test_a_run_that_cannot_start_says_why_in_its_status(tmp_path: Path):
    run = make_run_directory(tmp_path / "run")
    with pytest.raises(LauncherError, match="does not exist"):
        asyncio.run(train_demo(demo_job(str(tmp_path / "nowhere"), None), run))
    status = run.read_json("status.json")
    assert status["status"] == "failed"
    assert "does not exist" in status["error"]


def test_a_cancelled_run_leaves_nothing(
    pristine_checkout: Path,
    gpu_cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes_with: Callable[[str], list[str]],
):
    monkeypatch.setenv("STAND_IN", "hang")
    run = make_run_directory(tmp_path / "run")
    log = run.logs / "nemo_rl.log"

    async def cancelled() -> None:
        training = asyncio.create_task(train_demo(demo_job(str(pristine_checkout), gpu_cluster), run))
        while not (log.exists() and "waiting for rollouts" in log.read_text()):
            assert not training.done()
            await asyncio.sleep(0.1)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training

    asyncio.run(asyncio.wait_for(cancelled(), 180))
    assert run.read_json("status.json")["status"] == "cancelled"
    assert not processes_with(str(run.path))
