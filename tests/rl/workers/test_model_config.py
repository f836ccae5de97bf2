"""Overrides reach the model, and a key that its config does not have is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlavaConfig

from rl.workers.dtensor import load_policy
from rl.workers.model_config import override_config, read_model_config
from rl.workers.settings import ModelSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=31
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def settings(folder: Path, overrides: dict[str, Any]) -> ModelSettings:
    return ModelSettings(
        folder=folder, trust_remote_code=False, activation_checkpointing=False, config_overrides=overrides
    )


def test_an_override_reaches_the_model(folder: Path) -> None:
    policy = load_policy(settings(folder, {"rms_norm_eps": 0.5}), None, torch.device("cpu"))
    assert policy.language_model.model.norm.variance_epsilon == 0.5
    assert read_model_config(settings(folder, {})).rms_norm_eps != 0.5


def test_an_unknown_key_is_refused_with_the_nearest(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.hf_config_overrides\.rms_norm_esp: LlamaConfig has no such key; "
                       r"did you mean rms_norm_eps\?"):  # fmt: skip
        read_model_config(settings(folder, {"rms_norm_esp": 0.5}))


def test_a_nested_config_is_changed_in_place() -> None:
    config = LlavaConfig(text_config=LlamaConfig(hidden_size=16, num_attention_heads=2))
    override_config(config, {"text_config": {"rms_norm_eps": 0.5}})
    assert (config.text_config.rms_norm_eps, config.text_config.hidden_size) == (0.5, 16)
    with pytest.raises(ValueError, match=r"hf_config_overrides\.text_config\.no_such_key: LlamaConfig has no such key"):
        override_config(config, {"text_config": {"no_such_key": 1}})
