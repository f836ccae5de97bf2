"""A hub's ``verifiers`` environment, from an index to two steps of training on a machine without a network.

index on loopback --(pi-to-gym-conversion)--> package, rows --(grpo train, network namespace with lo only)--> metrics

What such a machine has beforehand: our own environment, NeMo Gym's and the model. What the package's wheels must bring,
with uv's cache empty: the whole environment of the agent's server.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.install import gym_environment
from gym_bridge.versions import gym_version
from launcher.environment.pure_wheel import pure_wheel
from launcher.environment.wheels import host_arch
from rl.model_files import cache_folder
from tests.launcher.packages.conftest import served_index

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SCRIPTS = Path(sys.executable).parent
TRAINING_S = 500.0
WITHOUT_NETWORK = """
import fcntl, os, socket, struct, sys
SET_FLAGS, UP = 0x8914, 1
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh22x", b"lo", UP))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Starts a command in the namespace that ``unshare`` has made, where not even loopback is up."""

ENVIRONMENT = '''
import re

import verifiers as vf
from datasets import Dataset
from list_words import THINGS

PROMPTS = [
    {"question": f"Write a numbered list of {number} {things}, like '1. name'.", "answer": number}
    for things in THINGS
    for number in ("two", "three")
]


def numbered(completion, **_):
    """Share of lines that start with a number."""
    lines = completion[-1]["content"].splitlines()
    return sum(bool(re.match(r"\\d\\.", line)) for line in lines) / max(1, len(lines))


def short(completion, **_):
    """1 for nothing, 0 for 200 characters."""
    return max(0.0, 1.0 - len(completion[-1]["content"]) / 200)


def load_environment(**_):
    rubric = vf.Rubric(funcs=[numbered, short], weights=[0.75, 0.25])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(PROMPTS), rubric=rubric)
'''


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What ``pi-to-gym-conversion`` wrote and printed."""

    package: Path
    rows: Path
    answer: dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Emptied afterwards: wheels and what is installed from them are 2 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture
def converted(folder: Path) -> Converted:
    """An environment of which only the index on loopback knows; ``verifiers`` comes from where packages usually do."""
    words = "THINGS = ('colors', 'fruits', 'animals', 'planets', 'games', 'tools')\n"
    with served_index(folder / "index") as index:
        index.add(
            *pure_wheel("two-lists", "0.1.0", {"two_lists.py": ENVIRONMENT}, requires=["verifiers", "list-words"])
        )
        index.add(*pure_wheel("list-words", "1.0", {"list_words.py": words}))
        done = subprocess.run(
            [
                SCRIPTS / "pi-to-gym-conversion", "--hub-id", "acme/two-lists", "--hub-version", "0.1.0",
                "--index-url", index.url, "--validation-fraction", "0.1", "--dataset-size", "10", "--dataset-seed", "1",
                "--arch", host_arch(), "--out-dir", folder / "package", "--dataset-dir", folder / "rows",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Converted(package=folder / "package", rows=folder / "rows", answer=json.loads(done.stdout))


@pytest.fixture
def fresh_cache(folder: Path, demo_model_folder: Path) -> Path:
    """A cache that holds the model and NeMo Gym's own environment, and no server's."""
    known = cache_folder()
    assert demo_model_folder.is_relative_to(known / "models")
    gym = asyncio.run(gym_environment(gym_version(), cache=known, timeout_s=600, on_progress=print))
    cache = folder / "cache"
    for path in (gym.root, known / "models"):
        link = cache / path.relative_to(known)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return cache


def trained_without_network(folder: Path, cache: Path, *overrides: str) -> str:
    """Output of a ``grpo train`` that reaches nothing but this machine, with nothing in uv's cache."""
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", WITHOUT_NETWORK]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    variables |= {"GRPO_CACHE": str(cache), "UV_CACHE_DIR": str(folder / "uv")}
    process = subprocess.Popen(
        [*command, SCRIPTS / "grpo", "train", *overrides], env=variables, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=TRAINING_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    return output


@pytest.fixture
def namespaces() -> None:
    tried = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        pytest.skip(f"no network namespace of our own: {tried.stderr.strip()}")


@pytest.mark.usefixtures("namespaces")
def test_a_converted_environment_trains_where_there_is_no_network(
    folder: Path, converted: Converted, fresh_cache: Path
) -> None:
    counts = {key: converted.answer[key] for key in ("valid", "num_training_rows", "num_validation_rows")}
    assert counts == {"valid": True, "num_training_rows": 9, "num_validation_rows": 1}
    for line in (converted.rows / "training.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["question"].startswith(f"Write a numbered list of {row['answer']} ")
        assert row["responses_create_params"]["input"] == [{"role": "user", "content": row["question"]}]

    trained_without_network(
        folder, fresh_cache, "recipe=demo", "environment=adapter_wheels", f"environment.name={converted.package}",
        f"dataset={converted.rows}", f"engine.runs_dir={folder / 'runs'}", "training.max_steps=2",
        "training.batch_size=8", "training.num_generations_per_prompt=4", "training.max_new_tokens=16",
        "training.val_at_start=false", "training.val_at_end=false",
    )  # fmt: skip
    (run,) = (folder / "runs").glob("*/*")
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(step["step"], step["train_num_failed"]) for step in steps] == [(1, 0), (2, 0)]
    assert all(0.0 < step["train_reward"] <= 1.0 for step in steps)
    assert all(step["train_gen_tokens_per_sample/max"] <= 16 for step in steps)  # the agent's config says 512
    (environment,) = (fresh_cache / "gym" / "servers").glob("verifiers_agent-*/")
    assert {"two_lists.py", "verifiers"} <= {path.name for path in environment.glob("lib/python3.*/site-packages/*")}
