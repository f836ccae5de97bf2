"""An adapter trains alone, merges, leaves the reference as it was, and is exported as PEFT reads it."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from gym_bridge.types import TrainSample
from launcher.schema.plan import LoraPlan
from launcher.schema.sampling import Sampling
from rl.adapter import merged_weights, write_merged_model
from rl.layout import LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.loss_statistics import loss_values
from rl.optimizer import OptimizerSettings
from rl.workers.batch import RankBatch
from rl.workers.dtensor import full_weights, load_policy
from rl.workers.lora import WithoutAdapter
from rl.workers.policy import PolicyModel, device_batch
from rl.workers.rank import PolicyRank
from rl.workers.settings import ModelSettings, RankSettings

pytestmark = pytest.mark.filterwarnings("ignore")  # importing NeMo Automodel warns about what it does without

LORA = LoraPlan(
    rank=4, alpha=8, multiplier=2.0, dropout=0.0, target_modules=None, exclude_modules=None, use_triton=False
)
LOSS = LossSettings(
    ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
    use_on_policy_kl_approximation=True, use_importance_sampling_correction=True,
    truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
    truncated_importance_sampling_ratio_min=None,
)  # fmt: skip
ADVANTAGES = np.array([1, -1, 0.5, 0, 0, 0, -0.5, 2, -1.5, 0.1, 0.2, -0.3], np.float32)
CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=97, tie_word_embeddings=request.param,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def batch(samples: list[TrainSample]) -> RankBatch:
    layout = LayoutSettings(
        strategy="dynamic", micro_batch_size=1, train_mb_tokens=64, sequence_length_round=8, data_parallel_size=1,
        optimizer_steps=1, hidden_size=32, needs_all_gradients=True,
    )  # fmt: skip
    ((rank_batch,),) = rank_batches(samples, ADVANTAGES, layout)
    return rank_batch


def model_settings(folder: Path, lora: LoraPlan | None = LORA) -> ModelSettings:
    return ModelSettings(
        folder=folder, trust_remote_code=False, activation_checkpointing=False, config_overrides={},
        backend="automodel", lora=lora,
    )  # fmt: skip


def start_rank(folder: Path, lora: LoraPlan | None = LORA, *, kl_penalty: float = 0.0) -> PolicyRank:
    settings = RankSettings(
        model=model_settings(folder, lora),
        optimizer=OptimizerSettings(
            optimizer_type="adamw_with_flat_lr", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.99, adam_eps=1e-5
        ),
        loss=replace(LOSS, ref_policy_kl_penalty=kl_penalty),
        sampling=Sampling(temperature=0.9, top_p=1.0, top_k=None, max_new_tokens=16),
        device="cpu", compute_dtype="float32", max_grad_norm=1.0, seed=1,
    )  # fmt: skip
    threads = torch.get_num_threads()
    return PolicyRank(settings, rank=0, num_ranks=1, rendezvous="", num_threads=threads, log_file=None)


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model.eval()(input_ids=torch.arange(40).view(2, 20)).logits
    return result


def test_only_the_adapter_is_trained_and_has_optimizer_state(model_folder: Path, batch: RankBatch) -> None:
    rank = start_rank(model_folder)
    before = full_weights(rank._policy)
    before = {name: value.clone() for name, value in before.items()}
    for _ in range(2):
        rank.train(batch, 0.01)
    after = full_weights(rank._policy)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    adapter = {name for name in before if ".lora_" in name}
    assert changed == adapter
    assert len(adapter) == 2 * 7 * 2  # two layers of seven linear modules, A and B of each
    assert not any("lm_head" in name for name in adapter)
    assert len(rank._optimizer.state) == len(adapter)
    assert set(full_weights(rank._policy, trained_only=True)) == adapter


def test_a_new_adapter_changes_nothing_and_a_trained_one_merges(
    model_folder: Path, batch: RankBatch, tmp_path: Path
) -> None:
    stock = LlamaForCausalLM.from_pretrained(model_folder)
    rank = start_rank(model_folder)
    assert torch.equal(logits(rank._policy.language_model), logits(stock))
    rank.train(batch, 0.05)
    trained = full_weights(rank._policy)
    untouched = {name: value.clone() for name, value in trained.items()}
    (tmp_path / "weights").mkdir()
    rank.write_weights(tmp_path / "weights")
    assert all(torch.equal(trained[name], untouched[name]) for name in trained)
    merged = load_file(tmp_path / "weights" / "model.safetensors")
    assert set(merged) == {name for name in trained if ".lora_" not in name}
    stock.load_state_dict(merged, strict=False)
    assert not torch.allclose(logits(stock), logits(LlamaForCausalLM.from_pretrained(model_folder)), atol=1e-3)
    torch.testing.assert_close(logits(stock), logits(rank._policy.language_model), rtol=1e-5, atol=1e-5)


def test_merging_multiplies_by_alpha_over_rank() -> None:
    weights = {
        "l.weight": torch.eye(2),
        "l.lora_A.weight": torch.tensor([[1.0, 2.0]]),
        "l.lora_B.weight": torch.tensor([[3.0], [0.0]]),
    }
    assert merged_weights(weights, multiplier=2.0)["l.weight"].tolist() == [[7.0, 12.0], [0.0, 1.0]]


def test_peft_loads_the_export_with_equal_logits(model_folder: Path, batch: RankBatch, tmp_path: Path) -> None:
    from peft import PeftModel

    rank = start_rank(model_folder)
    rank.train(batch, 0.05)
    rank.export(tmp_path / "export")
    assert sorted(file.name for file in (tmp_path / "export").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), tmp_path / "export")
    loaded_logits = logits(loaded)
    torch.testing.assert_close(loaded_logits, logits(rank._policy.language_model), rtol=1e-5, atol=1e-5)
    assert torch.equal(loaded_logits.argmax(-1), logits(rank._policy.language_model).argmax(-1))
    for folder in ("synced", "merged"):
        (tmp_path / folder).mkdir()
    rank.write_weights(tmp_path / "synced")
    write_merged_model(model_folder, tmp_path / "export", tmp_path / "merged", dtype="float32")
    synced, merged = (load_file(tmp_path / folder / "model.safetensors") for folder in ("synced", "merged"))
    assert synced.keys() == merged.keys()
    assert all(torch.equal(synced[name], merged[name]) for name in synced), "what training gave the sampler"


def test_the_reference_is_the_model_before_training(model_folder: Path, batch: RankBatch) -> None:
    rank = start_rank(model_folder, kl_penalty=0.5)
    assert isinstance(rank._reference, WithoutAdapter)
    penalties = [loss_values(rank.train(batch, 0.05).statistics)["kl_penalty"] for _ in range(2)]
    assert penalties[0] == 0.0
    assert penalties[1] > 1e-4
    reference = load_policy(model_settings(model_folder, None), None, CPU)
    inputs = device_batch(batch.trained[0], CPU)
    with torch.no_grad():
        found, expected, policy = (
            model(inputs, temperature=1.0, top_k=None)[0] for model in (rank._reference, reference, rank._policy)
        )
    assert torch.equal(found, expected)
    assert not torch.allclose(policy, expected, atol=1e-3)


def test_dropout_acts_in_training_and_not_in_scores(model_folder: Path, batch: RankBatch) -> None:
    rank = start_rank(model_folder, replace(LORA, dropout=0.5))
    rank.train(batch, 0.05)
    first, second = rank.logprobs(batch), rank.logprobs(batch)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    losses = {rank.train(batch, 0.0).grad_norm for _ in range(2)}
    assert len(losses) == 2, "each training pass drops others"


def names(lora: LoraPlan, caplog: pytest.LogCaptureFixture, folder: Path) -> set[str]:
    with caplog.at_level(logging.INFO, "rl.workers.lora"):
        policy: PolicyModel = load_policy(model_settings(folder, lora), None, CPU)
    adapted = {
        name.partition(".lora_A")[0]
        for name in full_weights(policy, trained_only=True)
        if name.endswith("lora_A.weight")
    }
    (line,) = [r.getMessage() for r in caplog.records if r.name == "rl.workers.lora"]
    assert line.startswith(f"LoRA adapts {len(adapted)} linear layers: ")
    assert all(name in line for name in adapted)
    return adapted


def test_target_patterns_name_what_is_adapted(model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lora = replace(LORA, target_modules=("q_proj", "model.layers.1.mlp.*"))
    assert names(lora, caplog, model_folder) == {
        "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.gate_proj",
        "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj",
    }  # fmt: skip


def test_exclude_patterns_name_what_is_not(model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lora = replace(LORA, exclude_modules=("*.mlp.*", "q_proj", "k_proj", "model.layers.0.*"))
    assert names(lora, caplog, model_folder) == {
        "model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.o_proj",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        (replace(LORA, target_modules=("q_porj",)), "target_modules: 'q_porj' matches none of the model's 15 linear"),
        (replace(LORA, exclude_modules=("model.*",)), "leaves none of the model's 15 linear layers"),
    ],
)
def test_a_choice_of_nothing_is_refused(lora: LoraPlan, words: str, model_folder: Path) -> None:
    with pytest.raises(ValueError, match=words):
        load_policy(model_settings(model_folder, lora), None, CPU)


def test_automodel_for_all_weights_runs_stock_modules_and_says_so_once(
    model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rl.workers"):
        rank = start_rank(model_folder, None, kl_penalty=0.5)
    assert type(rank._policy.language_model) is LlamaForCausalLM
    assert sum("stock transformers modules" in record.getMessage() for record in caplog.records) == 1


def test_activation_checkpointing_does_not_change_the_adapter(model_folder: Path, batch: RankBatch) -> None:
    plain, checkpointed = start_rank(model_folder), start_rank(model_folder)
    checkpointed._policy.language_model.gradient_checkpointing_enable({"use_reentrant": False})
    first, second = (rank.train(batch, 0.05).grad_norm for rank in (plain, checkpointed))
    assert first == pytest.approx(second, rel=1e-5)
    assert first > 0
