"""How long checking takes, as ratios to the imports that nobody can do without, measured in turn in one run.

    .venv/bin/python benchmarks/check.py

Bounds: `grpo check` of the demo 2.0 times the imports and 1.0 s; `grpo --help` 0.25 s; 100 trials of a grid 5 s.
"""

import subprocess
import sys
import time
from pathlib import Path

RUNS = 9
GRPO = str(Path(sys.executable).with_name("grpo"))
IMPORTS = [sys.executable, "-c", "import hydra, omegaconf; from pydantic import BaseModel"]
TRIALS = """
import time
from launcher.checking import Checker
from launcher.sweep import trial_problems
started = time.perf_counter()
trials = [["recipe=demo", f"training.temperature={0.5 + n / 100}"] for n in range(100)]
assert not [problem for problem in trial_problems(trials, Checker()) if problem.severity == "error"]
print(time.perf_counter() - started)
"""


def main() -> int:
    """Print one line per figure; status 1 when a bound is missed."""
    commands = {"imports": IMPORTS, "check": [GRPO, "check", "recipe=demo"], "help": [GRPO, "--help"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):  # in turn, so that a busy machine slows all of them alike
        for name, command in commands.items():
            seconds[name].append(_seconds(command))
    best = {name: min(values) for name, values in seconds.items()}  # the run that was disturbed least
    trials = subprocess.run([sys.executable, "-c", TRIALS], capture_output=True, text=True, timeout=60, check=True)
    figures = [
        ("import hydra, omegaconf, pydantic", best["imports"], None),
        ("grpo check recipe=demo", best["check"], 1.0),
        ("  times the imports", best["check"] / best["imports"], 2.0),
        ("grpo --help", best["help"], 0.25),
        ("100 trials of a grid", float(trials.stdout), 5.0),
    ]
    for name, value, bound in figures:
        verdict = "" if bound is None else f"  at most {bound}: {'held' if value <= bound else 'MISSED'}"
        print(f"{name:36} {value:6.2f}{verdict}")
    return int(any(bound is not None and value > bound for _, value, bound in figures))


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
