"""``grpo check engine=nemo_rl``: the checkout and the differences, before anything starts."""

import json
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.nemo_rl import difference_table, has_repeated_prompts

DEMO = ["check", "recipe=demo", "model.name=hf://org/none", "engine=nemo_rl"]


def test_differences_and_checkout_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main([*DEMO, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [problem["path"] for problem in report["problems"] if problem["code"] == "nemo-rl-checkout"] == [
        "engine.root"
    ]
    assert [difference["setting"] for difference in report["differences"]] == [
        "training.use_leave_one_out_baseline",
        "training.max_new_tokens",
        "training.use_leave_one_out_baseline",
        "training",
    ]
    assert main([*DEMO, f"engine.root={tmp_path}"]) == 1
    assert "is no NeMo RL checkout" in capsys.readouterr().err


def test_the_table_names_setting_both_sides_and_the_way_out(capsys: pytest.CaptureFixture[str]):
    assert main(DEMO) == 0
    said = capsys.readouterr().out
    assert "training.max_new_tokens: train_truncation_rate, train_natural_termination_rate" in said
    assert "to avoid it   leaving training.max_new_tokens unset" in said
    assert difference_table(()) == "NeMo RL computes what engine=local would."


def test_a_local_run_has_no_differences(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "recipe=demo", "model.name=hf://org/none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


def test_repeated_prompts_are_seen_through_other_keys(tmp_path: Path):
    rows = tmp_path / "training.jsonl"

    def row(prompt: str, answer: int) -> str:
        return json.dumps({
            "responses_create_params": {"input": prompt},
            "agent_ref": {"type": "responses_api_agents", "name": "a"},
            "answer": answer,
        })  # fmt: skip

    rows.write_text("\n".join([row("x", 1), row("y", 1)]))
    assert has_repeated_prompts(rows) is False
    rows.write_text("\n".join([row("x", 1), row("y", 1), row("x", 2)]))
    assert has_repeated_prompts(rows) is True
