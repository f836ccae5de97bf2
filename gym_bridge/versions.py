"""The NeMo Gym versions this project runs, and what each needs.

Everything else that depends on the version of Gym lies in ``host.py``, the one file that imports ``nemo_gym``.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.schema.problems import LauncherError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class GymVersion:
    """A release of ``nemo-gym``.

    Example:
        GymVersion(version="0.4.0", python=(3, 12, 0))
    """

    version: str
    python: tuple[int, int, int]
    """The oldest Python it installs on."""

    @property
    def lock(self) -> Path:
        """Its requirements, pinned and hashed."""
        return Path(__file__).parent / f"nemo-gym-{self.version}.txt"


DEFAULT_GYM_VERSION = "0.4.0"
GYM_VERSIONS = {known.version: known for known in (GymVersion(version="0.4.0", python=(3, 12, 0)),)}


def gym_version(version: str, *, python: tuple[int, int, int] = sys.version_info[:3]) -> GymVersion:
    """Look a version up and check that this interpreter can run it.

    Raises:
        LauncherError: it is unknown, or needs a newer Python.
    """
    known = GYM_VERSIONS.get(version)
    if known is None:
        raise _refused(f"{version!r} is not a NeMo Gym version this project runs", f"use {', '.join(GYM_VERSIONS)}")
    if python < known.python:
        message = f"NeMo Gym {version} needs Python {_dotted(known.python)} or newer, this is {_dotted(python)}"
        raise _refused(message, f"install the project with such a Python, or set gym.version={DEFAULT_GYM_VERSION}")
    return known


def _refused(message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="gym-version", path="gym.version", message=message, fix=fix)])


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
