"""``grpo compile`` from the command line."""

import json
from pathlib import Path

import pytest
import yaml

from launcher.cli import main

HUB_MODEL = "model.name=hf://org/none"


def test_the_config_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "nemo.yaml"
    assert main(["compile", "recipe=demo", HUB_MODEL, "-o", str(file)]) == 0
    config = yaml.safe_load(file.read_text())
    assert config["policy"]["model_name"] == "org/none"
    said = capsys.readouterr()
    assert said.out == ""
    assert "training.use_leave_one_out_baseline: advantages" in said.err


def test_json_holds_config_and_differences(capsys: pytest.CaptureFixture[str]):
    assert main(["compile", "recipe=demo", HUB_MODEL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["config"]["grpo"]["num_generations_per_prompt"] == 8
    assert printed["differences"][0]["setting"] == "training.use_leave_one_out_baseline"


def test_what_nemo_rl_does_not_read_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["compile", "recipe=demo", "training.top_k=5", "gym.max_in_flight=8"]) == 1
    said = capsys.readouterr().err
    assert "NeMo RL refuses top_k" in said
    assert "gym.max_in_flight: engine=nemo_rl does not implement a limit of rollouts in flight" in said


@pytest.mark.parametrize(
    ("content", "tool"),
    [
        ("policy: {}\ngrpo: {}\nloss_fn: {}\n", "NeMo RL"),
        ("actor_rollout_ref: {}\nalgorithm: {}\n", "verl"),
        ("model_name_or_path: m\nlearning_rate: 1\n", "TRL"),
        ("config_paths: []\n", "NeMo Gym"),
    ],
)
def test_a_config_of_another_tool_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, tool: str):
    file = tmp_path / "other.yaml"
    file.write_text(content)
    assert main(["compile", "--job", str(file)]) == 1
    assert f"is a config of {tool}" in capsys.readouterr().err


def test_an_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compile", "recipe=demo", HUB_MODEL, "-o", str(tmp_path / "no" / "file.yaml")]) == 1
    assert "cannot be written" in capsys.readouterr().err
