"""``grpo files``: FileSets on a local folder or any storage fsspec knows."""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from launcher.filesets import ROOT_VARIABLE, FileSetStore
from launcher.schema.filesets import DEFAULT_WORKSPACE, FileSet, Purpose, split_fileset_reference
from launcher.schema.problems import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo files``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="create | upload | list | download | delete")
    create = actions.add_parser("create", help="make an empty FileSet")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--purpose", required=True, choices=get_args(Purpose), help="what a job may use it as")
    create.add_argument("--exist-ok", action="store_true", help="one of the same purpose may be there already")
    upload = actions.add_parser("upload", help="add a folder or file, all of it or nothing")
    upload.add_argument("path", metavar="PATH", help="DIR/ uploads its contents, DIR the folder itself")
    upload.add_argument("name", metavar="NAME")
    upload.add_argument("--replace", action="store_true", help="drop the files the set had before")
    listing = actions.add_parser("list", help="the FileSets, or the files of one")
    listing.add_argument("name", metavar="NAME", nargs="?")
    download = actions.add_parser("download", help="write the files of a FileSet into a new folder")
    download.add_argument("name", metavar="NAME")
    download.add_argument("folder", type=Path, metavar="DIR")
    delete = actions.add_parser("delete", help="delete a FileSet and its files")
    delete.add_argument("name", metavar="NAME")
    for action in (create, upload, listing, download, delete):
        action.add_argument("--workspace", metavar="W", help=f"where NAME is ({DEFAULT_WORKSPACE})")
        action.add_argument("--root", metavar="URL", help=f"folder or URL of all FileSets (${ROOT_VARIABLE})")
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run one action of ``grpo files``."""
    store = FileSetStore(options.root)
    if options.action == "list" and options.name is None:
        return _list_sets(store, options)
    workspace, name = _named(options)
    match options.action:
        case "create":
            created = store.create(name, workspace=workspace, purpose=options.purpose, exist_ok=options.exist_ok)
            _print(options, _summary(created), f"{created.reference}: purpose {created.purpose}, {_contents(created)}")
        case "upload":
            _upload(store, options, name=name, workspace=workspace)
        case "list":
            fileset = store.get(name, workspace=workspace)
            files = {path: file.model_dump() for path, file in fileset.files.items()}
            lines = [f"{file.size:>14,}  {path}" for path, file in fileset.files.items()]
            _print(options, {**_summary(fileset), "files": files}, "\n".join([*lines, _contents(fileset)]))
        case "download":
            fileset = store.get(name, workspace=workspace)
            store.download(fileset, options.folder)
            _print(options, _summary(fileset), f"{fileset.reference}: {_contents(fileset)} -> {options.folder}")
        case "delete":
            fileset = store.delete(name, workspace=workspace)
            _print(options, _summary(fileset), f"{fileset.reference}: deleted, {_contents(fileset)}")
    return 0


def _upload(store: FileSetStore, options: argparse.Namespace, *, name: str, workspace: str) -> None:
    """A trailing slash selects a folder's contents; without it the folder itself goes up, one level deeper."""
    source = Path(options.path)
    takes_contents = options.path.endswith(("/", os.sep)) or not source.is_dir()
    prefix = "" if takes_contents else source.absolute().name
    report = store.upload(source, name, workspace=workspace, prefix=prefix, replace=options.replace)
    if source.is_file():
        what = f"the file {source.name}"
    else:
        what = (
            f"the contents of {options.path}" if takes_contents else f"the folder {options.path} itself, as {prefix}/"
        )
    text = f"{report.fileset.reference}: uploaded {what}: {report.num_files} files, {report.num_sent} sent, "
    text += f"{report.num_reused} there already\nthe set now holds {_contents(report.fileset)}"
    if not takes_contents:
        text += f"\nto put the contents at the root instead, write {options.path}/"
    answer = {**_summary(report.fileset), "uploaded": report.num_files, "sent": report.num_sent, "prefix": prefix}
    _print(options, answer, text)


def _list_sets(store: FileSetStore, options: argparse.Namespace) -> int:
    named = (reference.split("/") for reference in store.names(options.workspace))
    filesets = [store.get(name, workspace=workspace) for workspace, name in named]
    lines = [f"{fileset.reference:40} {fileset.purpose:12} {_contents(fileset)}" for fileset in filesets]
    answer = {"root": store.root, "filesets": [_summary(fileset) for fileset in filesets]}
    _print(options, answer, "\n".join(lines) or f"no FileSets in {store.root}")
    return 0


def _named(options: argparse.Namespace) -> tuple[str, str]:
    """Workspace and name; ``workspace/name`` says both."""
    if options.workspace is not None:
        return options.workspace, options.name
    named = split_fileset_reference(options.name)
    if named is None:
        raise UsageError(f"{options.name!r} is no FileSet name: letters, digits, '.', '_' and '-'; or workspace/name")
    return named


def _summary(fileset: FileSet) -> dict[str, object]:
    return {
        "workspace": fileset.workspace,
        "name": fileset.name,
        "purpose": fileset.purpose,
        "num_files": len(fileset.files),
        "bytes": fileset.size,
    }


def _contents(fileset: FileSet) -> str:
    return f"{len(fileset.files)} files, {fileset.size:,} bytes"


def _print(options: argparse.Namespace, answer: Mapping[str, object], text: str) -> None:
    print(json.dumps(answer) if options.json else text)
