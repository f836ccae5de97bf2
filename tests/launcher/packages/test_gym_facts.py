"""The table of what Gym fixes is what Gym's wheel says, and rows have the keys that Gym takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gym_bridge.versions import DEFAULT_GYM_VERSION
from launcher.environment import gym_facts as facts
from launcher.environment.generate_gym_facts import gym_facts, request_keys
from launcher.environment.uv import find_uv
from launcher.schema.manifest import HARNESSES, SERVER_TYPES
from launcher.schema.rows import ResponsesCreateParams


@pytest.fixture(scope="module")
def wheel() -> Path:
    """nemo-gym's wheel (31 MB), downloaded once into the cache."""
    cache = Path(os.environ.get("GRPO_CACHE") or Path.home() / ".cache" / "grpo-launcher") / "test-wheels"
    found = cache / f"nemo_gym-{facts.GYM_VERSION}-py3-none-any.whl"
    if not found.exists():
        command = [str(find_uv()), "tool", "run", "--quiet", "--python", sys.executable, "--from", "pip", "pip"]
        command += ["download", "--quiet", "--no-deps", "--dest", str(cache), f"nemo-gym=={facts.GYM_VERSION}"]
        subprocess.run(command, check=True, timeout=200, stdout=subprocess.DEVNULL)
    return found


def test_the_table_is_the_wheels(wheel):
    assert gym_facts(wheel) == Path(facts.__file__).read_text()


def test_rows_have_the_keys_of_gyms_request(wheel):
    assert set(request_keys(wheel)) == set(ResponsesCreateParams.__annotations__)


def test_the_table_is_of_the_version_that_runs():
    assert facts.GYM_VERSION == DEFAULT_GYM_VERSION


def test_the_table_has_what_packages_are_built_on():
    assert set(facts.BUILT_INS) == set(SERVER_TYPES)
    assert "instruction_following" in facts.DOMAINS
    assert "config_paths" in facts.RESERVED_KEYS
    assert set(HARNESSES) <= set(facts.BUILT_INS["responses_api_agents"])
    assert "simple_agent" in facts.BUILT_INS["responses_api_agents"]
    assert "vllm_model" in facts.BUILT_INS["responses_api_models"]
    assert facts.BUILT_INS["resources_servers"]["mcqa"] == ("tiktoken",)
