"""Metrics to Weights & Biases and TensorBoard, without ever stopping or slowing a run.

loop --log(metrics)--> bounded queue --(thread)--> pipe --> process of the tracker (rl.tracker_process)

A tracker runs in a process of its own because its library may wait for a network as long as it likes, at exit above
all; the run waits as long as ``close`` is told to, then ends that process. When a tracker fails, its own last words
are logged once and the run goes on: ``metrics.jsonl`` has everything.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.schema.groups import LoggerConfig

logger = logging.getLogger(__name__)

QUEUE_LENGTH = 1000
"""Steps kept for a tracker that is slow; older ones are dropped."""


class Trackers:
    """The trackers that a job asks for."""

    def __init__(self, config: LoggerConfig, *, folder: Path, run_id: str, run_name: str, job: Mapping[str, Any]):
        """Start a process for each; returns at once.

        Args:
            config: which.
            folder: the run directory; trackers write beneath it.
            run_id: identity of the run at the tracker; a resumed run has that of the first.
            run_name: what people see.
            job: the resolved config, shown with the run.
        """
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        common = {"run_id": run_id, "run_name": run_name, "config": job}
        chosen: list[dict[str, Any]] = []
        if config.wandb.enabled:
            wandb = {"project": config.wandb.project, "entity": config.wandb.entity, "mode": config.wandb.mode}
            chosen.append({"tracker": "wandb", "folder": str(folder), **wandb, **common})
        if config.tensorboard:
            chosen.append({"tracker": "tensorboard", "folder": str(folder / "tensorboard"), **common})
        self._trackers = [
            TrackerProcess(
                settings["tracker"],
                [sys.executable, "-P", "-m", "rl.tracker_process"],  # -P: a folder here called wandb is no module
                settings=settings,
                log_file=logs / f"tracker-{settings['tracker']}.log",
            )
            for settings in chosen
        ]

    def log(self, metrics: Mapping[str, float]) -> None:
        """Hand over the metrics of one step, ``step`` among them; returns at once."""
        for tracker in self._trackers:
            tracker.log(metrics)

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Let the trackers write what they have, for at most ``timeout_s`` in all, and leave no process behind."""
        deadline = time.monotonic() + timeout_s
        for tracker in self._trackers:
            tracker.finish()
        for tracker in self._trackers:
            tracker.wait(deadline - time.monotonic())


class TrackerProcess:
    """One tracker: a child process, and the thread that feeds it."""

    def __init__(self, name: str, command: Sequence[str], *, settings: Mapping[str, Any], log_file: Path):
        """
        Args:
            name: in messages.
            command: reads lines of JSON from stdin until it ends.
            settings: the first line.
            log_file: gets what the process prints.
        """
        self._name = name
        self._log_file = log_file
        self._lines: deque[str] = deque([json.dumps(settings)], maxlen=QUEUE_LENGTH)
        self._changed = threading.Condition()
        self._finished = False
        self._failed = False
        with log_file.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._feeder = threading.Thread(target=self._feed, name=f"tracker {name}", daemon=True)
        self._feeder.start()

    @property
    def pid(self) -> int:
        """Of the process; its group has the same number."""
        return self._process.pid

    def log(self, metrics: Mapping[str, float]) -> None:
        """Queue one step; dropped when the tracker has failed."""
        with self._changed:
            if not self._failed:
                self._lines.append(json.dumps(metrics))
                self._changed.notify()

    def finish(self) -> None:
        """Nothing more will be logged: end the process once the queue is empty."""
        with self._changed:
            self._finished = True
            self._changed.notify()

    def wait(self, timeout_s: float) -> None:
        """Wait for the process to end by itself, then end it."""
        try:
            status = self._process.wait(max(timeout_s, 0.0))
            if status != 0:
                self._warn_once(f"ended with status {status}")
        except subprocess.TimeoutExpired:
            self._warn_once(f"was still busy {max(timeout_s, 0.0):.0f} s after the run's end and was stopped")
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._feeder.join(timeout=1.0)

    def _feed(self) -> None:
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                while (line := self._next_line()) is not None:
                    pipe.write(line.encode() + b"\n")
                    pipe.flush()
        except OSError:  # the process is gone and its end of the pipe with it
            self._warn_once(f"ended with status {self._process.wait()}")

    def _next_line(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._finished)
            return self._lines.popleft() if self._lines else None

    def _warn_once(self, what: str) -> None:
        with self._changed:
            if self._failed:
                return
            self._failed = True
            self._lines.clear()
        words = self._log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        logger.warning(
            "tracker %s %s; the run goes on and metrics.jsonl has everything. Its last words: %s (all in %s)",
            self._name, what, words[-1] if words else "none", self._log_file,
        )  # fmt: skip
