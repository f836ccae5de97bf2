import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_bridge.types import Rollout, Turn
from launcher.compile import compile_plan
from launcher.run_directory import RunDirectory, make_run_directory
from launcher.schema.groups import HealthConfig
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import RunFailed
from rl.display import PlainDisplay
from rl.report import Report, duration, step_line
from rl.summary import run_summary


@pytest.fixture
def plan() -> RunPlan:
    job = JobConfig.model_validate(
        {"model": "m", "dataset": "d", "environment": "e", "training": {"type": "grpo", "max_steps": 3}}
    )
    return compile_plan(job, num_training_rows=230, num_validation_rows=2)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run_directory(tmp_path / "run")


@pytest.fixture
def opened(run: RunDirectory, plan: RunPlan) -> Callable[..., tuple[Report, io.StringIO]]:
    def make(**health: str) -> tuple[Report, io.StringIO]:
        stream = io.StringIO()
        config = HealthConfig.model_validate(health)
        return Report(run, plan, PlainDisplay(stream), backend="local", health=config), stream

    return make


def rollout(text: str, reward: float) -> Rollout:
    return Rollout(
        group_id=0, rollout_id=0, row_index=0, agent="a", reward=reward, failure=None, truncated=False,
        turns=(Turn(prompt_token_ids=(1,), token_ids=(2,), logprobs=(-0.5,), finish_reason="stop"),),
        policy_version=0, prompt="Say hello.", response=text,
    )  # fmt: skip


def test_status_follows_the_run(run: RunDirectory, opened: Callable[..., tuple[Report, io.StringIO]]) -> None:
    report, stream = opened()
    with report:
        assert run.read_json("status.json")["status"] == "running"
        report.step({"step": 1, "train_reward": 0.25, "train_timing/total_step_time": 10.0})
        details = run.read_json("status.json")["status_details"]
        assert (details["training_type"], details["rollouts_per_step"]) == ("grpo", 32)
        assert (details["step"], details["metrics"]["train_reward"]) == (1, 0.25)
    assert run.read_json("status.json")["status"] == "completed"
    assert "step 1/3  reward 0.250  step 10.0s  eta 20s" in stream.getvalue()
    assert [line["step"] for line in run.read_metrics()] == [1]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RunFailed("vLLM died"), "failed", "vLLM died"),
        (asyncio.CancelledError(), "cancelled", None),
        (KeyboardInterrupt(), "cancelled", None),
    ],
)
def test_status_says_how_it_ended(
    run: RunDirectory, opened: Callable[..., tuple[Report, io.StringIO]], error: BaseException, status: str,
    message: str | None,
) -> None:  # fmt: skip
    report, _ = opened()
    with pytest.raises(type(error)), report:
        raise error
    found = run.read_json("status.json")
    assert (found["status"], found["error"]) == (status, message)


NO_SPREAD = {
    "train_baseline_reward/pct_mixed": 0.0,
    "train_baseline_reward/pct_0": 100.0,
    "train_baseline_reward/pct_1": 0.0,
}


def test_a_run_is_judged_by_its_metrics(opened: Callable[..., tuple[Report, io.StringIO]]) -> None:
    warned, stream = opened()
    stopped, _ = opened(no_spread="stop")
    for number in (1, 2, 3):
        warned.step({"step": number, **NO_SPREAD})
    assert "warning: hardly any group" in stream.getvalue()
    for number in (1, 2):
        stopped.step({"step": number, **NO_SPREAD})
    with pytest.raises(RunFailed, match=r"stopped by its health: hardly any group.*health.no_spread"):
        stopped.step({"step": 3, **NO_SPREAD})


def test_a_step_line_shows_what_is_there() -> None:
    assert step_line({"step": 0, "val_accuracy": 0.25}, num_steps=16) == "before training  val 0.250"
    line = step_line({"step": 3, "train_reward": 0.5, "train_failed_share": 0.05}, num_steps=16, eta_s=142.0)
    assert line == "step  3/16  reward 0.500  failed 5%  eta 2m22s"


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59.4, 95, 4000)] == ["0s", "59s", "1m35s", "1h06m"]


def test_the_summary_shows_the_same_prompt_before_and_after(
    run: RunDirectory, plan: RunPlan, opened: Callable[..., tuple[Report, io.StringIO]]
) -> None:
    report, _ = opened()
    with report:
        report.validation_rollouts(0, [rollout("no", 0.0)])
        report.step({"step": 0, "val_accuracy": 0.25})
        report.rollouts(1, [rollout("maybe", 0.5)], advantages=[0.0])
        report.validation_rollouts(1, [rollout("Hello!", 1.0)])
        report.step({"step": 1, "train_reward": 0.5, "val_accuracy": 0.75, "train_timing/total_step_time": 1.0})
    summary = run_summary(run, plan)
    assert "0.250 before training, 0.750 after (+0.500)" in summary
    assert "> Say hello." in summary
    assert summary.index("no") < summary.index("Hello!")
    assert f"grpo rollouts {run.path} --worst" in summary
    assert run.read_rollouts(1)[0]["advantage"] == 0.0
