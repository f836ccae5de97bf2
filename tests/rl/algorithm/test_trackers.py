"""Trackers get every step, and one that is down neither stops nor slows the run."""

import os
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from launcher.schema.groups import LoggerConfig, WandbConfig
from rl.trackers import TrackerProcess, Trackers


def trackers(folder, **config):
    return Trackers(
        LoggerConfig(**config), folder=folder, run_id="list-20260101", run_name="list", job={"training": {"seed": 1}}
    )


def process(folder, program):
    """A tracker whose process runs a Python program."""
    command = [sys.executable, "-c", program]
    return TrackerProcess("test", command, settings={"first": True}, log_file=folder / "tracker.log")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_no_trackers(tmp_path):
    none = trackers(tmp_path)
    none.log({"step": 1, "train_reward": 0.5})
    none.close()


def test_tensorboard(tmp_path):
    chosen = trackers(tmp_path, tensorboard=True)
    chosen.log({"step": 1, "train_reward": 0.25, "train_total_reward/p25": 0.0})
    chosen.log({"step": 2, "train_reward": 0.5})
    chosen.close(timeout_s=60)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    values = [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors("train_reward")]
    assert values == [(1, 0.25), (2, 0.5)]
    assert "train_total_reward/p25" in events.Tags()["tensors"]


def test_wandb_offline(tmp_path):
    chosen = trackers(tmp_path, wandb=WandbConfig(enabled=True, mode="offline", project="p"))
    chosen.log({"step": 1, "train_reward": 0.25})
    chosen.close(timeout_s=60)
    (data,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"train_reward" in data.read_bytes()


def test_wandb_that_cannot_be_reached(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    started = time.monotonic()
    chosen = trackers(tmp_path, wandb=WandbConfig(enabled=True))
    for step in range(100):
        chosen.log({"step": step, "train_reward": 0.25})
    assert time.monotonic() - started < 10.0
    chosen.close(timeout_s=1.0)
    assert time.monotonic() - started < 30.0
    assert caplog.text.count("the run goes on") == 1


def test_lines_arrive_in_order(tmp_path):
    tracker = process(tmp_path, "import sys; print(sys.stdin.read(), end='')")
    tracker.log({"step": 1, "x": 0.5})
    tracker.finish()
    tracker.wait(30)
    assert (tmp_path / "tracker.log").read_text() == '{"first": true}\n{"step": 1, "x": 0.5}\n'


def test_a_tracker_that_dies_is_reported_once_with_its_last_words(tmp_path, caplog):
    tracker = process(tmp_path, "import sys; print('starting'); sys.exit('no API key')")
    for step in range(200):
        tracker.log({"step": step})
        time.sleep(0.005)
    tracker.finish()
    tracker.wait(30)
    assert caplog.text.count("tracker test ended with status 1") == 1
    assert "Its last words: no API key" in caplog.text


def test_a_tracker_that_never_reads_is_ended(tmp_path, caplog):
    tracker = process(tmp_path, "import time; time.sleep(600)")
    started = time.monotonic()
    for step in range(3000):
        tracker.log({"step": step, "long": "x" * 1000})
    assert time.monotonic() - started < 10.0
    tracker.finish()
    tracker.wait(0.5)
    assert time.monotonic() - started < 30.0
    assert not is_alive(tracker.pid)
    assert "was still busy" in caplog.text


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise SystemExit(3)"])
def test_a_tracker_that_ends_before_the_run_does_not_stop_it(tmp_path, end):
    tracker = process(tmp_path, f"import sys; sys.stdin.readline(); {end}")
    time.sleep(0.3)
    for step in range(10):
        tracker.log({"step": step})
    tracker.finish()
    tracker.wait(30)
    assert not is_alive(tracker.pid)
