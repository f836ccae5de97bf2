from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.schema.job import JobConfig


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, leaf = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return tree


@pytest.fixture
def make_job() -> Callable[[dict[str, Any]], JobConfig]:
    """A job with the given settings, by dotted key, and defaults for all others."""

    def make(values: dict[str, Any]) -> JobConfig:
        return JobConfig.model_validate(nested({"model.name": "m", "dataset": "d", "environment.name": "e",
                                                "training.type": "grpo", **values}))  # fmt: skip

    return make


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Path]:
    """A working directory that holds the given files; recipes/ and conf/ in it are found by every command."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make
