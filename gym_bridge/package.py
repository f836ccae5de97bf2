"""An environment package, and the values a run starts it with. Pure.

package folder --> EnvironmentPackage --(+ policy)--> gym_config: goes to NeMo Gym's config parser, over the YAML
sampling, max_rollout_turns --> agent_settings: go into the agents of the parsed config, whatever file defined them
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from launcher.schema.manifest import MANIFEST, MANIFEST_NAME, EnvironmentFormat
from launcher.schema.problems import LauncherError, Problem
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
class EnvironmentPackage:
    """What the manifest says, as far as starting the package goes.

    Example:
        EnvironmentPackage(root=Path("/x/recipes/demo/environment"), name="numbered-list", format="native-v1",
                           config_paths=("resources_servers/numbered_list/configs/numbered_list.yaml",))
    """

    root: Path
    """Absolute."""
    name: str
    format: EnvironmentFormat
    config_paths: tuple[str, ...]
    """Relative to ``root``, normalised."""


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


def environment_package(root: Path) -> EnvironmentPackage:
    """Read the manifest of a package.

    Raises:
        LauncherError: it is missing or wrong.
    """
    path = root / MANIFEST_NAME
    try:
        manifest = MANIFEST.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise _refused([(path, f"Missing {MANIFEST_NAME} at environment root", "place the manifest there")]) from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise _refused([(path, f"not YAML: {' '.join(str(error).split())}", "correct the file")]) from None
    except ValidationError as error:
        faults = [(path, f"{'.'.join(map(str, e['loc']))}: {e['msg']}", "correct the manifest") for e in error.errors()]
        raise _refused(faults) from None
    return EnvironmentPackage(
        root=root.resolve(),
        name=manifest.metadata.name,
        format=manifest.format,
        config_paths=manifest.config_paths,
    )


def gym_config(package: EnvironmentPackage, policy: PolicyEndpoint, *, work: Path, head_port: int) -> dict[str, Any]:
    """The values that win over the package's own YAML.

    Args:
        package: what to start.
        policy: fills ``${policy_base_url}``, ``${policy_api_key}`` and ``${policy_model_name}``.
        work: a private folder for whatever Gym writes.
        head_port: free port for Gym's head server.
    """
    return {
        "config_paths": [str(package.root / path) for path in package.config_paths],
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


def _refused(faults: list[tuple[Path, str, str]]) -> LauncherError:
    return LauncherError(
        Problem(code="environment-package", path=str(path), message=message, fix=fix) for path, message, fix in faults
    )
