"""An environment package as Gym sees it: which servers its YAML defines, and the config a run starts it with. Pure.

    package folder --> EnvironmentPackage --(+ policy, sampling)--> gym_config: what goes to NeMo Gym's config parser

Gym merges the package's YAML files in order and then our values over them: what stands in ``gym_config`` is pinned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.schema.problems import LauncherError, Problem
from launcher.schema.sampling import Sampling

SERVER_TYPES = ("responses_api_models", "resources_servers", "responses_api_agents")

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
class ServerInstance:
    """One named server of a package's YAML.

    Example:
        ServerInstance(name="numbered_list_agent", server_type="responses_api_agents", implementation="simple_agent")
    """

    name: str
    server_type: str
    implementation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentPackage:
    """What the manifest says, as far as starting the package goes."""

    root: Path
    name: str
    config_paths: tuple[str, ...]
    """Relative to ``root``."""
    instances: tuple[ServerInstance, ...]
    """In the order of the files."""

    @property
    def agents(self) -> tuple[ServerInstance, ...]:
        """The servers that a row's ``agent_ref`` may name."""
        return tuple(instance for instance in self.instances if instance.server_type == "responses_api_agents")


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
    """Read a package that has been validated.

    Raises:
        LauncherError: the manifest or one of its config files cannot be read, named with the reason.
    """
    manifest_path = root / "nemo-environment.yaml"
    if not manifest_path.is_file():
        raise _refused(manifest_path, "Missing nemo-environment.yaml at environment root", "place the manifest there")
    manifest = _yaml_mapping(manifest_path)
    paths = manifest.get("config_paths")
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise _refused(
            manifest_path, f"config_paths is {paths!r}, not a list of files", "list the package's YAML files"
        )
    return EnvironmentPackage(
        root=root.resolve(),
        name=str((manifest.get("metadata") or {}).get("name", root.name)),
        config_paths=tuple(paths),
        instances=tuple(instance for path in paths for instance in _instances(_yaml_mapping(root / path))),
    )


def gym_config(
    package: EnvironmentPackage,
    policy: PolicyEndpoint,
    *,
    sampling: Sampling,
    work: Path,
    head_port: int,
    max_rollout_turns: int | None = None,
) -> dict[str, Any]:
    """The values that win over the package's own YAML.

    Args:
        package: what to start.
        policy: fills ``${policy_base_url}``, ``${policy_api_key}`` and ``${policy_model_name}``.
        sampling: written into agents that ignore a row's sampling values.
        work: a private folder for whatever Gym writes.
        head_port: free port for Gym's head server.
        max_rollout_turns: written into each agent's own limit; None leaves the package's value.

    Raises:
        LauncherError: ``max_rollout_turns`` for an agent that has no limit to set.
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
        "nemo_gym_log_dir": None,  # would put a shell between us and each server
        "error_on_almost_servers": True,
        **_agent_overrides(package.agents, sampling=sampling, max_rollout_turns=max_rollout_turns),
    }


def _agent_overrides(
    agents: Sequence[ServerInstance], *, sampling: Sampling, max_rollout_turns: int | None
) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for agent in agents:
        values: dict[str, Any] = {}
        if agent.implementation == "verifiers_agent":
            values["max_tokens"] = sampling.max_new_tokens
            values["temperature"] = sampling.temperature
            values["top_p"] = sampling.top_p
        if max_rollout_turns is not None:
            if agent.implementation not in TURN_LIMITS:
                raise LauncherError([Problem(
                    code="R32", path="training.max_rollout_turns",
                    message=f"agent {agent.name!r} ({agent.implementation}) has no limit of turns to set",
                    fix=f"leave it unset, or use one of {', '.join(TURN_LIMITS)}",
                )])  # fmt: skip
            values[TURN_LIMITS[agent.implementation]] = max_rollout_turns
        if values:
            overrides[agent.name] = {agent.server_type: {agent.implementation: values}}
    return overrides


def _instances(config: Mapping[str, Any]) -> list[ServerInstance]:
    """The server definitions of one file: ``name: {server_type: {implementation: {entrypoint: ...}}}``."""
    found = []
    for name, body in config.items():
        for server_type in SERVER_TYPES:
            implementations = body.get(server_type) if isinstance(body, Mapping) else None
            if isinstance(implementations, Mapping):
                found += [
                    ServerInstance(name=str(name), server_type=server_type, implementation=str(implementation))
                    for implementation, settings in implementations.items()
                    if isinstance(settings, Mapping)
                ]
    return found


def _yaml_mapping(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise _refused(path, "config_paths reference files that are not in the package", "add the file") from None
    except yaml.YAMLError as error:
        raise _refused(path, f"not valid YAML: {' '.join(str(error).split())}", "correct the file") from None
    if not isinstance(content, Mapping):
        raise _refused(path, f"a mapping is needed at the top, found {type(content).__name__}", "correct the file")
    return content


def _refused(path: Path, message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="environment-package", path=str(path), message=message, fix=fix)])
