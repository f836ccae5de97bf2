"""Folders that somebody else filled: what lies in them, without following or opening anything.

folder --(scandir, bounded)--> Listing: regular files with their sizes, and a problem for everything else
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.schema.filesets import relative_path_fault
from launcher.schema.problems import Problem

MAX_FILES = 50_000
"""Files in one folder tree; the scan ends there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Relative paths of a tree, or of a FileSet.

    Example:
        Listing(files={"nemo-environment.yaml": 120, "configs/policy_model.yaml": 210}, problems=())
    """

    files: Mapping[str, int]
    """POSIX path relative to the root -> bytes."""
    problems: tuple[Problem, ...]
    """Links, special files, unusable names, too many files."""
    is_complete: bool = True
    """False when there were too many files to list."""


def scan_tree(root: Path, *, refuse_hard_links: bool = False) -> Listing:
    """List the regular files below ``root``.

    Args:
        root: an existing folder.
        refuse_hard_links: report files that have another name somewhere, whose content can change from there.

    Returns:
        Files in sorted order. Links are never followed.
    """
    files: dict[str, int] = {}
    problems: list[Problem] = []
    folders = [""]
    while folders:
        prefix = folders.pop()
        try:
            with os.scandir(root / prefix) as entries:
                found = list(entries)
        except OSError as error:
            problems.append(_problem(prefix or str(root), f"cannot be read: {error.strerror}", "make it readable"))
            continue
        for entry in found:
            path = prefix + entry.name
            if fault := relative_path_fault(path):
                problems.append(_problem(_printable(path), fault, "rename it"))
            elif entry.is_dir(follow_symlinks=False):
                folders.append(f"{path}/")
            elif problem := _file_problem(entry, path, refuse_hard_links=refuse_hard_links):
                problems.append(problem)
            else:
                files[path] = entry.stat(follow_symlinks=False).st_size
        if len(files) + len(problems) > MAX_FILES:
            message = f"holds more than {MAX_FILES:,} files"
            problems.append(
                _problem(str(root), message, "remove what does not belong to it (caches, virtual environments)")
            )
            return Listing(files=files, problems=tuple(problems), is_complete=False)
    return Listing(files=dict(sorted(files.items())), problems=tuple(problems))


def _file_problem(entry: os.DirEntry[str], path: str, *, refuse_hard_links: bool) -> Problem | None:
    if entry.is_symlink():
        return _problem(path, "is a symlink", "ship the file itself: copy the folder with links resolved (cp -rL)")
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        return _problem(path, "is neither a file nor a folder (device, pipe or socket)", "remove it")
    if refuse_hard_links and status.st_nlink > 1:
        message = f"is a hard link: the file has {status.st_nlink} names"
        return _problem(path, message, "copy the folder without links (cp -r --no-preserve=links)")
    return None


def _printable(path: str) -> str:
    return path.encode("unicode_escape", "backslashreplace").decode("ascii")[:200]


def _problem(path: str, message: str, fix: str) -> Problem:
    return Problem(code="unsafe-file", path=path, message=message, fix=fix)
