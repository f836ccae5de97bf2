"""FileSets: named sets of files on any storage fsspec knows.

ROOT/<workspace>/<name>/fileset.json          purpose and the list of files: path -> size, sha256
ROOT/<workspace>/<name>/blobs/<ab>/<sha256>   the files themselves, each under the hash of its content

An upload writes the blobs that are missing and then ``fileset.json``, one object in one write. A reader therefore
sees the old set or the new one, never half of either; an upload that was cut short goes on where it stopped.
"""

import hashlib
import os
import secrets
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, BinaryIO

from pydantic import ValidationError

from launcher.local_files import scan_tree
from launcher.schema.filesets import DEFAULT_WORKSPACE, FileSet, Purpose, StoredFile, is_fileset_name
from launcher.schema.problems import LauncherError, Problem

ROOT_VARIABLE = "GRPO_FILES_ROOT"
_INDEX = "fileset.json"
_BLOCK_BYTES = 2**20
_LARGEST_INDEX_BYTES = 256 * 2**20
_NUM_TRANSFERS = 8
_ORPHAN_AGE = timedelta(days=1)
"""Blobs of no set are kept this long: another upload may be about to use them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadReport:
    """What an upload did.

    Example:
        UploadReport(fileset=..., prefix="", num_files=12, num_sent=3, num_reused=9)
    """

    fileset: FileSet
    """The set as it is now."""
    prefix: str
    """Folder inside the set that the files went under; empty for its root."""
    num_files: int
    """Files of the upload."""
    num_sent: int
    num_reused: int
    """Files whose content the set already had, or an earlier attempt had sent."""


class FileSetStore:
    """FileSets under one root."""

    def __init__(self, root: str | None = None):
        """Open the store.

        Args:
            root: folder or fsspec URL; ``$GRPO_FILES_ROOT`` when None, else a folder in the user's data folder.

        Raises:
            LauncherError: nothing serves that kind of URL.
        """
        self.root = root or os.environ.get(ROOT_VARIABLE) or default_root()
        # Imported here: 0.1 s that a job of local paths does not need.
        import fsspec  # type: ignore[import-untyped]
        from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

        with _as_problems(self.root):
            self._fs, path = fsspec.core.url_to_fs(self.root, use_listings_cache=False)
        self._path = path.rstrip("/")
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def create(
        self, name: str, *, workspace: str = DEFAULT_WORKSPACE, purpose: Purpose, exist_ok: bool = False
    ) -> FileSet:
        """Make an empty set; with ``exist_ok`` one of the same purpose may be there already."""
        _check_name(name, "name")
        _check_name(workspace, "workspace")
        there = self.find(name, workspace=workspace)
        if there is None:
            fileset = FileSet(workspace=workspace, name=name, purpose=purpose)
            self._write_index(fileset)
            return fileset
        if there.purpose != purpose:
            message = f"exists with purpose {there.purpose!r}, not {purpose!r}"
            fix = f"delete it and recreate it with --purpose {purpose}, or choose another name"
            raise _refused("fileset-purpose", there.reference, message, fix)
        if not exist_ok:
            raise _refused("fileset-exists", there.reference, "exists already", "give --exist-ok or another name")
        return there

    def find(self, name: str, *, workspace: str = DEFAULT_WORKSPACE) -> FileSet | None:
        """The set of that name, or None."""
        if not (is_fileset_name(name) and is_fileset_name(workspace)):
            return None
        reference = f"{workspace}/{name}"
        with _as_problems(reference):
            try:
                with self._fs.open(f"{self._path}/{reference}/{_INDEX}", "rb") as file:
                    text = file.read(_LARGEST_INDEX_BYTES + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None
        try:
            fileset = FileSet.model_validate_json(text)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise _refused("fileset-damaged", reference, f"{_INDEX} is damaged: {reason}", "upload it again") from None
        if fileset.reference != reference:
            raise _refused("fileset-damaged", reference, f"{_INDEX} is of {fileset.reference}", "upload it again")
        return fileset

    def get(self, name: str, *, workspace: str = DEFAULT_WORKSPACE) -> FileSet:
        """The set of that name.

        Raises:
            LauncherError: there is none; names the sets that there are.
        """
        fileset = self.find(name, workspace=workspace)
        if fileset is None:
            known = ", ".join(self.names(workspace)[:20]) or "none"
            fix = f"create it: grpo files create {name} --workspace {workspace} --purpose PURPOSE"
            raise _refused("fileset-missing", f"{workspace}/{name}", f"no such FileSet; there are: {known}", fix)
        return fileset

    def names(self, workspace: str | None = None) -> list[str]:
        """``workspace/name`` of every set, or of those in one workspace, sorted."""
        with _as_problems(self.root):
            pattern = f"{self._path}/{workspace or '*'}/*/{_INDEX}"
            return sorted("/".join(path.split("/")[-3:-1]) for path in self._fs.glob(pattern))

    def upload(
        self, source: Path, name: str, *, workspace: str = DEFAULT_WORKSPACE, prefix: str = "", replace: bool = False
    ) -> UploadReport:
        """Add files to a set, all of them or none.

        Args:
            source: a folder, whose contents go up with their relative paths, or a single file.
            name: an existing set.
            workspace: where the set is.
            prefix: folder inside the set to put them under.
            replace: the set holds exactly these files afterwards; else files of other paths stay.

        Raises:
            LauncherError: links, special files or unusable names in the source; it changed while it was read; storage.
        """
        self.get(name, workspace=workspace)
        files = _source_files(source)
        with ThreadPoolExecutor(_NUM_TRANSFERS) as pool, _as_problems(f"{workspace}/{name}"):
            stored = dict(zip(files, pool.map(_stored_file, files.values()), strict=True))
            missing = self._missing_blobs(f"{workspace}/{name}", stored)
            tasks = [(files[path], self._blob(f"{workspace}/{name}", file), file) for path, file in missing.items()]
            list(pool.map(lambda task: self._send(*task), tasks))
            with self._locked(f"{workspace}/{name}"):
                before = self.get(name, workspace=workspace)
                added = {f"{prefix}/{path}" if prefix else path: file for path, file in stored.items()}
                after = _with_files(before, added if replace else {**before.files, **added})
                self._write_index(after)
            self._drop_orphans(before, after)
        return UploadReport(
            fileset=after,
            prefix=prefix,
            num_files=len(files),
            num_sent=len(missing),
            num_reused=len(files) - len(missing),
        )

    def download(self, fileset: FileSet, target: Path) -> None:
        """Write the files of ``fileset`` into ``target``, which must not exist or be empty: all of them or none.

        Raises:
            LauncherError: the folder is taken, a file's content does not match its hash, storage fails.
        """
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise _refused("download-target", str(target), "exists and is not an empty folder", "give a new folder")
        with _as_problems(fileset.reference):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            try:
                part.chmod(0o755)
                paths: defaultdict[str, list[str]] = defaultdict(list)  # one transfer for each content
                for path, file in fileset.files.items():
                    paths[file.sha256].append(path)
                with ThreadPoolExecutor(_NUM_TRANSFERS) as pool:
                    list(pool.map(lambda same: self._fetch(fileset, same, part), paths.values()))
                part.replace(target)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise

    def cached(self, fileset: FileSet, cache: Path) -> Path:
        """A local folder with the files of ``fileset``, downloaded once per content into ``cache``."""
        target = cache / fileset.workspace / fileset.name / fileset.digest[:16]
        if not target.is_dir():
            try:
                self.download(fileset, target)
            except LauncherError:
                if not target.is_dir():  # else another process was quicker, and what it put there is the same
                    raise
        return target

    def open(self, fileset: FileSet, path: str) -> BinaryIO:
        """One file of a set, seekable; read where it is, without a check of its hash."""
        with _as_problems(f"{fileset.reference}/{path}"):
            file: BinaryIO = self._fs.open(self._blob(fileset.reference, fileset.files[path]), "rb")
        return file

    def delete(self, name: str, *, workspace: str = DEFAULT_WORKSPACE) -> FileSet:
        """Delete a set with its files; readers stop seeing it at once."""
        fileset = self.get(name, workspace=workspace)
        with _as_problems(fileset.reference), self._locked(fileset.reference):
            self._fs.rm_file(f"{self._path}/{fileset.reference}/{_INDEX}")
            self._fs.rm(f"{self._path}/{fileset.reference}", recursive=True)
        return fileset

    def _blob(self, reference: str, file: StoredFile) -> str:
        return f"{self._path}/{reference}/blobs/{file.sha256[:2]}/{file.sha256}"

    def _missing_blobs(self, reference: str, stored: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
        """Files to send: one path for each content that storage does not have in full length."""
        sizes = {path.rsplit("/", 1)[-1]: size for path, size in self._blob_sizes(reference).items()}
        missing = {file.sha256: path for path, file in stored.items() if sizes.get(file.sha256) != file.size}
        return {path: stored[path] for path in missing.values()}

    def _blob_sizes(self, reference: str) -> dict[str, int]:
        found: dict[str, Any] = self._fs.find(f"{self._path}/{reference}/blobs", detail=True)
        return {path: int(info["size"]) for path, info in found.items()}

    def _send(self, source: Path, blob: str, file: StoredFile) -> None:
        """Write one blob. On a local folder under another name first: storage elsewhere shows no half object."""
        target = f"{blob}.{secrets.token_hex(4)}.part" if self._is_local else blob
        if self._is_local:
            self._fs.makedirs(os.path.dirname(blob), exist_ok=True)
        with source.open("rb") as reader, self._fs.open(target, "wb") as writer:
            sha256 = _copy(reader, writer)
        if sha256 != file.sha256:
            self._fs.rm_file(target)
            raise _refused(
                "upload-changed", str(source), "changed while it was uploaded", "upload again when it is still"
            )
        if self._is_local:
            os.replace(target, blob)

    def _fetch(self, fileset: FileSet, paths: Sequence[str], folder: Path) -> None:
        """Write the files of one content."""
        file = fileset.files[paths[0]]
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        first = folder / paths[0]
        with self._fs.open(self._blob(fileset.reference, file), "rb") as reader, first.open("xb") as writer:
            sha256 = _copy(reader, writer)
        if sha256 != file.sha256:
            message = f"{paths[0]} does not match its hash: the stored copy is damaged"
            raise _refused("fileset-damaged", fileset.reference, message, f"upload {paths[0]} again")
        for path in paths[1:]:
            shutil.copyfile(first, folder / path)

    def _write_index(self, fileset: FileSet) -> None:
        folder = f"{self._path}/{fileset.reference}"
        content = fileset.model_dump_json(indent=1).encode()
        with _as_problems(fileset.reference):
            if not self._is_local:
                self._fs.pipe_file(f"{folder}/{_INDEX}", content)
                return
            self._fs.makedirs(folder, exist_ok=True)
            part = Path(folder, f".{_INDEX}.{secrets.token_hex(4)}.part")
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(Path(folder, _INDEX))

    def _drop_orphans(self, before: FileSet, after: FileSet) -> None:
        """Delete blobs that neither the set nor its predecessor (somebody may still be reading it) refers to."""
        used = {file.sha256 for fileset in (before, after) for file in fileset.files.values()}
        now = datetime.now(UTC)
        for path in self._blob_sizes(after.reference):
            if path.rsplit("/", 1)[-1] in used:
                continue
            with suppress(FileNotFoundError):  # finished, or deleted, by somebody else meanwhile
                modified = self._fs.modified(path)
                if now - (modified if modified.tzinfo else modified.replace(tzinfo=UTC)) > _ORPHAN_AGE:
                    self._fs.rm_file(path)

    @contextmanager
    def _locked(self, reference: str) -> Iterator[None]:
        """One writer of a set at a time. Only local folders can promise it; elsewhere the last writer wins."""
        if not self._is_local:
            yield
            return
        import fcntl  # absent on Windows, where a launcher can still submit to storage elsewhere

        with open(f"{self._path}/{reference}/.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def default_root() -> str:
    """Folder of FileSets when no other root is set."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return str(Path(data).expanduser() / "grpo-launcher" / "filesets")


def _check_name(name: str, what: str) -> None:
    if not is_fileset_name(name):
        message = f"{name!r} is no {what}: letters, digits, '.', '_' and '-', starting with a letter or digit"
        raise _refused("fileset-name", what, message, f"choose another {what}")


def _source_files(source: Path) -> dict[str, Path]:
    """Relative path -> file for everything to upload."""
    if source.is_file():
        return {source.name: source}
    if not source.is_dir():
        raise _refused("upload-source", str(source), "is no file or folder", "give a folder or a file to upload")
    listing = scan_tree(source)
    if listing.problems:
        raise LauncherError(listing.problems)
    if not listing.files:
        raise _refused("upload-source", str(source), "holds no file", "give a folder with files")
    return {path: source / path for path in listing.files}


def _with_files(fileset: FileSet, files: Mapping[str, StoredFile]) -> FileSet:
    try:
        return FileSet(
            workspace=fileset.workspace, name=fileset.name, purpose=fileset.purpose, files=dict(sorted(files.items()))
        )
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise _refused("fileset-paths", fileset.reference, reason, "rename one of them, or use --replace") from None


def _stored_file(path: Path) -> StoredFile:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return StoredFile(size=size, sha256=digest.hexdigest())


def _copy(reader: IO[bytes], writer: IO[bytes]) -> str:
    """Copy everything; the sha256 of what was copied."""
    digest = hashlib.sha256()
    while block := reader.read(_BLOCK_BYTES):
        digest.update(block)
        writer.write(block)
    return digest.hexdigest()


@contextmanager
def _as_problems(path: str) -> Iterator[None]:
    try:
        yield
    except LauncherError:
        raise
    except Exception as error:  # storage plug-ins raise exceptions of their own libraries
        reason = str(error).strip() or type(error).__name__
        fix = f"check {ROOT_VARIABLE} or --root, the address and the credentials in the environment"
        raise _refused("storage", path, f"storage failed: {reason}", fix) from error


def _refused(code: str, path: str, message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code=code, path=path, message=message, fix=fix)])
