"""A checkout of NeMo RL: found, and known to be one that the master config fits.

engine.root --(files, git)--> Checkout + warnings, or every reason why it cannot be used
"""

import ast
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from launcher.schema.problems import LauncherError, Problem

SCRIPT = Path("examples/nemo_gym/run_grpo_nemo_gym.py")
OLDEST_VERSION = (0, 7)
NEWEST_VERSION = (0, 8)
"""The main branch after 0.7.0; later versions may need keys that nobody has seen."""

_GIT_TIMEOUT_S = 60.0
_FETCH = "git clone --recursive https://github.com/NVIDIA-NeMo/RL"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A usable checkout.

    Example:
        Checkout(root=Path("/opt/nemo-rl"), version="0.7.0", commit="81aa43dd...", changed_files=0)
    """

    root: Path
    version: str
    commit: str
    changed_files: int
    """Tracked files that differ from the commit."""

    def command(self, uv: Path, *arguments: str) -> list[str]:
        """Python of the checkout's own environment, which uv makes when it is missing."""
        return [str(uv), "run", "--locked", "--directory", str(self.root), "python", *arguments]


def open_checkout(root: str | None) -> tuple[Checkout, tuple[Problem, ...]]:
    """Read the checkout that ``engine.root`` names.

    Returns:
        The checkout, and warnings about it.

    Raises:
        LauncherError: it cannot run this job's config.
    """
    if root is None:
        raise LauncherError([_problem("engine.root is unset", f"{_FETCH}, and set engine.root to that folder")])
    folder = Path(root).expanduser().absolute()
    if problems := _what_is_missing(folder):
        raise LauncherError(problems)
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or Path(_git(folder, "rev-parse", "--show-toplevel") or "").resolve() != folder.resolve():
        message = f"{folder} is not the root of a git checkout, from which NeMo RL starts its workers"
        raise LauncherError([_problem(message, _FETCH)])
    problems = [*_submodule_problems(folder), *_version_problems(folder)]
    if any(problem.severity == "error" for problem in problems):
        raise LauncherError(problems)
    changed = len((_git(folder, "status", "--porcelain", "--untracked-files=no") or "").splitlines())
    if changed:
        message = f"{folder} has {changed} changed file{'s'[: changed > 1]} on top of commit {commit[:8]}"
        fix = "commit or revert them, so that the run can be repeated"
        problems.append(_problem(message, fix, severity="warning"))
    checkout = Checkout(root=folder, version=_version(folder) or "unknown", commit=commit, changed_files=changed)
    return checkout, tuple(problems)


def _what_is_missing(folder: Path) -> list[Problem]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        return [_problem(f"{folder} {what}", f"{_FETCH}, and set engine.root to that folder")]
    needed = [SCRIPT, Path("nemo_rl"), Path("pyproject.toml"), Path("uv.lock")]
    missing = [str(path) for path in needed if not (folder / path).exists()]
    if not missing:
        return []
    inside = next((child for child in sorted(folder.iterdir()) if (child / SCRIPT).is_file()), None)
    fix = f"set engine.root={inside}" if inside else f"{_FETCH}, and set engine.root to that folder"
    return [_problem(f"{folder} is no NeMo RL checkout: {', '.join(missing)} missing", fix)]


def _submodule_problems(folder: Path) -> list[Problem]:
    """``git submodule status`` marks a missing one with - and one at another commit with +."""
    problems = []
    for line in (_git(folder, "submodule", "status", strip=False) or "").splitlines():
        mark, path = line[:1], line[1:].split(" ")[1]
        if mark == "-":
            fix = f"git -C {folder} submodule update --init --recursive"
            problems.append(_problem(f"submodule {path} of {folder} is not checked out", fix))
        elif mark in "+U":
            message = f"submodule {path} of {folder} is not at the commit that NeMo RL was tested with"
            fix = f"git -C {folder} submodule update --recursive"
            problems.append(_problem(message, fix, severity="warning"))
    return problems


def _version_problems(folder: Path) -> list[Problem]:
    version = _version(folder)
    if version is None:
        message = f"{folder / 'nemo_rl/package_info.py'} states no version (MAJOR, MINOR, PATCH)"
        return [_problem(message, f"use a release: {_FETCH} --branch v0.7.0")]
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_VERSION:
        message = f"{folder} is NeMo RL {version}; its config needs 0.7.0 or the main branch after it"
        return [_problem(message, f"git -C {folder} checkout v0.7.0 && git submodule update --init --recursive")]
    if numbers > NEWEST_VERSION:
        message = f"{folder} is NeMo RL {version}, newer than any whose config is known here (0.7, 0.8)"
        return [_problem(message, "if it refuses the config, check out v0.7.0", severity="warning")]
    return []


def _version(folder: Path) -> str | None:
    """The version that ``nemo_rl/package_info.py`` assigns, read without running it."""
    try:
        module = ast.parse((folder / "nemo_rl" / "package_info.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    parts = [values.get(name) for name in ("MAJOR", "MINOR", "PATCH")]
    if not all(isinstance(part, int) for part in parts):
        return None
    return ".".join(map(str, parts)) + str(values.get("PRE_RELEASE") or "")


def _git(folder: Path, *arguments: str, strip: bool = True) -> str | None:
    """What git prints, or None when it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return done.stdout.strip() if strip else done.stdout


def _problem(message: str, fix: str, *, severity: str = "error") -> Problem:
    return Problem(
        code="nemo-rl-checkout",
        path="engine.root",
        message=message,
        fix=fix,
        severity="warning" if severity == "warning" else "error",
    )
