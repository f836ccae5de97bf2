"""The model's own config with the job's overrides in it."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from launcher.suggest import did_you_mean
from rl.workers.settings import ModelSettings


def read_model_config(settings: ModelSettings) -> PretrainedConfig:
    """The config of ``settings.folder`` with ``settings.config_overrides`` applied.

    Raises:
        ValueError: an override's key is none of the config's.
    """
    config: PretrainedConfig = AutoConfig.from_pretrained(
        settings.folder, trust_remote_code=settings.trust_remote_code, local_files_only=True
    )
    override_config(config, settings.config_overrides)
    return config


def override_config(
    config: PretrainedConfig, overrides: Mapping[str, Any], *, path: str = "training.hf_config_overrides"
) -> None:
    """Set keys of a config in place. A mapping for a nested config goes into it; any other value replaces the old one.

    Args:
        config: changed.
        overrides: key -> value.
        path: where the overrides stand in the job, for the message.

    Raises:
        ValueError: a key is none of the config's.
    """
    for key, value in overrides.items():
        if not hasattr(config, key):
            fix = did_you_mean(key, config.to_dict(), otherwise="see the model's config.json for its keys")
            raise ValueError(f"{path}.{key}: {type(config).__name__} has no such key; {fix}")
        nested = getattr(config, key)
        if isinstance(nested, PretrainedConfig) and isinstance(value, Mapping):
            override_config(nested, value, path=f"{path}.{key}")
        else:
            setattr(config, key, value)
