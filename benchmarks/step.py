"""Seconds per phase of the demo's training step, and tokens per second, on this machine.

    .venv/bin/python benchmarks/step.py [--steps 6]

Runs the demo for a few steps without validation. The first step is left out: it warms caches. "other" is whatever is
neither generation nor training.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GENERATION, TRAINING = "train_timing/generation", "train_timing/policy_training"
TOTAL = "train_timing/total_step_time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="training steps, the first of which is not counted (6)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [Path(sys.executable).with_name("grpo"), "train", "recipe=demo", f"engine.runs_dir={folder}",
             f"training.max_steps={options.steps}", "training.val_at_start=false", "training.val_at_end=false"],
            check=True,
        )  # fmt: skip
        (metrics_file,) = Path(folder).glob("*/*/metrics.jsonl")
        (rollouts, *_) = [json.loads(line) for line in metrics_file.read_text().splitlines()], None
    steps = rollouts[1:]
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, median of {len(steps)} steps of 64 rollouts")
    phases = sorted(key for key in steps[0] if key.startswith("train_timing/"))
    total = statistics.median(step[TOTAL] for step in steps)
    for phase in phases:
        seconds = statistics.median(step[phase] for step in steps)
        print(f"  {phase.removeprefix('train_timing/'):24} {seconds:7.2f} s  {seconds / total:6.1%}")
    other = statistics.median(step[TOTAL] - step[GENERATION] - step[TRAINING] for step in steps)
    print(f"  {'other':24} {other:7.2f} s  {other / total:6.1%}")
    for name, phase in (("generated", GENERATION), ("trained", TRAINING)):
        rate = statistics.median(step["train_global_valid_toks"] / step[phase] for step in steps)
        print(f"  {name} tokens per second: {rate:,.0f}")


if __name__ == "__main__":
    main()
