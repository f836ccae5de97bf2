"""Package folder -> what Gym is started with."""

from pathlib import Path

import pytest

from gym_bridge.package import (
    EnvironmentPackage,
    PolicyEndpoint,
    agent_settings,
    environment_package,
    gym_config,
)
from launcher.schema.problems import LauncherError
from launcher.schema.sampling import Sampling
from tests.gym_bridge.conftest import DEMO

SAMPLING = Sampling(temperature=0.7, top_p=1.0, top_k=None, max_new_tokens=64)


def test_the_demo_package() -> None:
    assert environment_package(DEMO / "environment") == EnvironmentPackage(
        root=DEMO / "environment",
        name="numbered-list",
        format="native-v1",
        config_paths=(
            "responses_api_models/vllm_model/configs/policy_model.yaml",
            "resources_servers/numbered_list/configs/numbered_list.yaml",
        ),
    )


def test_the_policy_and_what_must_not_be_left_to_the_package_are_pinned() -> None:
    package = EnvironmentPackage(root=Path("/p"), name="p", format="native-v1", config_paths=("a.yaml",))
    policy = PolicyEndpoint(base_url="http://x/v1", api_key="k", model="m")
    config = gym_config(package, policy, work=Path("/w"), head_port=1234)
    assert config["config_paths"] == ["/p/a.yaml"]
    assert config["policy_base_url"] == ["http://x/v1"]
    assert (config["policy_api_key"], config["policy_model_name"]) == ("k", "m")
    assert config["head_server"] == {"host": "127.0.0.1", "port": 1234}
    assert config["nemo_gym_log_dir"] is None


def test_an_agent_that_ignores_the_row_s_sampling_gets_it_in_its_config() -> None:
    assert agent_settings(SAMPLING, max_rollout_turns=None) == {
        "verifiers_agent": {"max_tokens": 64, "temperature": 0.7, "top_p": 1.0}
    }


def test_a_limit_of_turns_goes_into_the_agent_s_own_key() -> None:
    settings = agent_settings(SAMPLING, max_rollout_turns=3)
    assert settings["simple_agent"] == {"max_steps": 3}
    assert settings["hermes_agent"] == {"max_turns": 3}
    assert "langgraph_agent" not in settings


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "Missing nemo-environment.yaml at environment root"),
        ("a: b: c", "nemo-environment.yaml: not YAML: mapping values are not allowed here"),
        ("{format: native-v1, metadata: {name: x}}", "native-v1.config_paths: Field required"),
        ("{format: other, config_paths: [a.yaml], metadata: {name: x}}", "Input tag 'other' found using 'format'"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why(tmp_path: Path, manifest: str | None, message: str) -> None:
    if manifest is not None:
        (tmp_path / "nemo-environment.yaml").write_text(manifest)
    with pytest.raises(LauncherError, match=message):
        environment_package(tmp_path)
