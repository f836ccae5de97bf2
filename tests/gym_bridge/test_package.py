"""Package folder -> what Gym is started with."""

from pathlib import Path

from gym_bridge.package import PolicyEndpoint, agent_settings, gym_config
from launcher.environment.package import load_package
from launcher.schema.sampling import Sampling
from tests.gym_bridge.conftest import DEMO

SAMPLING = Sampling(temperature=0.7, top_p=1.0, top_k=None, max_new_tokens=64)


def test_the_policy_and_what_must_not_be_left_to_the_package_are_pinned() -> None:
    package = load_package(DEMO / "environment")
    policy = PolicyEndpoint(base_url="http://x/v1", api_key="k", model="m")
    config = gym_config(package, policy, work=Path("/w"), head_port=1234)
    first, second = config["config_paths"]
    assert first == str(DEMO / "environment" / "responses_api_models/vllm_model/configs/policy_model.yaml")
    assert second.endswith("/resources_servers/numbered_list/configs/numbered_list.yaml")
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
