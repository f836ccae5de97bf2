"""References of a job become files that every node can be pointed at."""

from pathlib import Path

import pytest

from launcher.schema.job import JobConfig
from launcher.schema.problems import LauncherError
from rl.nemo_rl.inputs import chat_template_text, run_files

DEMO = Path(__file__).parents[3] / "recipes" / "demo"


def job(model: str) -> JobConfig:
    return JobConfig.model_validate(
        {
            "model": model,
            "dataset": str(DEMO / "dataset"),
            "environment": str(DEMO / "environment"),
            "training": {"type": "grpo"},
        }
    )


def test_a_hub_model_keeps_its_name():
    files, package = run_files(job("hf://Qwen/Qwen3-0.6B"), output=Path("runs/x"))
    assert files.model == "Qwen/Qwen3-0.6B"
    assert files.training_rows == DEMO / "dataset" / "training.jsonl"
    assert files.validation_rows == DEMO / "dataset" / "validation.jsonl"
    assert package == DEMO / "environment"
    assert all(path.is_file() and path.is_relative_to(package) for path in files.gym_configs)
    assert files.output == Path("runs/x").absolute()


def test_a_model_folder_is_checked(tmp_path: Path):
    with pytest.raises(LauncherError, match=r"lacks config.json"):
        run_files(job(str(tmp_path)), output=Path("runs/x"))


def test_a_chat_template_is_a_file_or_text(tmp_path: Path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert chat_template_text(str(file)) == chat_template_text("{{ messages }}") == "{{ messages }}"
    assert chat_template_text(None) is None
    with pytest.raises(LauncherError, match=r"neither a template, as it has no \{, nor a file"):
        chat_template_text("templates/chat.jinja")
