"""Which of NeMo Automodel's modules fit the engine, as far as a machine without a GPU can tell."""

import pytest
from transformers import LlamaConfig, MixtralConfig, PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from rl.workers.automodel import refuse_foreign_modules

pytestmark = pytest.mark.filterwarnings("ignore")  # importing NeMo Automodel warns about what it does without


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(architectures=["LlamaForCausalLM"]),
        Qwen3Config(architectures=["Qwen3ForCausalLM"]),
        MixtralConfig(architectures=["MixtralForCausalLM"]),  # Automodel has none of its own
    ],
)
def test_modules_that_are_called_as_those_of_transformers_are_taken(config: PretrainedConfig) -> None:
    refuse_foreign_modules(config, {})


def test_automodels_own_experts_are_refused_with_the_way_to_those_of_transformers() -> None:
    config = Qwen3MoeConfig(architectures=["Qwen3MoeForCausalLM"])
    with pytest.raises(NotImplementedError, match=r"own Qwen3MoeForCausalLM does not fit .*automodel_kwargs={force_hf"):
        refuse_foreign_modules(config, {})
    refuse_foreign_modules(config, {"force_hf": True})
