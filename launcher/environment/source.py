"""Where a package's files come from: a folder, or a FileSet that stays where it is.

folder | FileSet --> PackageSource: a listing, and bounded reads of the few files that are looked into
"""

import io
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import yaml

from launcher.filesets import FileSetStore
from launcher.local_files import Listing, scan_tree
from launcher.schema.filesets import FileSet
from launcher.schema.problems import LauncherError, Problem
from launcher.yaml_files import LARGEST_FILE_BYTES, KeyPath, key_lines, refuse_expanding_aliases, syntax_problem

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML without libyaml has no CSafeLoader


class PackageSource(Protocol):
    """A package's files."""

    @property
    def listing(self) -> Listing:
        """All files, and what is wrong with the tree itself."""
        ...

    def open(self, path: str) -> BinaryIO:
        """One listed file, seekable."""
        ...

    def folder(self) -> Path | None:
        """Where the files lie on this machine; None when they are elsewhere."""
        ...


class FolderSource:
    """A package on this machine."""

    def __init__(self, root: Path):
        """Scan ``root``.

        Raises:
            LauncherError: it is not a folder.
        """
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            fix = "give the folder that holds nemo-environment.yaml"
            raise LauncherError([Problem(code="no-package", path=str(root), message=what, fix=fix)])
        self._root = root.absolute()
        self.listing = scan_tree(self._root, refuse_hard_links=True)

    def open(self, path: str) -> BinaryIO:
        """One listed file."""
        return (self._root / path).open("rb")

    def folder(self) -> Path:
        """The folder itself."""
        return self._root


class FileSetSource:
    """A package in a FileSet, looked at without downloading it."""

    def __init__(self, store: FileSetStore, fileset: FileSet):
        self._store, self._fileset = store, fileset
        self.listing = Listing(files={path: file.size for path, file in fileset.files.items()}, problems=())

    def open(self, path: str) -> BinaryIO:
        """One file of the set."""
        return self._store.open(self._fileset, path)

    def folder(self) -> None:
        """It is elsewhere."""
        return


def read_mapping(source: PackageSource, path: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """One YAML file of a package whose top level is a mapping, and the line of every key.

    Raises:
        LauncherError: it is too large, not UTF-8, not YAML, repeats a key, nests or expands without end, is no mapping.
    """
    with source.open(path) as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    if len(data) > LARGEST_FILE_BYTES:
        raise _refused(path, f"is larger than {LARGEST_FILE_BYTES:,} bytes", "keep data out of YAML files")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _refused(f"{path}:{line}", "is not UTF-8", "save the file as UTF-8") from None
    lines = key_lines(text, path=Path(path))
    refuse_expanding_aliases(text, path=Path(path))
    try:
        tree = yaml.load(io.StringIO(text), Loader=_Loader)
    except yaml.YAMLError as error:
        raise LauncherError([syntax_problem(error, Path(path))]) from None
    except ValueError as error:  # a date such as 2024-13-45
        raise _refused(path, f"is not valid YAML: {error}", "put quotes around the value") from None
    if not isinstance(tree, dict):
        found = "nothing" if tree is None else "a list" if isinstance(tree, list) else "a single value"
        raise _refused(f"{path}:1", f"holds {found} where a mapping of keys belongs", "write `key: value` lines")
    return tree, lines


def _refused(path: str, message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="bad-file", path=path, message=message, fix=fix)])
