"""What rules need to know beyond the job: read from disk and from the machine, each fact None while unknown.

A rule whose fact is unknown is silent, so that the same rules serve ``grpo check --config-only``, a sweep that gathers
facts once, and a machine that is not the one that will train.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launcher.schema.problems import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What the files of a model say.

    Example:
        ModelFacts(config={"model_type": "llama"}, tensors={"model.layers.0.mlp.up_proj.weight": (1536, 576)})
    """

    config: Mapping[str, Any]
    """config.json."""
    tensors: Mapping[str, tuple[int, ...]] | None = None
    """Name -> shape, from the headers of the safetensors files; None when there are none."""
    folder: Path | None = None
    """Where the files lie."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentFacts:
    """What the configs of an environment package say.

    Example:
        EnvironmentFacts(format="native-v1", agents_without_turn_limit={"my_agent": "my_agent"})
    """

    format: str
    agents_without_turn_limit: Mapping[str, str] = field(default_factory=dict)
    """Agent instance -> implementation, of agents that have no limit of turns to set."""
    uses_reasoning_parser: bool = False
    """The policy model's server is told to expect parsed reasoning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts:
    """What this machine would train on.

    Example:
        DeviceFacts(kind="cuda", name="NVIDIA H200", compute_capability=(9, 0), memory_bytes=150_754_820_096, count=1)
    """

    kind: Literal["cpu", "cuda"]
    name: str
    memory_bytes: int
    """Of one GPU, or of the machine."""
    count: int = 1
    """GPUs."""
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All of it; the default knows nothing."""

    num_training_rows: int | None = None
    num_validation_rows: int | None = None
    """0 when there is no validation.jsonl."""
    num_rows_with_tools: int | None = None
    model: ModelFacts | None = None
    environment: EnvironmentFacts | None = None
    device: DeviceFacts | None = None
    has_no_cuda: bool = False
    """A GPU was asked for and none can be seen here."""
    unreachable: tuple[Problem, ...] = ()
    """References that lead nowhere, or to the wrong thing."""
