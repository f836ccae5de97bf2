"""Runs of the stand-in checkout: each way to end is told as what it is."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from launcher.compile import compile_plan
from launcher.run_directory import RunDirectory, make_run_directory
from launcher.schema.job import JobConfig
from launcher.schema.problems import LauncherError, RunFailed
from rl.nemo_rl.checkout import open_checkout
from rl.nemo_rl.config import RunFiles
from rl.nemo_rl.launch import Finished, package_environment, train_on_nemo_rl


def job(address: str | None, *, num_gpus: int = 1, num_nodes: int = 1) -> JobConfig:
    layout = {"num_gpus_per_node": num_gpus, "num_nodes": num_nodes}
    return JobConfig.model_validate(
        {
            "model": "m", "dataset": "d", "environment": "e", "cluster": {"address": address},
            "training": {"type": "grpo", "parallelism": layout},
        }
    )  # fmt: skip


def launch(
    checkout: Path, run: RunDirectory, one: JobConfig, *, silence_limit_s: float = 60.0
) -> tuple[Finished, list[Mapping[str, float]]]:
    files = RunFiles(
        model="/models/base", chat_template="{{ '${x}' }}", training_rows=Path("t.jsonl"), validation_rows=Path("v"),
        gym_configs=(), output=run.path,
    )  # fmt: skip
    steps: list[Mapping[str, float]] = []
    package = run.path.parent / "package"
    (package / "wheels").mkdir(parents=True, exist_ok=True)
    plan = compile_plan(one, num_training_rows=10, num_validation_rows=4)
    training = train_on_nemo_rl(
        one, plan, files, checkout=open_checkout(str(checkout))[0], package=package, run=run,
        on_step=steps.append, silence_limit_s=silence_limit_s,
    )  # fmt: skip
    return asyncio.run(training), steps


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run_directory(tmp_path / "run")


def test_a_run_that_trains(
    pristine_checkout: Path, gpu_cluster: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STAND_IN", "success")
    finished, steps = launch(pristine_checkout, run, job(gpu_cluster, num_gpus=2))
    assert finished.num_steps == 2
    assert steps == run.read_metrics()
    assert steps[0] == {"step": 1, "train_reward": 0.25, "train_timing/total_step_time": 3.0}
    assert steps[1]["val_accuracy"] == 0.75
    assert sorted(path.name for path in run.export.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert run.read_json("nemo_rl_checkout.json")["version"] == "0.7.0"
    said = (run.logs / "nemo_rl.log").read_text()
    variables = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    package = run.path.parent / "package"
    assert variables == {
        "NEMO_GYM_EXTRA_ROOTS": str(package),
        "UV_FIND_LINKS": str(package / "wheels"),
        "RAY_ADDRESS": gpu_cluster,
    }


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ("crash", "a GPU ran out of memory: lower training.train_mb_tokens"),
        ("idle", "without a checkpoint, so no step ran; it drops the last, partial batch: 10 rows make 2 batches of 4"),
    ],
)
def test_a_run_that_fails(
    pristine_checkout: Path,
    gpu_cluster: str,
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: str,
    expected: str,
):
    monkeypatch.setenv("STAND_IN", behaviour)
    with pytest.raises(RunFailed, match=expected):
        launch(pristine_checkout, run, job(gpu_cluster))


def test_a_run_that_hangs_is_ended(
    pristine_checkout: Path,
    gpu_cluster: str,
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    processes_with: Callable[[str], list[str]],
):
    monkeypatch.setenv("STAND_IN", "hang")
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r"hangs: it printed nothing for 8 s.*Last line: waiting for rollouts"):
        launch(pristine_checkout, run, job(gpu_cluster), silence_limit_s=8.0)
    assert time.monotonic() - started < 150
    assert not processes_with(str(run.path))


def test_a_config_that_is_refused(
    checkout_folder: Path, gpu_cluster: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STAND_IN", "success")
    script = checkout_folder / "examples" / "nemo_gym" / "run_grpo_nemo_gym.py"
    script.write_text(script.read_text().replace("max_val_samples: None", "max_val_samples: None\n    new_key: int"))
    with pytest.raises(RunFailed, match=r"refused the config \(grpo.new_key: Field required\)"):
        launch(checkout_folder, run, job(gpu_cluster))


def test_more_gpus_than_the_cluster_has(pristine_checkout: Path, gpu_cluster: str, run: RunDirectory):
    with pytest.raises(LauncherError, match=r"1 nodes with 8 GPUs are asked for; GPUs of the cluster's nodes: \S+ 2\."):
        launch(pristine_checkout, run, job(gpu_cluster, num_gpus=8))


def test_a_cluster_that_does_not_answer(pristine_checkout: Path, run: RunDirectory):
    with pytest.raises(LauncherError, match=r"the Ray cluster at 127.0.0.1:9 cannot be joined: .*Connection refused"):
        launch(pristine_checkout, run, job("127.0.0.1:9"))
    with pytest.raises(LauncherError, match=r"the Ray cluster at head cannot be joined"):
        launch(pristine_checkout, run, job("head"))


def test_several_nodes_need_a_cluster(pristine_checkout: Path, run: RunDirectory):
    with pytest.raises(LauncherError, match="2 nodes are asked for: a cluster started here has one"):
        launch(pristine_checkout, run, job(None, num_nodes=2))


def test_a_cluster_of_this_machine_is_started_and_gone_afterwards(
    pristine_checkout: Path,
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    processes_with: Callable[[str], list[str]],
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = {*Path("/tmp").glob("grpo-ray-*")}  # of other runs on this machine
    with pytest.raises(LauncherError, match=r"GPUs of the cluster's nodes: \S+ 0"):
        launch(pristine_checkout, run, job(None))
    left = [line for line in processes_with("/tmp/grpo-ray-") if not any(str(folder) in line for folder in before)]
    assert not left
    assert {*Path("/tmp").glob("grpo-ray-*")} <= before


def test_a_package_without_wheels_may_use_an_index(tmp_path: Path):
    assert package_environment(tmp_path) == {"NEMO_GYM_EXTRA_ROOTS": str(tmp_path)}
