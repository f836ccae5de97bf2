"""A run directory: everything one run writes, never shared and never reused.

runs/<name>/<time>-<id>/
    config.yaml origins.json plan.json     what was asked for, where it came from, what follows from it
    status.json metrics.jsonl              how it goes: rewritten in one piece, appended to
    rollouts/step_000012.jsonl.zst         what was sampled and scored (validation_000012 for validation)
    checkpoints/ export/ logs/
"""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from launcher.schema.problems import LauncherError, Problem


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths inside a run directory, and the two ways files there are written."""

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def write_text(self, name: str, text: str) -> None:
        """Write a file in one piece: a reader sees the old or the new content, never half."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write one JSON object in one piece."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one JSON object that a run wrote.

        Raises:
            LauncherError: the file is missing or not a JSON object.
        """
        file = self.path / name
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LauncherError([_not_a_run(self.path, f"{name}: {error}")]) from error
        if not isinstance(value, dict):
            raise LauncherError([_not_a_run(self.path, f"{name} is not a JSON object")])
        return value

    def append_metrics(self, metrics: Mapping[str, float | int]) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")

    def read_metrics(self) -> list[dict[str, float]]:
        """Every line of metrics.jsonl, oldest first; empty before the first step."""
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()]

    def rollouts_file(self, step: int, *, validation: bool = False) -> Path:
        """Where the rollouts of a step lie."""
        return self.path / "rollouts" / f"{'validation' if validation else 'step'}_{step:06d}.jsonl.zst"

    def write_rollouts(self, step: int, records: Sequence[Mapping[str, Any]], *, validation: bool = False) -> None:
        """Write the rollouts of a step, compressed, in one piece."""
        file = self.rollouts_file(step, validation=validation)
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        temporary = file.with_name(f".{file.name}")
        temporary.write_bytes(zstandard.compress(text.encode("ascii")))
        temporary.replace(file)

    def read_rollouts(self, step: int, *, validation: bool = False) -> list[dict[str, Any]]:
        """The records of ``write_rollouts``.

        Raises:
            LauncherError: there are none for this step; the problem names the steps that have some.
        """
        file = self.rollouts_file(step, validation=validation)
        if not file.exists():
            steps = ", ".join(map(str, self.rollout_steps(validation=validation))) or "none"
            raise LauncherError([Problem(
                code="no-rollouts", path=str(file), message=f"this run has no rollouts of step {step}",
                fix=f"choose one of the steps it has: {steps}",
            )])  # fmt: skip
        with zstandard.open(file, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def rollout_steps(self, *, validation: bool = False) -> list[int]:
        """Steps whose rollouts were written, ascending."""
        prefix = "validation_" if validation else "step_"
        return sorted(int(f.name.removeprefix(prefix).split(".")[0]) for f in self._rollout_files(prefix))

    def _rollout_files(self, prefix: str) -> Iterator[Path]:
        return (self.path / "rollouts").glob(f"{prefix}[0-9]*.jsonl.zst")


def create_run_directory(parent: Path, name: str) -> RunDirectory:
    """Make a new run directory ``parent/name/<time>-<id>`` with its folders.

    Raises:
        LauncherError: the folder cannot be made (no permission, no space).
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return make_run_directory(parent / name / f"{stamp}-{secrets.token_hex(2)}")


def make_run_directory(path: Path) -> RunDirectory:
    """Make the run directory ``path`` (a sweep's trial has its place given).

    Raises:
        LauncherError: it exists already, or cannot be made.
    """
    try:
        path.mkdir(parents=True)
        for folder in ("rollouts", "logs"):
            (path / folder).mkdir()
    except FileExistsError as error:
        raise LauncherError([Problem(
            code="run-directory", path=str(path), message="this run directory exists already; a run never reuses one",
            fix="name another folder, or delete this one",
        )]) from error  # fmt: skip
    except OSError as error:
        raise LauncherError([Problem(
            code="run-directory", path=str(path), message=f"the run directory cannot be made: {error.strerror}",
            fix="set engine.runs_dir to a folder that you may write to, on a disk with space",
        )]) from error  # fmt: skip
    return RunDirectory(path.resolve())


def open_run_directory(path: Path) -> RunDirectory:
    """Open an existing run directory.

    Raises:
        LauncherError: it is none.
    """
    if not (path / "config.yaml").is_file():
        raise LauncherError([_not_a_run(path, "config.yaml is missing")])
    return RunDirectory(path.resolve())


def _not_a_run(path: Path, why: str) -> Problem:
    return Problem(
        code="not-a-run", path=str(path), message=f"this is no run directory: {why}",
        fix="give the folder that `grpo train` printed, runs/<name>/<time>-<id>",
    )  # fmt: skip
