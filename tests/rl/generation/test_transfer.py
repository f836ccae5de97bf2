"""Weights from GPU to GPU, as far as a CPU can tell: who calls whom in what order, and what is sent."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from rl.generation.transfer import ActorClient, PolicyWeights, TransferTarget, trainer_info, transfer_target
from rl.generation.weights import write_weights
from rl.workers.dtensor import full_weights, in_file_format, named_weights
from rl.workers.policy import PolicyModel


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=11,
        tie_word_embeddings=True,
    )  # fmt: skip
    return PolicyModel(LlamaForCausalLM(config).float())


def sent_weights(policy: PolicyModel, dtype: torch.dtype = torch.bfloat16) -> PolicyWeights:
    return PolicyWeights(
        lambda: named_weights(policy), dtype=dtype, as_in_files=lambda one: in_file_format(policy, one)
    )


def test_weights_one_by_one_are_all_weights(policy):
    whole = full_weights(policy)
    one_by_one = dict(named_weights(policy))
    assert list(one_by_one) == list(whole)
    assert "model.embed_tokens.weight" in whole
    assert "lm_head.weight" not in whole  # tied
    assert all(torch.equal(one_by_one[name], value) for name, value in whole.items())


@pytest.mark.e2e
def test_what_is_declared_is_what_is_sent(policy):
    weights = sent_weights(policy)
    declared = [(meta.name, meta.dtype, meta.shape) for meta in weights.metadata()]
    sent = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights]
    assert declared == sent == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights]
    assert declared[0] == ("model.embed_tokens.weight", torch.bfloat16, (11, 16))


@pytest.mark.e2e
def test_experts_are_sent_as_the_models_files_hold_them(tmp_path):
    """transformers joins the experts of a layer in one tensor; vLLM knows them one by one."""
    config = Qwen3MoeConfig(
        hidden_size=16, moe_intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, vocab_size=11, num_experts=3, num_experts_per_tok=2,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    experts = PolicyModel(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    stored = load_file(tmp_path / "model.safetensors")
    weights = sent_weights(experts, dtype=torch.float32)
    sent = dict(weights)
    assert [(meta.name, meta.shape) for meta in weights.metadata()] == [(n, tuple(t.shape)) for n, t in sent.items()]
    assert sent.keys() == stored.keys()
    assert all(torch.equal(sent[name], stored[name]) for name in stored)
    whole = in_file_format(experts, full_weights(experts))
    assert all(torch.equal(whole[name], stored[name]) for name in stored)
    write_weights(whole, tmp_path, dtype=torch.float32)


@pytest.mark.e2e
def test_the_policys_rank_says_how_it_sends():
    shared = trainer_info(TransferTarget(actor_name="a", backend="ipc", num_workers=2, port=1), rank=1)
    assert (shared.backend, shared.rank, shared.is_sender, shared.packed) == ("ipc", 1, False, True)
    separate = trainer_info(TransferTarget(actor_name="a", backend="nccl", num_workers=2, port=5), rank=0)
    assert (separate.backend, separate.is_sender, separate.world_size) == ("nccl", True, 3)
    assert (separate.master_address, separate.master_port) == ("127.0.0.1", 5)


def test_the_actor_hears_every_step_in_order(scratch):
    import ray

    @ray.remote
    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[str, object]] = []

        def transfer(self, step: str, payload: object) -> None:
            self.heard.append((step, payload))

        def all(self) -> list[tuple[str, object]]:
            return self.heard

    listener = Listener.remote()
    client = ActorClient(listener)
    client.init_weight_transfer_engine({"packed": True})
    client.start_weight_update()
    client.update_weights({"names": ["w"]})
    client.finish_weight_update()
    heard = ray.get(listener.all.remote(), timeout=60)
    ray.kill(listener)
    assert heard == [("init", {"packed": True}), ("start", None), ("update", {"names": ["w"]}), ("finish", None)]


def test_each_run_has_a_target_of_its_own():
    one, two = (transfer_target(shares_gpus=True, num_workers=1) for _ in range(2))
    assert one.actor_name != two.actor_name
    assert (one.backend, transfer_target(shares_gpus=False, num_workers=1).backend) == ("ipc", "nccl")


def test_tensors_on_the_wire_are_detached(policy):
    assert all(isinstance(tensor, Tensor) and not tensor.requires_grad for _, tensor in named_weights(policy))
