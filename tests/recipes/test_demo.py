"""The demo's dataset and environment."""

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from gym_bridge.install import GymEnvironment

DEMO = Path(__file__).parents[2] / "recipes" / "demo"


@pytest.fixture(scope="module")
def make_dataset() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_dataset", DEMO / "make_dataset.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prompts(name: str) -> list[str]:
    rows = [json.loads(line) for line in (DEMO / "dataset" / name).read_text().splitlines()]
    return [row["responses_create_params"]["input"][0]["content"] for row in rows]


def test_the_committed_rows_are_what_the_script_makes(make_dataset: ModuleType) -> None:
    training, validation = make_dataset.dataset_rows()
    assert (DEMO / "dataset" / "training.jsonl").read_text() == make_dataset.jsonl(training)
    assert (DEMO / "dataset" / "validation.jsonl").read_text() == make_dataset.jsonl(validation)


def test_training_rows_are_distinct_and_validation_is_unseen_and_repeated() -> None:
    training, validation = prompts("training.jsonl"), prompts("validation.jsonl")
    assert len(training) == len(set(training)) == 240
    assert (len(validation), len(set(validation))) == (256, 32)
    assert all(validation.count(prompt) == 8 for prompt in set(validation))
    assert not set(training) & set(validation)


def test_no_thing_of_validation_appears_in_training() -> None:
    def things(name: str) -> set[str]:
        return {prompt.split(",")[0].rsplit(" ", 1)[1] for prompt in prompts(name)}

    assert not things("training.jsonl") & things("validation.jsonl")


def test_rewards(gym: GymEnvironment) -> None:
    """Worked by hand, for three items: right lines minus half of surplus lines, divided by three."""
    cases = {
        "1. red\n2. blue\n3. green": 1.0,
        "1. red\n2. blue": 2 / 3,
        "Sure!\n1. red\n2. blue\n3. green": 0.0,  # the items carry the wrong line numbers, and one line is too many
        "1. red\n2. blue\n3. green\n4. grey": (3 - 0.5) / 3,
        "1. red\n2. blue\n3. green\n4. grey\n5. pink": (3 - 1) / 3,
        "1. red\n\n  2. blue\n3. bright light green": 1.0,
        "1. red\n2. a colour that many people like\n3. green": 2 / 3,
        "1. red\n1. red\n1. red": 1 / 3,
        "red, blue, green": 0.0,
        "": 0.0,
    }
    script = """
import asyncio, json, sys
from app import NumberedListServer, VerifyRequest
def reward(text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    response = {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [message],
                "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    body = VerifyRequest(responses_create_params={"input": "list"}, response=response, num_items=3)
    return asyncio.run(NumberedListServer.verify(None, body)).reward
json.dump([reward(text) for text in json.load(sys.stdin)], sys.stdout)
"""
    folder = DEMO / "environment" / "resources_servers" / "numbered_list"
    answered = subprocess.run(
        [gym.python, "-c", script], cwd=folder, env={"PYTHONPYCACHEPREFIX": str(gym.bytecode)},
        input=json.dumps(list(cases)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(answered.stdout) == pytest.approx(list(cases.values()))
