"""What becomes of a model's own tensor-parallel plan; dividing layers for real is tested in test_ranks.py."""

import pytest
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from launcher.tensor_plan import heads, uneven_heads, uneven_width
from rl.workers.tensor_parallel import HeadNorm, tensor_styles

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 2, "vocab_size": 11, "pad_token_id": 0}  # fmt: skip


def test_every_layer_is_split_and_nothing_outside_them() -> None:
    styles = tensor_styles(Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)))
    assert len(styles) == 2 * 9
    assert all(name.startswith("layers.") for name in styles)
    assert isinstance(styles["layers.1.mlp.up_proj"], ColwiseParallel)
    assert isinstance(styles["layers.0.self_attn.o_proj"], RowwiseParallel)
    assert isinstance(styles["layers.0.self_attn.k_norm"], HeadNorm)


def test_fused_matrices_are_split_and_their_output_is_not() -> None:
    styles = tensor_styles(Phi3ForCausalLM(Phi3Config(**SIZES)))
    fused = styles["layers.0.self_attn.qkv_proj"]
    assert isinstance(fused, ColwiseParallel)
    assert [placement.is_replicate() for placement in fused.output_layouts] == [True]


def without_up_projection() -> PreTrainedModel:
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    for layer in model.model.layers:
        del layer.mlp.up_proj
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11)), "no tensor-parallel plan"),
        (Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=2, moe_intermediate_size=8)), "'packed_colwise'"),
        (without_up_projection(), "Qwen3ForCausalLM has no layers.*.mlp.up_proj, which its plan splits"),
    ],
    ids=["no plan", "experts", "other modules"],
)
def test_a_model_that_cannot_be_split_is_refused(model: PreTrainedModel, words: str) -> None:
    with pytest.raises(NotImplementedError) as error:
        tensor_styles(model)
    assert words in str(error.value)


def test_a_size_that_heads_or_width_do_not_divide_by_is_named_with_them() -> None:
    smollm2 = {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536}
    assert uneven_heads(smollm2, 3) is uneven_width(smollm2, 3) is None
    assert uneven_heads(smollm2, 2) == "2 does not divide both the model's 9 attention heads and its 3 key-value heads"
    assert uneven_width(smollm2, 5) == "5 does not divide the model's intermediate_size (1536)"
    assert heads({"text_config": {"num_attention_heads": 4}}) == (4, 4)
    assert heads({}) is uneven_heads({}, 2) is uneven_width({}, 2) is None
