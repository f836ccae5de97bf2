"""The model's own config with the job's overrides in it."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from launcher.suggest import did_you_mean
from rl.router_loss import RouterSettings
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


def router_settings(config: PretrainedConfig, coefficient: float) -> RouterSettings | None:
    """How the routers of a model are balanced; None when ``coefficient`` is 0.

    Raises:
        NotImplementedError: the config does not say how many experts a token gets.
    """
    if coefficient == 0:
        return None
    experts = getattr(config.get_text_config(), "num_experts_per_tok", None)
    if experts is None:
        raise NotImplementedError(
            f"training.router_aux_loss_coef: {type(config).__name__} has no num_experts_per_tok, so that engine=local "
            "cannot tell what its routers chose; use engine=nemo_rl, or leave it out"
        )
    return RouterSettings(coefficient=coefficient, experts_per_token=experts)


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
