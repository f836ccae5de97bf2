"""Package folder -> what Gym is started with."""

from pathlib import Path
from typing import Any

import pytest

from gym_bridge.package import (
    EnvironmentPackage,
    PolicyEndpoint,
    ServerInstance,
    environment_package,
    gym_config,
)
from launcher.schema.problems import LauncherError
from launcher.schema.sampling import Sampling
from tests.gym_bridge.conftest import DEMO


def config_of(*agents: ServerInstance, max_rollout_turns: int | None = None) -> dict[str, Any]:
    package = EnvironmentPackage(root=Path("/p"), name="p", config_paths=("a.yaml",), instances=agents)
    return gym_config(
        package, PolicyEndpoint(base_url="http://x/v1", api_key="k", model="m"), work=Path("/w"), head_port=1234,
        sampling=Sampling(temperature=0.7, top_p=1.0, top_k=None, max_new_tokens=64),
        max_rollout_turns=max_rollout_turns,
    )  # fmt: skip


def agent(implementation: str) -> ServerInstance:
    return ServerInstance(name="a", server_type="responses_api_agents", implementation=implementation)


def test_the_demo_package() -> None:
    package = environment_package(DEMO / "environment")
    assert package.name == "numbered-list"
    assert [(each.name, each.server_type, each.implementation) for each in package.instances] == [
        ("policy_model", "responses_api_models", "vllm_model"),
        ("numbered_list", "resources_servers", "numbered_list"),
        ("numbered_list_agent", "responses_api_agents", "simple_agent"),
    ]
    assert [each.name for each in package.agents] == ["numbered_list_agent"]


def test_the_policy_and_what_must_not_be_left_to_the_package_are_pinned() -> None:
    config = config_of(agent("simple_agent"))
    assert config["config_paths"] == ["/p/a.yaml"]
    assert (config["policy_base_url"], config["policy_api_key"], config["policy_model_name"]) == (
        ["http://x/v1"],
        "k",
        "m",
    )
    assert config["head_server"] == {"host": "127.0.0.1", "port": 1234}
    assert config["nemo_gym_log_dir"] is None
    assert "a" not in config


def test_a_limit_of_turns_goes_into_the_agent_s_own_key() -> None:
    config = config_of(agent("simple_agent"), max_rollout_turns=3)
    assert config["a"] == {"responses_api_agents": {"simple_agent": {"max_steps": 3}}}
    config = config_of(agent("hermes_agent"), max_rollout_turns=3)
    assert config["a"] == {"responses_api_agents": {"hermes_agent": {"max_turns": 3}}}


def test_a_limit_of_turns_for_an_agent_without_one_is_refused() -> None:
    with pytest.raises(LauncherError, match=r"agent 'a' \(langgraph_agent\) has no limit of turns to set"):
        config_of(agent("langgraph_agent"), max_rollout_turns=3)


def test_an_agent_that_ignores_the_row_s_sampling_gets_it_in_its_config() -> None:
    assert config_of(agent("verifiers_agent"))["a"] == {
        "responses_api_agents": {"verifiers_agent": {"max_tokens": 64, "temperature": 0.7, "top_p": 1.0}}
    }


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "Missing nemo-environment.yaml at environment root"),
        ({"nemo-environment.yaml": "config_paths: x"}, "config_paths is 'x', not a list of files"),
        ({"nemo-environment.yaml": "config_paths: [a.yaml]"}, "config_paths reference files that are not in"),
        ({"nemo-environment.yaml": "config_paths: [a.yaml]", "a.yaml": "a: b: c"}, "a.yaml: not valid YAML"),
        ({"nemo-environment.yaml": "config_paths: [a.yaml]", "a.yaml": "- 1"}, "a mapping is needed at the top"),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_read_says_why(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(LauncherError, match=message):
        environment_package(tmp_path)
