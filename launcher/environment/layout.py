"""The manifest and the layout rules: everything that a list of paths and one YAML file decide.

PackageSource --(read_manifest)--> EnvironmentManifest --(layout_problems)--> what is wrong with the tree
The same functions serve a folder and a FileSet.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from launcher.environment.source import PackageSource, read_mapping
from launcher.local_files import Listing
from launcher.schema.manifest import (
    MANIFEST,
    MANIFEST_NAME,
    WHEELS_FOLDER,
    Adapter,
    EnvironmentManifest,
    Metadata,
    NativeManifest,
    WheelsManifest,
)
from launcher.schema.problems import LauncherError, Problem
from launcher.suggest import did_you_mean
from launcher.yaml_files import KeyPath

MAX_FILE_BYTES = 4 * 2**30
"""No wheel on a package index is that large; a sparse file can be."""
FORMATS = ("native-v1", "wheels-v1", "adapter-wheels-v1")

_ROWS = re.compile(r"\.(jsonl|ndjson)(\.\w+)?$", re.IGNORECASE)
_SHELL_SAFE = re.compile(r"[\w./+!~@%,=-]+", re.ASCII)
_KNOWN_KEYS: dict[str, tuple[str, ...]] = {
    "": tuple(WheelsManifest.model_fields),
    "metadata": tuple(Metadata.model_fields),
    "adapter": tuple(Adapter.model_fields),
}


def read_manifest(source: PackageSource) -> EnvironmentManifest:
    """The manifest at the root of a package.

    Raises:
        LauncherError: it is missing or wrong; every fault of it with file:line.
    """
    if MANIFEST_NAME not in source.listing.files:
        raise LauncherError([_missing_manifest(source.listing)])
    tree, lines = read_mapping(source, MANIFEST_NAME)
    try:
        return MANIFEST.validate_python(tree)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise LauncherError(_manifest_problem(detail, tree, lines) for detail in details) from None


def layout_problems(manifest: EnvironmentManifest, listing: Listing) -> Iterator[Problem]:
    """What is wrong with the files beside the manifest."""
    files = listing.files
    yield from listing.problems
    refused = {problem.path for problem in listing.problems}
    missing = [path for path in manifest.config_paths if path not in files and path not in refused]
    if missing:
        message = f"config_paths reference files that are not in the package: {', '.join(missing)}"
        fix = "upload the package again with its relative paths, or correct config_paths"
        yield _problem("config-missing", MANIFEST_NAME, message, fix)
    for path in files:
        if _ROWS.search(path):
            message = "Prompt JSONL must not live in the environment package"
            yield _problem("rows-in-package", path, message, "move the rows to the dataset FileSet")
        if not _SHELL_SAFE.fullmatch(path):
            message = "holds a character that Gym does not quote when it starts servers"
            yield _problem("unsafe-file", path, message, "use letters, digits and . _ - + in file names")
        if files[path] > MAX_FILE_BYTES:
            message = f"is {files[path] / 2**30:.1f} GiB; no file of a package may exceed {MAX_FILE_BYTES // 2**30} GiB"
            yield _problem("file-too-large", path, message, "remove it")
    if "pyproject.toml" in files:
        message = "makes Gym treat the package as an editable checkout of itself, and every server's install fails"
        fix = "remove pyproject.toml from the root; a server's own pyproject.toml lies in its folder"
        yield _problem("root-pyproject", "pyproject.toml", message, fix)
    yield from _wheels_folder_problems(manifest, files)


def vendored_wheels(listing: Listing) -> tuple[str, ...]:
    """Paths of the wheels directly in ``wheels/``."""
    return tuple(path for path in listing.files if _is_vendored(path) and path.endswith(".whl"))


def _is_vendored(path: str) -> bool:
    return path.startswith(f"{WHEELS_FOLDER}/")


def _wheels_folder_problems(manifest: EnvironmentManifest, files: Mapping[str, int]) -> Iterator[Problem]:
    vendored = [path for path in files if _is_vendored(path)]
    if isinstance(manifest, NativeManifest):
        if vendored:
            message = f"native-v1 installs from a package index; the {len(vendored)} files here are not used"
            fix = "remove wheels/, or set format: wheels-v1"
            yield Problem(code="wheels-folder", path=WHEELS_FOLDER, message=message, fix=fix, severity="warning")
        return
    strays = [path for path in vendored if not path.endswith(".whl") or path.count("/") > 1]
    if not any(path not in strays for path in vendored):
        message = f"{manifest.format} packages must carry a non-empty wheels/ directory"
        fix = "vendor the dependency closure: grpo env vendor DIR --arch x86_64|aarch64"
        yield _problem("wheels-folder", WHEELS_FOLDER, message, fix)
    if strays:
        message = f"Non-wheel files in wheels/: {', '.join(strays[:10])}"
        fix = "keep .whl files directly in wheels/ and nothing else"
        yield _problem("wheels-folder", WHEELS_FOLDER, message, fix)


def _missing_manifest(listing: Listing) -> Problem:
    nested = [path for path in listing.files if path.endswith(f"/{MANIFEST_NAME}")]
    fix = "place the manifest at the root"
    if nested:
        folder = nested[0].rsplit("/", 1)[0]
        fix += f": it lies in {folder}/; upload that folder with a trailing slash so that its contents go to the root"
    return _problem("manifest-missing", MANIFEST_NAME, f"Missing {MANIFEST_NAME} at environment root", fix)


def _manifest_problem(detail: ErrorDetails, tree: Mapping[str, Any], lines: Mapping[KeyPath, int]) -> Problem:
    location = tuple(str(part) for part in detail["loc"] if part not in FORMATS)
    key = ".".join(location)
    parent, leaf = ".".join(location[:-1]), location[-1] if location else ""
    match detail["type"]:
        case "union_tag_not_found":
            message, fix = f"format is missing; allowed: {', '.join(FORMATS)}", "add format: native-v1"
        case "union_tag_invalid":
            given = str(tree.get("format"))
            message = f"format is {given!r}; allowed: {', '.join(FORMATS)}"
            fix = did_you_mean(given, FORMATS, otherwise="choose one of these")
            location = ("format",)
        case "extra_forbidden" if key == "adapter":
            message = "the adapter block belongs to adapter-wheels-v1 only"
            fix = "remove it, or set format: adapter-wheels-v1"
        case "extra_forbidden":
            known = _KNOWN_KEYS.get(parent, ())
            message = f"unknown key {key!r}; known here: {', '.join(known)}"
            fix = did_you_mean(leaf, known, otherwise="remove it")
        case "missing":
            message, fix = f"{key} is missing", _missing_key_fix(key)
        case "value_error":
            message = detail["msg"].removeprefix("Value error, ")
            fix = _value_fix(message)
        case _:
            message = f"{key} is {_short(detail['input'])}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
            fix = "list the Gym YAML files" if leaf == "config_paths" else f"correct {key}"
    return _problem("manifest", place_in(MANIFEST_NAME, location, lines), message, fix)


def _missing_key_fix(key: str) -> str:
    return {
        "metadata": "add metadata: with a name",
        "metadata.name": "add metadata.name, the name of the environment",
        "config_paths": "list at least one Gym YAML file",
        "adapter": "add adapter: {agent: verifiers_agent}",
    }.get(key, f"add {key}")


def _value_fix(message: str) -> str:
    if "native-v1" in message:
        return "move the config under a Gym server directory, or switch to wheels-v1"
    if "adapter-wheels-v1" in message:
        return "move the config under configs/"
    if "training image" in message:
        return "use a supported harness, or switch format"
    if "twice" in message:
        return "list each file once"
    return "give paths relative to the package's root, without '..'"


def place_in(path: str, location: tuple[str, ...], lines: Mapping[KeyPath, int]) -> str:
    """``path:line`` of a key, or of the nearest key around it that stands in the file."""
    for end in range(len(location), 0, -1):
        if location[:end] in lines:
            return f"{path}:{lines[location[:end]]}"
    return path


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _problem(code: str, path: str, message: str, fix: str) -> Problem:
    return Problem(code=code, path=path, message=message, fix=fix)
