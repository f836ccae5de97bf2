"""The whole job: what a recipe, a job JSON and the command line add up to."""

from launcher.schema.base import Name, Section, Text
from launcher.schema.groups import (
    CheckpointConfig,
    ClusterConfig,
    EngineConfig,
    EnvironmentConfig,
    GymConfig,
    HealthConfig,
    LoggerConfig,
    ModelConfig,
    OutputConfig,
    SandboxConfig,
)
from launcher.schema.training import TrainingConfig


class JobConfig(Section):
    """One GRPO job, complete and valid field by field; ``launcher.rules`` checks fields against each other.

    Example:
        JobConfig.model_validate({"model": "default/qwen3-0.6b", "dataset": "default/rows",
                                  "environment": "default/env", "training": {"type": "grpo"}})
    """

    name: Name | None = None
    """Name of the run; unset is the output's name."""
    model: ModelConfig
    """The model to train."""
    dataset: Text
    """Reference to a folder with training.jsonl and, if there is validation, validation.jsonl."""
    environment: EnvironmentConfig
    """The package that scores rollouts."""
    training: TrainingConfig
    """How it is trained."""
    output: OutputConfig = OutputConfig()
    """What it produces."""
    engine: EngineConfig = EngineConfig()
    """What runs it."""
    gym: GymConfig = GymConfig()
    """How NeMo Gym is run."""
    cluster: ClusterConfig = ClusterConfig()
    """Where its processes live."""
    logger: LoggerConfig = LoggerConfig()
    """Who else gets the metrics."""
    sandbox: SandboxConfig = SandboxConfig()
    """Isolation of the environment."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When it is saved."""
    health: HealthConfig = HealthConfig()
    """What an unhealthy step does."""
