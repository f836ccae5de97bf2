"""A whole run of the stand-in, as ``grpo train engine=nemo_rl`` starts it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.compile import compile_plan
from launcher.run_directory import RunDirectory, make_run_directory
from launcher.schema.groups import HealthConfig
from launcher.schema.job import JobConfig
from launcher.schema.problems import LauncherError, RunFailed
from rl.display import open_display
from rl.nemo_rl.run import Progress, step_line, train

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


def test_a_step_line_shows_what_is_there():
    assert step_line({"step": 0, "val_accuracy": 0.25}, num_steps=16) == "step  0/16  val 0.250"


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

    asyncio.run(asyncio.wait_for(cancelled(), 60))
    assert run.read_json("status.json")["status"] == "cancelled"
    assert not processes_with(str(run.path))


def test_a_run_is_judged_by_its_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run_directory(tmp_path / "run")
    one = demo_job("unused", None)
    plan = compile_plan(one, num_training_rows=230, num_validation_rows=256)
    step = {
        "train_baseline_reward/pct_mixed": 0.0,
        "train_baseline_reward/pct_0": 100.0,
        "train_baseline_reward/pct_1": 0.0,
    }
    warned = Progress(run, plan, open_display(), HealthConfig())
    stopped = Progress(run, plan, open_display(), HealthConfig(no_spread="stop"))
    for number in (1, 2, 3):
        warned.step({"step": number, **step})
    assert "warning: hardly any group" in capsys.readouterr().err
    for number in (1, 2):
        stopped.step({"step": number, **step})
    with pytest.raises(RunFailed, match=r"stopped by its health: hardly any group.*health.no_spread"):
        stopped.step({"step": 3, **step})
