"""``grpo env new``: a small environment that validates as it is, to be changed piece by piece.

NAME/        the package, in one of the three formats
NAME-rows/   prompt rows for it: training.jsonl, validation.jsonl
NAME-src/    for the wheels formats: the project whose wheel the package carries
"""

import itertools
import json
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from launcher.environment.pure_wheel import pure_wheel
from launcher.environment.wheels import host_arch
from launcher.schema.manifest import MANIFEST_NAME, EnvironmentFormat
from launcher.schema.problems import LauncherError, Problem

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_DESCRIPTION = "Rewards sentences of exactly the length that was asked for"
_SERVER_TYPES_CONFIGS = "responses_api_models/vllm_model/configs"
_TRAINING_TOPICS = ("the sea", "winter", "bread", "trains", "a cat", "the moon", "music", "rain", "a garden", "coffee")
_VALIDATION_TOPICS = ("a river", "chess", "snow", "books")
_NUM_WORDS = (4, 5, 6, 7, 8, 10)
_GROUPS: Mapping[EnvironmentFormat, str] = {
    "native-v1": "native",
    "wheels-v1": "wheels",
    "adapter-wheels-v1": "adapter_wheels",
}
"""Choices of the config group ``environment``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaffold:
    """What was written.

    Example:
        Scaffold(package="word_count", dataset="word_count-rows", project=None, next_steps=("...",))
    """

    package: str
    dataset: str
    project: str | None
    """Source of the wheel, for the wheels formats."""
    next_steps: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return asdict(self)


def scaffold_package(name: str, *, format: EnvironmentFormat, into: Path) -> Scaffold:
    """Write a package, its rows and, for the wheels formats, the project of its wheel.

    Args:
        name: of the environment: lower-case letters, digits, ``_`` and ``-``.
        format: of the package.
        into: an existing folder.

    Raises:
        LauncherError: the name cannot be used, or something of that name is there; nothing is written then.
    """
    if not _NAME.fullmatch(name):
        message = f"{name!r} is no environment name: lower-case letters, digits, '_' and '-', starting with a letter"
        raise _refused(name, message, "choose another name, such as word-count")
    if not into.is_dir():
        raise _refused(str(into), "is no folder", "make it first")
    trees = {into / name: _package(name, format), into / f"{name}-rows": _rows(name, format)}
    if format != "native-v1":
        trees[into / f"{name}-src"] = _project(name, format)
    taken = [str(folder) for folder in trees if folder.exists()]
    if taken:
        raise _refused(taken[0], "exists already", "choose another name or --into folder")
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=into) as scratch:
        for folder, content in trees.items():
            for path, text in content.items():
                target = Path(scratch, folder.name, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text if isinstance(text, bytes) else text.encode())
        for folder in trees:
            Path(scratch, folder.name).rename(folder)
    package, dataset = into / name, into / f"{name}-rows"
    project = into / f"{name}-src" if format != "native-v1" else None
    return Scaffold(
        package=str(package),
        dataset=str(dataset),
        project=str(project) if project else None,
        next_steps=(
            shlex.join(["grpo", "env", "validate", str(package)]),
            shlex.join(["grpo", "data", "check", str(dataset), "--env", str(package)]),
            *(_wheel_steps(package, project) if project else ()),
            first_training(name, format=format, package=package, dataset=dataset),
        ),
    )


def _wheel_steps(package: Path, project: Path) -> tuple[str, str]:
    build = ["uv", "build", "--wheel", "--no-create-gitignore", "--out-dir", str(package / "wheels"), str(project)]
    vendor = shlex.join(["grpo", "env", "vendor", str(package), "--arch", host_arch()])
    return f"{shlex.join(build)}   # after each change of its source", f"{vendor}   # to start without a package index"


def first_training(name: str, *, format: EnvironmentFormat, package: Path, dataset: Path) -> str:
    """The command that trains the demo's model for two steps on a package and its rows."""
    chosen = {"environment": _GROUPS[format], "environment.name": package, "dataset": dataset, "name": name}
    words = [f"{key}={value}" for key, value in chosen.items()]
    return shlex.join(["grpo", "train", "recipe=demo", *words, "training.max_steps=2"])


def _package(name: str, format: EnvironmentFormat) -> Mapping[str, str | bytes]:
    module, project = _module(name), _project_name(name, format)
    server = f"resources_servers/{module}"
    words = {"name": module, "project": project}
    wheel, content = pure_wheel(project, "0.1.0", _modules(name, format)) if format != "native-v1" else ("", b"")
    match format:
        case "native-v1":
            config, policy = f"{server}/configs/{module}.yaml", f"{_SERVER_TYPES_CONFIGS}/policy_model.yaml"
            own = {
                f"{server}/app.py": _template("app.py", reward_module="reward"),
                f"{server}/reward.py": _template("reward.py"),
                f"{server}/test_reward.py": _template("test_reward.py", reward_module="reward"),
                f"{server}/requirements.txt": "# What app.py imports besides nemo-gym. This file marks a server.\n",
            }
            configs = {config: _template("server.yaml", **words)}
        case "wheels-v1":
            config, policy = f"configs/{module}.yaml", "configs/policy_model.yaml"
            own = {
                f"{server}/app.py": _template("app.py", reward_module=f"{module}_reward"),
                f"{server}/requirements.txt": f"{project}==0.1.0\n",
            }
            configs = {config: _template("server.yaml", **words)}
        case "adapter-wheels-v1":
            config, policy, own = "configs/verifiers_agent.yaml", "configs/policy_model.yaml", {}
            configs = {config: _template("verifiers_agent.yaml", **words)}
    vendored = {f"wheels/{wheel}": content} if wheel else {}
    manifest = {MANIFEST_NAME: _manifest(name, format, config_paths=(policy, config))}
    return {**manifest, policy: _template("policy_model.yaml"), **configs, **own, **vendored}


def _project(name: str, format: EnvironmentFormat) -> Mapping[str, str]:
    """Source of the wheel that the package carries."""
    modules = _modules(name, format)
    listed = ", ".join(f'"{path}"' for path in modules)
    words = {"project": _project_name(name, format), "description": _DESCRIPTION, "modules": listed}
    test = _template("test_reward.py", reward_module=f"{_module(name)}_reward")
    return {"pyproject.toml": _template("pyproject.toml", **words), **modules, "test_reward.py": test}


def _modules(name: str, format: EnvironmentFormat) -> dict[str, str]:
    module = _module(name)
    modules = {f"{module}_reward.py": _template("reward.py")}
    if format == "adapter-wheels-v1":
        words = {"project": _project_name(name, format), "reward_module": f"{module}_reward"}
        modules[f"{module}.py"] = _template("environment.py", **words)
    return modules


def _rows(name: str, format: EnvironmentFormat) -> Mapping[str, str]:
    topics = {"training.jsonl": _TRAINING_TOPICS, "validation.jsonl": _VALIDATION_TOPICS}
    return {file: "".join(_row_lines(name, format, of)) for file, of in topics.items()}


def _row_lines(name: str, format: EnvironmentFormat, topics: tuple[str, ...]) -> list[str]:
    lines = []
    for index, (topic, num_words) in enumerate(itertools.product(topics, _NUM_WORDS)):
        text = f"Write one sentence of exactly {num_words} words about {topic}."
        row: dict[str, Any] = {"responses_create_params": {"input": [{"role": "user", "content": text}]}}
        if format == "adapter-wheels-v1":
            row["agent_ref"] = {"type": "responses_api_agents", "name": "verifiers_agent"}
            project = _project_name(name, format)
            row |= {"task_idx": index, "vf_env_id": project, "answer": str(num_words), "task": project}
        else:
            row["agent_ref"] = {"type": "responses_api_agents", "name": f"{_module(name)}_agent"}
            row["num_words"] = num_words
        lines.append(json.dumps(row) + "\n")
    return lines


def _manifest(name: str, format: EnvironmentFormat, *, config_paths: tuple[str, str]) -> str:
    lines = [f"format: {format}", "config_paths:", *(f"  - {path}" for path in config_paths)]
    if format == "adapter-wheels-v1":
        lines += ["adapter:", "  agent: verifiers_agent", "  agent_type: responses_api_agents"]
    lines += ["metadata:", f"  name: {name}", f"  description: {_DESCRIPTION}"]
    if format == "adapter-wheels-v1":
        lines += [f"  vf_env_id: {_project_name(name, format)}"]
    return "\n".join(lines) + "\n"


def _project_name(name: str, format: EnvironmentFormat) -> str:
    """The wheel's project. ``verifiers`` imports the module of the environment's name, so there it is the name."""
    dashed = name.replace("_", "-")
    return dashed if format == "adapter-wheels-v1" else f"{dashed}-reward"


def _module(name: str) -> str:
    return name.replace("-", "_")


def _template(file: str, **words: str) -> str:
    text = (files(__package__) / "templates" / f"{file}.template").read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _refused(path: str, message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="scaffold", path=path, message=message, fix=fix)])
