"""A ``verifiers`` environment of a hub as an ``adapter-wheels-v1`` package, and its dataset as prompt rows.

hub project --(convert_examples: loaded once)--> version, examples --(convert_rows)--> <dataset>/*.jsonl
            --(manifest, configs, vendored closure; checked)-------------------------> <package>/
Both folders change at the very end or not at all.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from gym_bridge.versions import GymVersion
from launcher.environment.convert_examples import LOAD_TIMEOUT_S, LoadRequest, hub_examples
from launcher.environment.convert_rows import AGENT, prompt_rows, split_rows
from launcher.environment.layout import read_manifest
from launcher.environment.package import inspect_package, load_package
from launcher.environment.source import FolderSource
from launcher.environment.vendor import vendor_closure
from launcher.environment.wheels import Arch, Target
from launcher.schema.manifest import MANIFEST_NAME, WHEELS_FOLDER
from launcher.schema.problems import LauncherError, Problem

POLICY_CONFIG, AGENT_CONFIG = "configs/policy_model.yaml", "configs/verifiers_agent.yaml"
MAX_TOKENS = 512
"""Stands in the agent's config for other launchers; ours puts the job's own limit in its place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """What to convert, into what.

    Example:
        Conversion(hub_id="primeintellect/ascii-tree", hub_version="0.1.5", vf_env_id="ascii-tree", vf_env_args={},
                   index_url="http://127.0.0.1:3141/simple/", verifiers_version="0.1.14", arches=("x86_64",),
                   wheels_dir=None, name="ascii-tree", dataset_size=-1, dataset_seed=None, validation_fraction=0.1,
                   out_dir=Path("ascii-tree-pkg"), dataset_dir=Path("ascii-tree-data"))
    """

    hub_id: str
    """``owner/project``."""
    hub_version: str | None
    """None takes whatever the index offers at this moment."""
    vf_env_id: str
    vf_env_args: Mapping[str, Any]
    index_url: str
    """A simple index that has the project."""
    verifiers_version: str
    arches: tuple[Arch, ...]
    """Architectures that wheels/ is to serve."""
    wheels_dir: Path | None
    """A closure that was made already, taken as it is."""
    name: str
    """Of the package."""
    dataset_size: int
    """-1 for all examples."""
    dataset_seed: int | None
    validation_fraction: float
    out_dir: Path
    dataset_dir: Path

    @property
    def project(self) -> str:
        """The hub's project, as an index knows it."""
        return self.hub_id.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Converted:
    """What was written.

    Example:
        Converted(hub_version="0.1.5", num_training_rows=90, num_validation_rows=10, num_wheels=207, warnings=())
    """

    hub_version: str
    num_training_rows: int
    num_validation_rows: int
    num_wheels: int
    warnings: tuple[Problem, ...]


def convert_environment(
    conversion: Conversion,
    *,
    gym: GymVersion,
    load_timeout_s: float = LOAD_TIMEOUT_S,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Converted:
    """Write a package and its rows; what an earlier conversion left in their folders is replaced.

    Args:
        conversion: what to convert.
        gym: the NeMo Gym version that will run it.
        load_timeout_s: bound on loading the environment.
        on_progress: told in a few words what takes long.

    Raises:
        LauncherError: a folder holds something else, the environment cannot be installed or loaded, or its closure is
            not complete; both folders are then as they were.
    """
    _check_folders(conversion)
    conversion.out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=conversion.out_dir.absolute().parent) as folder:
        scratch = Path(folder)
        on_progress(f"loading {conversion.vf_env_id} in an environment of its own")
        pin = f"=={conversion.hub_version}" if conversion.hub_version else ""
        found = hub_examples(
            LoadRequest(
                project=conversion.project,
                vf_env_id=conversion.vf_env_id,
                vf_env_args=conversion.vf_env_args,
                size=conversion.dataset_size,
                seed=conversion.dataset_seed,
            ),
            [f"{conversion.project}{pin}", f"verifiers=={conversion.verifiers_version}"],
            index_url=conversion.index_url,
            wheels=conversion.wheels_dir.absolute() if conversion.wheels_dir else None,
            scratch=scratch,
            load_timeout_s=load_timeout_s,
        )
        shutil.rmtree(scratch / "environment")
        package = scratch / "package"
        _write_tree(package, package_files(conversion, hub_version=found.version))
        _fill_wheels(package, conversion, hub_version=found.version, gym=gym, on_progress=on_progress)
        on_progress("checking the package")
        warnings = _checked(package, conversion)
        rows = prompt_rows(found.examples, vf_env_id=conversion.vf_env_id)
        training, validation = split_rows(rows, validation_fraction=conversion.validation_fraction)
        num_wheels = len(list((package / WHEELS_FOLDER).iterdir()))
        _put(package, conversion.out_dir)
        _write_rows(conversion.dataset_dir, training, validation)
    return Converted(
        hub_version=found.version,
        num_training_rows=len(training),
        num_validation_rows=len(validation),
        num_wheels=num_wheels,
        warnings=(*_unpinned(conversion, found.version), *warnings),
    )


def package_files(conversion: Conversion, *, hub_version: str) -> dict[str, str]:
    """Path -> text of everything in the package but its wheels."""
    manifest = {
        "format": "adapter-wheels-v1",
        "config_paths": [POLICY_CONFIG, AGENT_CONFIG],
        "adapter": {"agent": AGENT, "agent_type": "responses_api_agents"},
        "metadata": {
            "name": conversion.name,
            "hub_id": conversion.hub_id,
            "hub_version": hub_version,
            "vf_env_id": conversion.vf_env_id,
            "adapter_agent": AGENT,
        },
    }
    policy = {
        "entrypoint": "app.py",
        "base_url": "${policy_base_url}",
        "api_key": "${policy_api_key}",
        "model": "${policy_model_name}",
        "return_token_id_information": True,
        "uses_reasoning_parser": True,
    }
    agent = {
        "entrypoint": "app.py",
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "model_name": "${policy_model_name}",
        "vf_env_id": conversion.vf_env_id,
        "vf_env_args": dict(conversion.vf_env_args),
        "max_tokens": MAX_TOKENS,
        "temperature": 1.0,
        "top_p": 1.0,
    }
    trees = {
        MANIFEST_NAME: manifest,
        POLICY_CONFIG: {"policy_model": {"responses_api_models": {"vllm_model": policy}}},
        AGENT_CONFIG: {AGENT: {"responses_api_agents": {AGENT: agent}}},
    }
    return {path: yaml.safe_dump(tree, sort_keys=False, allow_unicode=True) for path, tree in trees.items()}


def _check_folders(conversion: Conversion) -> None:
    """Only folders that are new, empty or an earlier conversion's are written into."""
    out_dir = conversion.out_dir
    if out_dir.resolve() == conversion.dataset_dir.resolve():
        raise _refused("--dataset-dir", f"{out_dir} is --out-dir, and no .jsonl may lie in a package", "choose another")
    if not out_dir.exists() or (out_dir.is_dir() and not any(out_dir.iterdir())):
        return
    if not (out_dir / MANIFEST_NAME).is_file() or read_manifest(FolderSource(out_dir)).format != "adapter-wheels-v1":
        message = f"{out_dir} is there and holds no adapter-wheels-v1 package, which a new conversion could replace"
        raise _refused("--out-dir", message, "choose another folder, or remove it")


def _fill_wheels(
    package: Path, conversion: Conversion, *, hub_version: str, gym: GymVersion, on_progress: Callable[[str], None]
) -> None:
    """One closure per architecture, laid together; which versions agree is checked with the package."""
    wheels = package / WHEELS_FOLDER
    if conversion.wheels_dir is not None:
        _copy_wheels(conversion.wheels_dir, wheels)
        _check_environment_wheel(wheels, conversion, hub_version)
        return
    wanted = [f"{conversion.project}=={hub_version}", f"verifiers=={conversion.verifiers_version}"]
    collected = package.with_name("collected")
    for arch in conversion.arches:
        vendor_closure(
            load_package(package), Target(arch=arch), gym=gym, environment=wanted, index_url=conversion.index_url,
            on_progress=on_progress,
        )  # fmt: skip
        shutil.copytree(wheels, collected, copy_function=os.link, dirs_exist_ok=True, ignore=_already_in(collected))
    shutil.rmtree(wheels)
    collected.rename(wheels)


def _already_in(folder: Path) -> Callable[[str, list[str]], list[str]]:
    return lambda _, names: [name for name in names if (folder / name).exists()]


def _copy_wheels(source: Path, target: Path) -> None:
    wheels = sorted(source.glob("*.whl"))
    if not wheels:
        raise _refused("--wheels-dir", f"{source} holds no .whl file", "give the folder that pip downloaded into")
    target.mkdir()
    for wheel in wheels:
        shutil.copyfile(wheel, target / wheel.name)


def _check_environment_wheel(wheels: Path, conversion: Conversion, hub_version: str) -> None:
    """The rows come from the version that was loaded: the one vendored must be the same."""
    versions: set[str] = set()
    for wheel in wheels.iterdir():
        try:
            project, version, _, _ = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            continue  # reported with the package
        versions |= {str(version)} if project == canonicalize_name(conversion.project) else set()
    if versions != {hub_version}:
        has = ", ".join(sorted(versions)) or "none"
        message = f"holds {has} of {conversion.project}, and the rows are made from {hub_version}"
        raise _refused("--wheels-dir", message, f"put the wheel of {conversion.project} {hub_version} there")


def _checked(package: Path, conversion: Conversion) -> tuple[Problem, ...]:
    """Warnings about the finished package.

    Raises:
        LauncherError: it is wrong for one of the architectures.
    """
    problems: dict[Problem, None] = {}
    for arch in conversion.arches:
        inspection = inspect_package(FolderSource(package), target=Target(arch=arch), prove=True)
        if not inspection.is_valid:
            raise LauncherError(inspection.problems)
        problems |= dict.fromkeys(inspection.problems)
    return tuple(problems)


def _unpinned(conversion: Conversion, found: str) -> Sequence[Problem]:
    if conversion.hub_version is not None:
        return ()
    message = f"was not given, so the index chose {found}; the next conversion may get another one"
    fix = f"pin it: --hub-version {found}"
    return [Problem(code="convert", path="--hub-version", message=message, fix=fix, severity="warning")]


def _write_tree(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _put(package: Path, out_dir: Path) -> None:
    """Replace what the package had by this, its old wheels included; other files of that folder stay."""
    out_dir.mkdir(exist_ok=True)
    shutil.rmtree(out_dir / WHEELS_FOLDER, ignore_errors=True)
    (out_dir / "configs").mkdir(exist_ok=True)
    for path in (WHEELS_FOLDER, POLICY_CONFIG, AGENT_CONFIG, MANIFEST_NAME):
        (package / path).replace(out_dir / path)


def _write_rows(folder: Path, training: Sequence[Mapping[str, Any]], validation: Sequence[Mapping[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("training.jsonl", training), ("validation.jsonl", validation)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if rows:
            (folder / name).write_text(text, encoding="utf-8")
        else:
            (folder / name).unlink(missing_ok=True)


def _refused(path: str, message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="convert", path=path, message=message, fix=fix)])
