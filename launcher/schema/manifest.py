"""Environment packages: the manifest a person writes, and the package as it is after its YAML was read and merged.

nemo-environment.yaml --> EnvironmentManifest --(config_paths, launcher.environment)--> Package
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from launcher.schema.filesets import relative_path_fault

MANIFEST_NAME = "nemo-environment.yaml"
WHEELS_FOLDER = "wheels"

ServerType = Literal["responses_api_agents", "resources_servers", "responses_api_models"]
SERVER_TYPES: tuple[ServerType, ...] = ("responses_api_agents", "resources_servers", "responses_api_models")

EnvironmentFormat = Literal["native-v1", "wheels-v1", "adapter-wheels-v1"]

HARNESSES = ("verifiers_agent",)
"""Agent harnesses an adapter package can name: those the training image has."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Metadata(_Strict):
    """What the package is."""

    name: str = Field(min_length=1, max_length=255, description="Name of the environment.")
    description: str | None = Field(default=None, description="What it rewards, in a sentence.")
    hub_id: str | None = Field(default=None, description="org/name of the hub package it was converted from.")
    hub_version: str | None = Field(default=None, description="Version of that hub package.")
    vf_env_id: str | None = Field(default=None, description="Identifier for verifiers.load_environment().")
    adapter_agent: str | None = Field(default=None, description="Name of the harness, for people.")


class _Manifest(_Strict):
    config_paths: tuple[str, ...] = Field(
        min_length=1, strict=False, description="Gym YAML files, relative to the package's root, merged in this order."
    )
    metadata: Metadata

    @field_validator("config_paths")
    @classmethod
    def _paths_stay_inside(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        normal = tuple(_normal_path(path) for path in paths)
        repeated = sorted({path for path in normal if normal.count(path) > 1})
        if repeated:
            raise ValueError(f"config_paths names {', '.join(repeated)} twice")
        return normal


class NativeManifest(_Manifest):
    """A slice of a Gym tree whose dependencies come from a package index at start."""

    format: Literal["native-v1"]

    @model_validator(mode="after")
    def _configs_lie_in_server_folders(self) -> Self:
        allowed = tuple(f"{kind}/" for kind in SERVER_TYPES)
        outside = [path for path in self.config_paths if not path.startswith(allowed)]
        if outside:
            message = f"native-v1 config_paths must be under ({', '.join(allowed)}); found {', '.join(outside)}"
            raise ValueError(message)
        return self


class WheelsManifest(_Manifest):
    """Any environment with its dependencies in ``wheels/``."""

    format: Literal["wheels-v1"]


class Adapter(_Strict):
    """The agent harness of an adapter package."""

    agent: str = Field(description="A harness that the training image has.")
    agent_type: Literal["responses_api_agents"] = Field(default="responses_api_agents", description="Its server type.")

    @field_validator("agent")
    @classmethod
    def _harness_exists(cls, agent: str) -> str:
        if agent not in HARNESSES:
            supported = ", ".join(HARNESSES)
            raise ValueError(f"adapter.agent {agent!r} is not built into the training image; supported: {supported}")
        return agent


class AdapterManifest(_Manifest):
    """A ``verifiers`` environment in ``wheels/``, run by a harness that the package does not carry."""

    format: Literal["adapter-wheels-v1"]
    adapter: Adapter

    @model_validator(mode="after")
    def _configs_lie_in_configs(self) -> Self:
        outside = [path for path in self.config_paths if not path.startswith("configs/")]
        if outside:
            raise ValueError(f"adapter-wheels-v1 config_paths should live under configs/; found {', '.join(outside)}")
        return self


EnvironmentManifest = Annotated[NativeManifest | WheelsManifest | AdapterManifest, Field(discriminator="format")]
MANIFEST: TypeAdapter[NativeManifest | WheelsManifest | AdapterManifest] = TypeAdapter(EnvironmentManifest)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerReference:
    """A place in a server's config that names another server.

    Example:
        ServerReference(key="model_server", type="responses_api_models", name="policy_model")
    """

    key: str
    """Where it stands inside the server's block, dotted."""
    type: ServerType
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerInstance:
    """A server that Gym starts: one top-level block of the merged YAML.

    Example:
        ServerInstance(name="lists_agent", type="responses_api_agents", implementation="simple_agent",
                       config={"entrypoint": "app.py", ...}, source="resources_servers/lists/configs/lists.yaml",
                       directory=None, references=(...))
    """

    name: str
    """Top-level key; rows and other servers refer to it."""
    type: ServerType
    implementation: str
    """Folder name below the server type."""
    config: Mapping[str, Any]
    """The block's settings, interpolations as they stand."""
    source: str
    """The config path that defines it (the last one, when several do)."""
    directory: Path | None
    """The package's own implementation folder; None when Gym's built-in of that name runs."""
    references: tuple[ServerReference, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """An environment package whose manifest and YAML could be read. Whether it is right, ``check_package`` says."""

    root: Path
    """Absolute."""
    manifest: NativeManifest | WheelsManifest | AdapterManifest
    config_paths: tuple[str, ...]
    """The manifest's, normalised, and those that the files among them name in turn."""
    merged: Mapping[str, Any]
    """All config files merged as Gym merges them, interpolations as they stand."""
    instances: tuple[ServerInstance, ...]
    wheels: tuple[str, ...]
    """Paths of vendored wheels, relative to the root."""

    @property
    def agents(self) -> tuple[ServerInstance, ...]:
        """Instances that rows can name."""
        return tuple(instance for instance in self.instances if instance.type == "responses_api_agents")

    @property
    def resources_servers(self) -> tuple[ServerInstance, ...]:
        """Instances that verify and reward."""
        return tuple(instance for instance in self.instances if instance.type == "resources_servers")

    @property
    def models(self) -> tuple[ServerInstance, ...]:
        """Instances that stand for a model."""
        return tuple(instance for instance in self.instances if instance.type == "responses_api_models")


def _normal_path(path: str) -> str:
    if not isinstance(path, str):
        raise ValueError(f"config_paths holds {path!r}; each entry is a path")
    if path.strip() != path or not path:
        raise ValueError(f"config_paths entry {path!r} is empty or has spaces around it")
    normal = path if path.startswith("/") or ".." in path.split("/") else posixpath.normpath(path)
    if normal == "." or (fault := relative_path_fault(normal)):
        raise ValueError(f"config_paths entry {path!r} {'is the root itself' if normal == '.' else fault}")
    return normal
