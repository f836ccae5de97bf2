"""The process of one tracker: ``python -m rl.tracker_process``, started by ``rl.trackers``.

stdin: one line of JSON with the tracker's settings, then one per step  ->  Weights & Biases, or TensorBoard event files

It ends when stdin does. Whatever goes wrong here is written to stderr and ends this process only.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

FINISH_S = 60
"""An upload that does not end within this time after the last metrics is given up."""


def main() -> None:
    """Read settings, then metrics, until the run closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when this process ends
    settings = json.loads(sys.stdin.readline())
    match settings["tracker"]:
        case "wandb":
            log_to_wandb(settings, _records())
        case "tensorboard":
            log_to_tensorboard(settings, _records())
        case other:
            raise ValueError(f"no tracker is called {other!r}")


def log_to_wandb(settings: dict[str, Any], records: Iterator[dict[str, float]]) -> None:
    """Send every record to one Weights & Biases run, which a resumed run continues."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline means that nothing leaves the machine
    import wandb

    online = settings["mode"] == "online"
    run = wandb.init(
        project=settings["project"],
        entity=settings["entity"],
        mode=settings["mode"],
        name=settings["run_name"],
        id=settings["run_id"] if online else None,  # an offline run cannot be continued, only synced beside the first
        resume="allow" if online else None,
        dir=settings["folder"],
        config=settings["config"],
        settings=wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True),
    )
    for record in records:
        run.log(record, step=int(record["step"]))
    run.finish()


def log_to_tensorboard(settings: dict[str, Any], records: Iterator[dict[str, float]]) -> None:
    """Write every record to event files under the folder."""
    from tensorboard.summary import Writer  # type: ignore[import-untyped]

    writer = Writer(settings["folder"])
    for record in records:
        for name, value in record.items():
            writer.add_scalar(name, value, step=int(record["step"]))
        writer.flush()
    writer.close()


def _records() -> Iterator[dict[str, float]]:
    for line in sys.stdin:
        yield json.loads(line)
    signal.alarm(FINISH_S)  # its default action ends the process


if __name__ == "__main__":
    main()
