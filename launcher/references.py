"""What ``model``, ``dataset`` and ``environment`` of a job refer to.

text --(resolve_reference)--> Reference --(local_path)--> a folder or file on this machine
"./data"          path      itself
"s3://bucket/d"   url       downloaded into the cache
"team/my-env"     fileset   downloaded into the cache, once per content
"hf://org/name"   hub       the model loader's business
"wheel://name"    wheel     the model loader's business
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launcher.filesets import FileSetStore
from launcher.schema.filesets import FileSet, relative_path_fault, split_fileset_reference
from launcher.schema.problems import LauncherError, Problem
from launcher.suggest import did_you_mean

ReferenceKind = Literal["model", "dataset", "environment"]

_ACCEPTED_PURPOSES: dict[ReferenceKind, tuple[str, ...]] = {
    "dataset": ("dataset", "generic"),
    "environment": ("environment", "generic"),
    "model": ("model", "generic"),
}
_MODEL_SCHEMES = ("hf", "wheel")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A reference that names exactly one thing.

    Example:
        Reference(kind="fileset", text="ascii-tree-env", location="default/ascii-tree-env")
    """

    kind: Literal["path", "url", "fileset", "hub", "wheel"]
    text: str
    """As the job has it."""
    location: str
    """Absolute path, URL, ``workspace/name``, ``org/name`` of the hub, or name of a wheel."""
    fileset: FileSet | None = field(default=None, repr=False)
    """The set a FileSet reference names, with its list of files."""
    store: FileSetStore | None = field(default=None, repr=False, compare=False)
    """Where that set lies."""

    @property
    def is_model_source(self) -> bool:
        """True for a hub model and a model in a wheel: these have no path before the model loader fetched them."""
        return self.kind in ("hub", "wheel")

    def local_path(self) -> Path:
        """The folder or file on this machine, downloaded first when it is elsewhere.

        Raises:
            LauncherError: the download failed.
        """
        assert not self.is_model_source, f"{self.text} is resolved by the model loader"
        match self:
            case Reference(kind="fileset", fileset=FileSet() as fileset, store=FileSetStore() as store):
                return store.cached(fileset, cache_folder() / "filesets")
            case Reference(kind="url"):
                return _downloaded(self.location)
            case _:
                return Path(self.location)


def cache_folder() -> Path:
    """Where downloads lie: ``$GRPO_CACHE``, else ``~/.cache/grpo-launcher``."""
    return Path(os.environ.get("GRPO_CACHE") or "~/.cache/grpo-launcher").expanduser().absolute()


def resolve_reference(
    kind: ReferenceKind, text: str, *, base: Path | None = None, store: FileSetStore | None = None
) -> Reference:
    """Find out what a reference names.

    Args:
        kind: the job's field it stands in.
        text: a path that exists, an fsspec URL, a FileSet ``name`` or ``workspace/name``; a model also ``hf://org/name``
            or ``wheel://name``.
        base: folder that relative paths start from; the working directory when None.
        store: where FileSets are looked for; the configured root when None.

    Raises:
        LauncherError: it names nothing, two things, or a FileSet of another purpose.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        return _remote(kind, text, scheme=scheme, rest=rest)
    path = Path(base or Path.cwd(), Path(rest if separator else text).expanduser())
    exists = bool(text) and _exists(path)
    name = None if separator or text.startswith((".", "/", "~")) else split_fileset_reference(text)
    if name is None and exists:
        return Reference(kind="path", text=text, location=str(path.absolute()))
    if name is None:
        raise _refused(kind, f"{text!r}: {path} does not exist", _EXPECTED[kind])
    store = store or FileSetStore()
    workspace, leaf = name
    fileset = store.find(leaf, workspace=workspace)
    if fileset is not None and exists:
        message = f"{text!r} is both the path {path.absolute()} and the FileSet {fileset.reference}"
        raise _refused(kind, message, f"write ./{text} for the path, or rename one of the two")
    if exists:
        return Reference(kind="path", text=text, location=str(path.absolute()))
    if fileset is None:
        known = [name.removeprefix("default/") if "/" not in text else name for name in store.names()]
        message = f"{text!r} is neither a path ({path.absolute()}) nor a FileSet of {store.root}"
        raise _refused(kind, message, did_you_mean(text, known, otherwise=_EXPECTED[kind]))
    _check_purpose(kind, text, fileset)
    return Reference(kind="fileset", text=text, location=fileset.reference, fileset=fileset, store=store)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file system can hold
        return False


_EXPECTED: dict[ReferenceKind, str] = {
    "model": "give an existing path, an fsspec URL, a FileSet (name or workspace/name), hf://org/name or wheel://name",
    "dataset": "give an existing path, an fsspec URL or a FileSet (name or workspace/name)",
    "environment": "give an existing path, an fsspec URL or a FileSet (name or workspace/name)",
}


def _remote(kind: ReferenceKind, text: str, *, scheme: str, rest: str) -> Reference:
    if scheme in _MODEL_SCHEMES:
        if kind != "model":
            raise _refused(kind, f"{text!r}: {scheme}:// names a model", _EXPECTED[kind])
        parts = rest.split("/")
        if not all(parts) or len(parts) != (2 if scheme == "hf" else 1):
            shape = "hf://org/name" if scheme == "hf" else "wheel://name"
            raise _refused(kind, f"{text!r} is not of the shape {shape}", _EXPECTED[kind])
        return Reference(kind="hub" if scheme == "hf" else "wheel", text=text, location=rest)
    import fsspec  # type: ignore[import-untyped]  # 0.1 s that a job of local paths does not need

    if scheme not in fsspec.available_protocols():
        raise _refused(kind, f"{text!r}: {scheme}:// is no kind of storage that fsspec knows", _EXPECTED[kind])
    return Reference(kind="url", text=text, location=text)


def _check_purpose(kind: ReferenceKind, text: str, fileset: FileSet) -> None:
    if fileset.purpose not in _ACCEPTED_PURPOSES[kind]:
        message = f"{kind.capitalize()} fileset {fileset.reference!r} has purpose {fileset.purpose!r}"
        message += f"; expected purpose={kind!r}"
        fix = f"recreate it: grpo files delete {text}, then grpo files create {text} --purpose {kind}, and upload again"
        raise LauncherError([Problem(code="R23", path=kind, message=message, fix=fix)])


def _downloaded(url: str) -> Path:
    """A copy of a URL's file or folder, made once for each state of what lies there."""
    import fsspec

    target = None
    try:
        storage, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        root = root.rstrip("/")
        found = storage.find(root, detail=True)
        if not found:
            raise FileNotFoundError("nothing is there")
        state = hashlib.sha256(repr((url, sorted(found.items()))).encode()).hexdigest()[:16]
        target = cache_folder() / "urls" / state
        if not target.is_dir():
            _download_all(storage, {path: _path_below(root, path) for path in found}, target)
        return target / _path_below(root, root) if list(found) == [root] else target
    except LauncherError:
        raise
    except Exception as error:  # storage plug-ins raise exceptions of their own libraries
        reason = str(error).strip() or type(error).__name__
        fix = "check the address and the credentials in the environment"
        raise LauncherError(
            [Problem(code="storage", path=url, message=f"storage failed: {reason}", fix=fix)]
        ) from error


def _path_below(root: str, path: str) -> str:
    """Where a file goes in the copy: its path below ``root``, or its name when it is ``root`` itself."""
    relative = path.removeprefix(f"{root}/") if path != root else root.rsplit("/", 1)[-1]
    if fault := relative_path_fault(relative):
        fix = "rename it in the storage"
        raise LauncherError([Problem(code="unsafe-file", path=relative, message=f"{relative!r} {fault}", fix=fix)])
    return relative


def _download_all(storage: Any, paths: Mapping[str, str], target: Path) -> None:
    """All files or none: into a folder beside ``target``, which is then renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as folder:
        part = Path(folder, "files")
        for remote, relative in paths.items():
            (part / relative).parent.mkdir(parents=True, exist_ok=True)
            storage.get_file(remote, str(part / relative))
        try:
            part.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was quicker, and what it put there is the same
                raise


def _refused(kind: ReferenceKind, message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="reference", path=kind, message=message, fix=fix)])
