"""FileSets as they are stored: a purpose and a list of files, each known by the hash of its content."""

import hashlib
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Purpose = Literal["dataset", "environment", "generic", "model"]

DEFAULT_WORKSPACE = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


class StoredFile(BaseModel):
    """A file's content.

    Example:
        StoredFile(size=3, sha256="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0, description="Bytes.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class FileSet(BaseModel):
    """A named set of files with a purpose: what ``fileset.json`` holds.

    Example:
        FileSet(workspace="default", name="ascii-tree-env", purpose="environment",
                files={"nemo-environment.yaml": StoredFile(size=120, sha256="ab12...")})
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workspace: str
    name: str
    purpose: Purpose
    files: dict[str, StoredFile] = Field(default={}, description="Relative POSIX path -> content.")

    @field_validator("files")
    @classmethod
    def _paths_make_a_tree(cls, files: dict[str, StoredFile]) -> dict[str, StoredFile]:
        for path in files:
            if fault := relative_path_fault(path):
                raise ValueError(f"{path!r} {fault}")
            parent = path
            while parent := parent.rpartition("/")[0]:
                if parent in files:
                    raise ValueError(f"{parent!r} is a file and the folder of {path!r}")
        return files

    @property
    def reference(self) -> str:
        """``workspace/name``."""
        return f"{self.workspace}/{self.name}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def digest(self) -> str:
        """Hash of all paths and contents: sets with equal files have equal digests."""
        listing = "\n".join(f"{path}\t{file.sha256}" for path, file in sorted(self.files.items()))
        return hashlib.sha256(listing.encode()).hexdigest()


def is_fileset_name(text: str) -> bool:
    """Whether ``text`` can name a FileSet or a workspace."""
    return _NAME.fullmatch(text) is not None


def split_fileset_reference(text: str) -> tuple[str, str] | None:
    """Workspace and name of ``name`` or ``workspace/name``; None when ``text`` is neither.

    Example:
        split_fileset_reference("ascii-tree-env") == ("default", "ascii-tree-env")
    """
    workspace, slash, name = text.rpartition("/")
    workspace = workspace if slash else DEFAULT_WORKSPACE
    return (workspace, name) if is_fileset_name(name) and is_fileset_name(workspace) else None


MAX_PATH_CHARACTERS = 1024


def relative_path_fault(path: str) -> str | None:
    """Why ``path`` cannot be the path of a file inside a set or package, or None.

    Example:
        relative_path_fault("configs/../../etc/passwd") == "contains '..'"
    """
    parts = path.split("/")
    if not path or path.startswith("/"):
        return "is not a relative path"
    if ".." in parts:
        return "contains '..'"
    if "" in parts or "." in parts:
        return "contains an empty or '.' component"
    if "\\" in path:
        return "contains a backslash"
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "contains a control character"
    if any(0xD800 <= ord(character) <= 0xDFFF for character in path):
        return "is not valid UTF-8"
    if len(path) > MAX_PATH_CHARACTERS:
        return f"is longer than {MAX_PATH_CHARACTERS} characters"
    return None
