"""Peak memory of one training rank: what ``grpo check`` estimates, against what a real step takes on this CPU.

    .venv/bin/python benchmarks/memory.py

Each model has random weights and trains two steps of one full micro-batch in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model and the micro-batch it trains on."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    vocabulary: int
    rows: int
    width: int
    prompt: int
    """Tokens of a row that are not trained."""
    num_micro_batches: int = 2
    dtype: str = "bfloat16"
    activation_checkpointing: bool = False


CASES = (
    Case(hidden_size=576, intermediate_size=1536, num_layers=10, num_heads=9, vocabulary=49152, rows=8, width=128,
         prompt=32, num_micro_batches=3),
    Case(hidden_size=384, intermediate_size=1024, num_layers=16, num_heads=6, vocabulary=32000, rows=4, width=512,
         prompt=128, num_micro_batches=1),
    Case(hidden_size=512, intermediate_size=1408, num_layers=12, num_heads=8, vocabulary=16000, rows=8, width=256,
         prompt=64, num_micro_batches=2, activation_checkpointing=True),
)  # fmt: skip
BOUND = 0.1


def main() -> int:
    """Print estimate, measurement and their ratio for each case; status 1 when one is off by more than a tenth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", help="run one case, given as JSON, and print its peak")
    options = parser.parse_args()
    if options.case:
        print(json.dumps({"peak": measured_peak(Case(**json.loads(options.case)))}))
        return 0
    missed = False
    for case in CASES:
        measured, expected = measure(case), estimated_peak(case)
        ratio = expected / measured
        missed |= abs(ratio - 1) > BOUND
        print(f"{case}\n  measured {measured / 2**20:.0f} MiB, estimated {expected / 2**20:.0f}, ratio {ratio:.3f}")
    return int(missed)


def measure(case: Case) -> int:
    """Peak bytes of a process that trains ``case``."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
    return int(json.loads(answer.stdout.splitlines()[-1])["peak"])


def estimated_peak(case: Case) -> int:
    """What ``grpo check`` says of a job with this model and micro-batch."""
    from launcher.facts import ModelFacts
    from launcher.memory import memory_estimate
    from launcher.schema.job import JobConfig

    job = JobConfig.model_validate({
        "model": {"name": "m", "dtype": case.dtype}, "dataset": "d", "environment": "e",
        "training": {
            "type": "grpo", "policy_backend": "dtensor", "max_seq_length": case.width,
            "train_mb_tokens": case.rows * case.width, "batch_size": case.rows * case.num_micro_batches,
            "activation_checkpointing": case.activation_checkpointing,
        },
    })  # fmt: skip
    config = model_config(case)
    estimate = memory_estimate(job, ModelFacts(config=config, tensors=tensors(config)), "cpu")
    assert estimate is not None
    return estimate.total_bytes


def model_config(case: Case) -> dict[str, int]:
    """The part of config.json that says how large the model is."""
    return {
        "hidden_size": case.hidden_size, "intermediate_size": case.intermediate_size,
        "num_hidden_layers": case.num_layers, "num_attention_heads": case.num_heads,
        "num_key_value_heads": max(case.num_heads // 3, 1), "vocab_size": case.vocabulary,
    }  # fmt: skip


def tensors(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Llama model with tied embeddings."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    narrow = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        shapes = {"q": (hidden, hidden), "k": (narrow, hidden), "v": (narrow, hidden), "o": (hidden, hidden),
                  "gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}  # fmt: skip
        found |= {f"model.layers.{layer}.{name}_proj.weight": shape for name, shape in shapes.items()}
    return found


def measured_peak(case: Case) -> int:
    """Train two steps in this process; bytes resident at the highest point."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from gym_bridge.types import TrainSample
    from launcher.schema.sampling import Sampling
    from rl.batching import Unit
    from rl.loss import LossSettings
    from rl.micro_batch import micro_batch
    from rl.optimizer import OptimizerSettings, build_optimizer
    from rl.workers.batch import RankBatch
    from rl.workers.dtensor import ModelSettings, load_policy
    from rl.workers.step import StepSettings, train_step

    config = LlamaConfig(**model_config(case), tie_word_embeddings=True)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        settings = ModelSettings(folder=Path(folder), trust_remote_code=False, config_overrides={},
                                 activation_checkpointing=case.activation_checkpointing)  # fmt: skip
        policy = load_policy(settings, None, torch.device("cpu"))
    optimizer = build_optimizer(
        policy.parameters(),
        OptimizerSettings(optimizer_type="adamw_with_cosine_annealing", weight_decay=0.01, adam_beta1=0.9,
                          adam_beta2=0.999, adam_eps=1e-5),
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, case.vocabulary, (case.rows, case.width))
    trained = case.width - case.prompt
    samples = [
        TrainSample(group_id=n, rollout_id=0, token_ids=tuple(map(int, row)), truncated=False,
                    loss_mask=(0,) * case.prompt + (1,) * trained, logprobs=(0.0,) * case.prompt + (-9.0,) * trained)
        for n, row in enumerate(tokens)
    ]  # fmt: skip
    units = [[Unit(samples=(n,), num_prompt_tokens=case.prompt, num_tokens=case.width)] for n in range(case.rows)]
    batch = RankBatch(
        trained=(micro_batch(units, samples, width=case.width),) * case.num_micro_batches, scored=(),
        num_tokens=case.rows * trained * case.num_micro_batches,
        advantages=np.ones(case.rows, np.float32), previous_logprobs=None, data_parallel_size=1,
    )  # fmt: skip
    loss = LossSettings(
        ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=None, ref_policy_kl_penalty=0.0,
        use_on_policy_kl_approximation=True, use_importance_sampling_correction=True,
        truncated_importance_sampling_type=None, truncated_importance_sampling_ratio=None,
        truncated_importance_sampling_ratio_min=None,
    )  # fmt: skip
    step = StepSettings(loss=loss, sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=trained),
                        compute_dtype=getattr(torch, case.dtype), max_grad_norm=1.0)  # fmt: skip
    for _ in range(2):
        result = train_step(policy, optimizer, batch, step, learning_rate=1e-5, reference=None)
    return result.peak_memory_bytes


if __name__ == "__main__":
    sys.exit(main())
