"""What an engine does not implement, in one table: a feature that gets implemented is a line that goes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from launcher.schema.groups import EngineConfig, GymConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Values of one setting that an engine would not act on.

    Example:
        Gap(engine="nemo_rl", key="cluster.device", refused=is_("cpu"), what="training on a CPU",
            implemented_by="local")
    """

    engine: Literal["local", "nemo_rl"]
    key: str
    refused: Callable[[Any], bool]
    what: str
    implemented_by: Literal["local", "nemo_rl"] | None = "nemo_rl"


def is_(*values: object) -> Callable[[Any], bool]:
    """Refuses these values."""
    return lambda value: value in values


def is_set(value: Any) -> bool:
    """Refuses everything but unset, off and empty."""
    return value is not None and value is not False and value != () and value != 0


def other_than(default: object) -> Callable[[Any], bool]:
    """Refuses everything but the default of a setting that the engine does not read."""
    return lambda value: value != default


def above_one(value: Any) -> bool:
    """Refuses sizes above 1."""
    return value is not None and value > 1


def _local(key: str, refused: Callable[[Any], bool], what: str, *, elsewhere: bool = True) -> Gap:
    return Gap(engine="local", key=key, refused=refused, what=what, implemented_by="nemo_rl" if elsewhere else None)


def _nemo_rl(key: str, refused: Callable[[Any], bool], what: str, *, elsewhere: bool = True) -> Gap:
    return Gap(engine="nemo_rl", key=key, refused=refused, what=what, implemented_by="local" if elsewhere else None)


GAPS: tuple[Gap, ...] = (
    _local("training.parallelism.context_parallel_size", above_one, "context parallel"),
    _local("training.parallelism.expert_parallel_size", above_one, "expert parallel"),
    _local("training.parallelism.sequence_parallel", is_set, "sequence parallel"),
    _local("checkpoint.save_interval", is_set, "checkpoints between steps"),
    _local("training.keep_top_k", other_than(1), "keeping several checkpoints"),
    _local("sandbox.enabled", is_set, "a sandbox", elsewhere=False),
    _nemo_rl("sandbox.enabled", is_set, "a sandbox", elsewhere=False),
    _nemo_rl("cluster.device", is_("cpu"), "training on a CPU"),
    _nemo_rl("engine.max_failed_share", other_than(EngineConfig().max_failed_share), "a share of failed rollouts"),
    _nemo_rl("health.failures", is_("stop"), "counting failed rollouts"),
    _nemo_rl("gym.version", other_than(GymConfig().version), "another NeMo Gym than its own"),
    _nemo_rl("gym.start_timeout_s", other_than(GymConfig().start_timeout_s), "a bound on the start of NeMo Gym"),
    _nemo_rl("gym.rollout_timeout_s", other_than(GymConfig().rollout_timeout_s), "a bound on rollouts"),
    _nemo_rl("gym.max_in_flight", other_than(GymConfig().max_in_flight), "a limit of rollouts in flight"),
)
