"""NeMo RL's TensorBoard event files -> one dictionary of metrics per step, under the published names.

logs/**/events.out.tfevents.* --(read)--> (step, name, value) --(StepMetrics)--> {"step": 3, "train_reward": 0.4, ...}
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_PREFIXES = {
    "timing/train/": "train_timing/",
    "timing/validation/": "val_timing/",
    "train/": "train_",
    "validation/": "val_",
    "performance/": "performance/",
}
"""NeMo RL's prefix -> ours. What has another prefix (GPU monitoring, set-up times) does not belong to a step."""


class Scalar(NamedTuple):
    """One value of an event file."""

    step: int
    name: str
    value: float


def published_name(name: str) -> str | None:
    """``train/reward`` -> ``train_reward``; None for what is not a metric of a step."""
    for prefix, ours in _PREFIXES.items():
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return None


class EventFiles:
    """The event files under a folder, read on from where the last read ended; files may appear at any time."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._readers: dict[Path, _Reader] = {}

    def read(self) -> Iterator[Scalar]:
        """Everything new, file by file."""
        for path in sorted(self._folder.rglob("events.out.tfevents.*")):
            if path not in self._readers:
                self._readers[path] = _Reader(path)
            yield from self._readers[path].read()


class _Reader:
    """One event file."""

    def __init__(self, path: Path):
        # The import takes over a second, and a run that is only compiled needs none.
        from tensorboard.backend.event_processing import event_file_loader  # type: ignore[import-untyped]

        self._loader = event_file_loader.LegacyEventFileLoader(str(path))

    def read(self) -> Iterator[Scalar]:
        for event in self._loader.Load():
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value" and math.isfinite(value.simple_value):
                    yield Scalar(event.step, value.tag, value.simple_value)


class StepMetrics:
    """Collects the values of steps and hands a step out once it is over: when a later one has begun, or at the end."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, float]] = {}

    def add(self, scalars: Iterable[Scalar]) -> list[dict[str, float]]:
        """Take new values; return the steps that they complete, in order, each with its ``step``."""
        for scalar in scalars:
            if (name := published_name(scalar.name)) is not None:
                self._open.setdefault(scalar.step, {"step": scalar.step})[name] = scalar.value
        return self._taken(sorted(self._open)[:-1])

    def rest(self) -> list[dict[str, float]]:
        """The steps that are left when nothing more will come."""
        return self._taken(sorted(self._open))

    def _taken(self, steps: Iterable[int]) -> list[dict[str, float]]:
        return [self._open.pop(step) for step in steps]
