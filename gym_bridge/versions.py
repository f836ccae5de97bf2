"""The NeMo Gym versions this project runs, and the Python each is installed with.

Everything else that depends on the version of Gym lies in ``host.py``, the one file that imports ``nemo_gym``.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.schema.problems import LauncherError, Problem

DEFAULT_GYM_VERSION = "0.4.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class GymVersion:
    """A release of ``nemo-gym``.

    Example:
        GymVersion(version="0.7.0", python=(3, 13, 14), verifiers="0.3.1")
    """

    version: str
    python: tuple[int, int, int]
    """The oldest Python it installs on. Its lock is for 3.13, as this project is."""
    verifiers: str
    """The release of ``verifiers`` that its ``verifiers_agent`` was written for."""

    @property
    def lock(self) -> Path:
        """Its requirements, pinned and hashed."""
        return Path(__file__).parent / f"nemo-gym-{self.version}.txt"


GYM_VERSIONS = {
    known.version: known
    for known in (
        GymVersion(version="0.4.0", python=(3, 13, 0), verifiers="0.1.14"),
        GymVersion(version="0.7.0", python=(3, 13, 14), verifiers="0.3.1"),
    )
}


def gym_version(version: str = DEFAULT_GYM_VERSION) -> GymVersion:
    """Look a version up.

    Raises:
        LauncherError: it is none that this project runs.
    """
    if version not in GYM_VERSIONS:
        raise _refused(f"{version!r} is not a NeMo Gym version this project runs", f"use {' or '.join(GYM_VERSIONS)}")
    return GYM_VERSIONS[version]


def python_for(gym: GymVersion, *, ours: tuple[int, int, int] = sys.version_info[:3]) -> Path:
    """The interpreter Gym is installed with: the one that runs us when it is new enough, else one that uv finds.

    It is the real interpreter: uv would not find it behind a version manager's shim.

    Raises:
        LauncherError: there is none on this machine.
    """
    if ours >= gym.python:
        return Path(sys.base_prefix, "bin", f"python{ours[0]}.{ours[1]}")
    from uv import find_uv_bin  # part of the engine extra

    wanted = f">={_dotted(gym.python)},<3.14"
    found = subprocess.run(
        [find_uv_bin(), "python", "find", "--no-project", "--no-python-downloads", wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode != 0:
        raise _refused(
            f"NeMo Gym {gym.version} needs Python {_dotted(gym.python)} or newer; this one is {_dotted(ours)}, and no "
            "other that is new enough was found",
            f"install such a Python and put it on PATH, or set gym.version={DEFAULT_GYM_VERSION}",
        )
    return Path(found.stdout.strip())


def _refused(message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="gym-version", path="gym.version", message=message, fix=fix)])


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
