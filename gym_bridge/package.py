"""The values a run starts an environment package with. Pure.

Package + policy --> gym_config: goes to NeMo Gym's config parser, over the package's YAML
sampling, max_rollout_turns --> agent_settings: go into the agents of the parsed config, whatever file defined them
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.schema.manifest import Package
from launcher.schema.sampling import Sampling

TURN_LIMITS = {
    "aviary_agent": "max_steps",
    "browsecomp_agent": "max_steps",
    "claude_code_agent": "max_turns",
    "cvdp_agent": "max_steps",
    "finance_agent": "max_steps",
    "gymnasium_agent": "max_steps",
    "hermes_agent": "max_turns",
    "simple_agent": "max_steps",
    "stirrup_agent": "agent_max_turns",
    "swe_agents": "agent_max_turns",
    "tau2": "max_steps",
}
"""Gym's agent implementations that bound their own turns -> the key of that bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyEndpoint:
    """Where the model under training answers.

    Example:
        PolicyEndpoint(base_url="http://127.0.0.1:41807/v1", api_key="...", model="policy")
    """

    base_url: str
    """OpenAI-compatible, with /v1."""
    api_key: str
    model: str


def gym_config(package: Package, policy: PolicyEndpoint, *, work: Path, head_port: int) -> dict[str, Any]:
    """The values that win over the package's own YAML.

    Args:
        package: what to start.
        policy: fills ``${policy_base_url}``, ``${policy_api_key}`` and ``${policy_model_name}``.
        work: a private folder for whatever Gym writes.
        head_port: free port for Gym's head server.
    """
    return {
        "config_paths": [str(package.root / path) for path in package.manifest.config_paths],
        "policy_base_url": [policy.base_url],
        "policy_api_key": policy.api_key,
        "policy_model_name": policy.model,
        "default_host": "127.0.0.1",
        "use_absolute_ip": False,
        "head_server": {"host": "127.0.0.1", "port": head_port},
        "uv_cache_dir": str(work / "uv"),
        "uv_venv_dir": str(work / "venvs"),
        "dry_run": False,
        "nemo_gym_log_dir": None,  # each server has a log of its own here
        "error_on_almost_servers": True,
    }


def agent_settings(sampling: Sampling, *, max_rollout_turns: int | None) -> dict[str, dict[str, Any]]:
    """Agent implementation -> settings that a run puts into every agent of that kind.

    Args:
        sampling: for agents that take no sampling values from the row.
        max_rollout_turns: goes into each agent's own limit; None leaves the package's value.
    """
    settings: dict[str, dict[str, Any]] = {
        "verifiers_agent": {
            "max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
        }
    }  # fmt: skip
    if max_rollout_turns is not None:
        settings |= {agent: {key: max_rollout_turns} for agent, key in TURN_LIMITS.items()}
    return settings
