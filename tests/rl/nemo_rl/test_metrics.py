"""Event files become steps with the published names."""

from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rl.nemo_rl.metrics import EventFiles, Scalar, StepMetrics, published_name


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("train/total_reward/mean", "train_total_reward/mean"),
        ("validation/accuracy", "val_accuracy"),
        ("timing/train/total_step_time", "train_timing/total_step_time"),
        ("timing/validation/total_validation_time", "val_timing/total_validation_time"),
        ("timing/setup/total_setup_time_s", None),
        ("ray/node.0.gpu.0.util", None),
    ],
)
def test_names(theirs: str, ours: str | None):
    assert published_name(theirs) == ours


def test_a_step_is_over_when_a_later_one_begins():
    steps = StepMetrics()
    assert steps.add([Scalar(0, "validation/accuracy", 0.25), Scalar(0, "ray/x", 1.0)]) == []
    assert steps.add([Scalar(1, "train/reward", 0.5)]) == [{"step": 0, "val_accuracy": 0.25}]
    assert steps.add([Scalar(1, "train/lr", 1.0), Scalar(7, "ray/x", 1.0)]) == []
    assert steps.rest() == [{"step": 1, "train_reward": 0.5, "train_lr": 1.0}]
    assert steps.rest() == []


def test_event_files_are_read_on_from_where_they_ended(tmp_path: Path):
    events = EventFiles(tmp_path)
    assert list(events.read()) == []
    writer = EventFileWriter(str(tmp_path / "exp_001" / "tensorboard"))

    def write(step: int, value: float) -> None:
        summary = Summary(value=[Summary.Value(tag="train/reward", simple_value=value)])
        writer.add_event(Event(wall_time=1.0, step=step, summary=summary))
        writer.flush()

    write(1, 0.5)
    assert list(events.read()) == [Scalar(1, "train/reward", 0.5)]
    write(2, 0.75)
    write(3, float("nan"))
    assert list(events.read()) == [Scalar(2, "train/reward", 0.75)]
    writer.close()
