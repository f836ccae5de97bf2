"""Draw the reward of one or several runs from their metrics.jsonl.

    .venv/bin/python benchmarks/plot_rewards.py runs/demo/* -o docs/demo-reward.png

Needs matplotlib (the dev lock has it).
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/demo-reward.png"))
    options = parser.parse_args()

    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=160)
    for index, run in enumerate(options.runs):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        seed = json.loads((run / "plan.json").read_text())["seed"]
        color = f"C{index}"
        trained = [line for line in lines if "train_reward" in line]
        axes.plot([t["step"] for t in trained], [t["train_reward"] for t in trained], color=color, alpha=0.45)
        validated = [line for line in lines if "val_accuracy" in line]
        axes.plot([v["step"] for v in validated], [v["val_accuracy"] for v in validated], color=color, marker="o",
                  linestyle="--", label=f"unseen prompts, seed {seed}")  # fmt: skip
    axes.set(xlabel="step (64 rollouts each)", ylabel="mean reward", ylim=(0, 1.02))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    axes.set_title("Solid: reward of the training rollouts. Dots: validation before and after.", fontsize=8, loc="left")
    figure.tight_layout()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output)
    print(options.output)


if __name__ == "__main__":
    main()
