"""The wheels that an environment package brings, known by content.

<package>/wheels/*.whl --> Wheelhouse --> gym_bridge.install: offered to the servers' installs, then installed offline
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from launcher.schema.manifest import WHEELS_FOLDER, NativeManifest, Package
from launcher.schema.problems import LauncherError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheelhouse:
    """A folder of wheels.

    Example:
        Wheelhouse(folder=Path("/x/word_count/wheels"), versions={"word-count-reward": "0.1.0"}, digest="5d41402abc4b")
    """

    folder: Path
    """Absolute."""
    versions: Mapping[str, str]
    """Project, normalised -> the version vendored."""
    digest: str
    """Differs when a wheel's name or bytes do."""


def wheelhouse(package: Package) -> Wheelhouse | None:
    """The wheels of a package; None for ``native-v1``, which brings none.

    Raises:
        LauncherError: the format promises wheels and there are none, or a file is no wheel by its name.
    """
    if isinstance(package.manifest, NativeManifest):
        return None
    folder = package.root.absolute() / WHEELS_FOLDER
    if not package.wheels:
        message, fix = f"{package.manifest.format} packages bring their wheels here, and there are none", "vendor them"
        raise LauncherError([Problem(code="wheels", path=str(folder), message=message, fix=f"{fix}: grpo env vendor")])
    digest = hashlib.sha256()
    versions: dict[str, str] = {}
    for path in sorted(package.root / name for name in package.wheels):
        try:
            project, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            problem = Problem(code="wheels", path=str(path), message=str(error), fix="give it its own name back")
            raise LauncherError([problem]) from None
        versions[project] = str(version)
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return Wheelhouse(folder=folder, versions=versions, digest=digest.hexdigest()[:12])
