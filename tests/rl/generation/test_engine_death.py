"""A vLLM with adapters; how one that dies is told, and what is left of one that is ended: nothing."""

import asyncio
import os
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gym_bridge.types import TrainSample
from launcher.schema.plan import LoraPlan
from launcher.schema.problems import RunFailed
from launcher.schema.sampling import Sampling
from rl.layout import LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.optimizer import OptimizerSettings
from rl.process_group import group_members
from rl.workers.rank import PolicyRank
from rl.workers.settings import ModelSettings, RankSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GREEDY = Sampling(temperature=1.0, top_p=1.0, top_k=1, max_new_tokens=24)
OVERRIDES = {"rms_norm_eps": 0.01}
QUESTIONS = ("Write a numbered list of three birds, like '1. name'.", "What is the capital of France?")
PROMPT = (1, 4093, 198, 19556, 2)
TOLD_S = 45.0
"""Within which a death is told on a busy machine: sooner than an engine that does not answer is given up (60 s)."""


def close(runner, engine) -> None:
    """End an engine; nothing of it is left."""
    started = time.monotonic()
    runner.run(engine.close())
    assert time.monotonic() - started < 30
    assert group_members(engine.pids["actor"]) == []


@pytest.fixture(scope="module")
def doomed(start_vllm, runner, demo_generation, tmp_path_factory):
    """A vLLM of this module's own, which takes adapters, in float32; the last test that uses it kills it."""
    settings = replace(
        demo_generation, lora_rank=8, dtype="float32", sampling=GREEDY, config_overrides=OVERRIDES, max_num_seqs=8
    )
    engine = start_vllm(settings, tmp_path_factory.mktemp("doomed"))
    yield engine
    runner.run(engine.close())


@pytest.fixture(scope="module")
def trained(demo_generation, demo_model_folder, tmp_path_factory):
    """An adapter of two training steps on made-up responses: (the policy that trained it, its export)."""
    folder = tmp_path_factory.mktemp("adapter")
    numbers = random.Random(0)
    samples = [
        TrainSample(
            group_id=0, rollout_id=rollout, token_ids=(*PROMPT, *(numbers.randrange(2, 49152) for _ in range(8))),
            loss_mask=(0,) * len(PROMPT) + (1,) * 8, logprobs=(0.0,) * len(PROMPT) + (-10.0,) * 8, truncated=False,
        )
        for rollout in range(4)
    ]  # fmt: skip
    layout = LayoutSettings(
        strategy="dynamic", micro_batch_size=1, train_mb_tokens=256, sequence_length_round=8, data_parallel_size=1,
        optimizer_steps=1, hidden_size=576, needs_all_gradients=True,
    )  # fmt: skip
    ((batch,),) = rank_batches(samples, np.array([1, -1, 0.5, -0.5], np.float32), layout)
    rank = PolicyRank(
        RankSettings(
            model=ModelSettings(
                folder=demo_model_folder, trust_remote_code=False, activation_checkpointing=False,
                config_overrides=OVERRIDES, backend="automodel",
                lora=LoraPlan(rank=8, alpha=16, multiplier=2.0, dropout=0.0, target_modules=None,
                              exclude_modules=None, use_triton=True),
            ),
            optimizer=OptimizerSettings(
                optimizer_type="adamw_with_flat_lr", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.99, adam_eps=1e-5
            ),
            loss=LossSettings(
                ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
                use_on_policy_kl_approximation=True, use_importance_sampling_correction=False,
                truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
                truncated_importance_sampling_ratio_min=None,
            ),
            sampling=demo_generation.sampling, device="cpu", compute_dtype="float32", max_grad_norm=1.0, seed=0,
        ),
        rank=0, num_ranks=1, rendezvous="", num_threads=torch.get_num_threads(), log_file=None,
    )  # fmt: skip
    for _ in range(2):
        rank.train(batch, 2e-3)
    rank.export(folder / "export")
    return rank._policy.language_model.eval(), folder / "export"


def greedy_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    found = []
    for question in QUESTIONS:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        answer = model.generate(**inputs, do_sample=False, max_new_tokens=GREEDY.max_new_tokens)
        found.append(answer[0, inputs["input_ids"].shape[1] :].tolist())
    return found


@pytest.mark.filterwarnings("ignore")  # importing NeMo Automodel warns about what it does without
def test_an_exported_adapter_gives_the_trainers_own_tokens(doomed, trained, runner, ask, demo_model_folder):
    """In float32, with an override of the model's config, in the trainer, in transformers with PEFT and in vLLM."""
    trainer, export = trained
    tokenizer = AutoTokenizer.from_pretrained(demo_model_folder)
    config = AutoConfig.from_pretrained(demo_model_folder, **OVERRIDES)
    base = AutoModelForCausalLM.from_pretrained(demo_model_folder, config=config, dtype=torch.float32)
    untrained = greedy_tokens(base, tokenizer)
    requests = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]

    def sampled() -> list[list[int]]:
        answers = ask(doomed, *requests)
        assert {status for status, _ in answers} == {200}
        return [answer["choices"][0]["message"]["generation_token_ids"] for _, answer in answers]

    assert sampled() == untrained
    plain = AutoModelForCausalLM.from_pretrained(demo_model_folder, dtype=torch.float32)
    assert greedy_tokens(plain, tokenizer) != untrained, "the override changes what is sampled"
    expected = greedy_tokens(trainer, tokenizer)
    assert expected != untrained
    assert greedy_tokens(PeftModel.from_pretrained(base, export), tokenizer) == expected
    for version in (1, 2):
        runner.run(doomed.update_weights(export, policy_version=version))
    assert sampled() == expected
    assert doomed.find_call(expected[0]).policy_version == 2


def test_a_killed_engine_is_told_with_its_last_output(doomed, runner, tmp_path):
    with pytest.raises(RunFailed, match=r"vLLM failed: .*adapter"):
        runner.run(doomed.update_weights(tmp_path, policy_version=3))
    core = next(pid for name, pid in doomed.pids.items() if "EngineCore" in name)
    os.kill(core, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(RunFailed, match=f"EngineCore.*pid {core}") as told:
        runner.run(asyncio.wait_for(doomed.watch(), TOLD_S))
    assert "its last output" in str(told.value)
    assert time.monotonic() - killed < TOLD_S
    close(runner, doomed)


def test_closing_while_vllm_starts_leaves_nothing(runner, demo_generation, scratch, tmp_path):
    from rl.generation.engine import VllmEngine

    async def launch_and_begin_to_load() -> VllmEngine:
        loading = asyncio.Event()
        engine = await VllmEngine.launch(demo_generation, log_folder=tmp_path, scratch=scratch)
        load = asyncio.create_task(engine.load(lambda phase: loading.set() if phase == "loading the model" else None))
        await loading.wait()
        await asyncio.sleep(3)
        async with asyncio.timeout(120):
            while len(group_members(engine.pids["actor"])) < 2:  # the engine's own process is about to start
                await asyncio.sleep(0.1)
        load.cancel()
        return engine

    engine = runner.run(launch_and_begin_to_load())
    close(runner, engine)


def test_a_killed_actor_is_told_and_takes_its_children_along(runner, demo_generation, start_vllm, tmp_path):
    engine = start_vllm(demo_generation, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFailed, match=r"vLLM failed: .*(safetensors|weights)"):
        runner.run(engine.update_weights(tmp_path / "empty", policy_version=1))
    os.kill(engine.pids["actor"], signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"the vLLM actor died; gone: actor"):
        runner.run(asyncio.wait_for(engine.watch(), TOLD_S))
    close(runner, engine)
