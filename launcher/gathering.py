"""Gathering ``Facts``: the environment package, the rows, the model's files and the device of one job.

Each thing is read once per command, not once per job, so that the trials of a sweep share it.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_bridge.package import TURN_LIMITS
from gym_bridge.versions import gym_version
from launcher.chat_template import chat_template_problems
from launcher.dataset import RowReport, check_rows, count_rows, find_dataset
from launcher.device import find_device
from launcher.environment.package import inspect_package, row_expectations
from launcher.environment.servers import walk
from launcher.environment.source import FolderSource
from launcher.facts import EnvironmentFacts, Facts, ModelFacts
from launcher.model_facts import local_model_folder, model_facts
from launcher.references import resolve_reference
from launcher.row_faults import RowExpectations
from launcher.schema.job import JobConfig
from launcher.schema.manifest import Package
from launcher.schema.problems import LauncherError, Problem

LARGEST_CHECKED_BYTES = 32 * 2**20
"""The rows of a larger file are counted only; ``grpo data check`` looks into each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """Facts about a job, and what is wrong with the files themselves."""

    facts: Facts
    problems: tuple[Problem, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Environment:
    facts: EnvironmentFacts
    expected: RowExpectations


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    training: int
    validation: int
    with_tools: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read[T]:
    """Something read, or why not."""

    value: T | None = None
    problems: tuple[Problem, ...] = ()
    unreachable: tuple[Problem, ...] = ()


@dataclass(kw_only=True, slots=True)
class FactReader:
    """Remembers what it has read; one lives as long as a command."""

    _memory: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def gather(self, job: JobConfig, *, skip: Set[str] = frozenset()) -> Gathered:
        """Everything that rules can be told about a job.

        Args:
            job: the job.
            skip: dotted keys that are broken: what they refer to is not looked for.
        """
        environment: _Read[_Environment] = _Read()
        rows: _Read[_Rows] = _Read()
        model: _Read[ModelFacts] = _Read()
        if not {"environment", "environment.name"} & skip:
            environment = self._once(_read_environment, job.environment.name)
        if "dataset" not in skip:
            rows = self._once(_read_rows, job.dataset, environment.value.expected if environment.value else None)
        if not {"model", "model.name"} & skip:
            model = self._once(_read_model, job.model.name)
        others: tuple[Problem, ...] = ()
        if "model.chat_template" not in skip:
            others += self._once(chat_template_problems, job.model.chat_template)
        if job.engine.name == "local" and not {"gym.version", "engine.name"} & skip:
            others += self._once(_gym_problems, job.gym.version)
        device = self._once(find_device, job.cluster.device)
        everything: tuple[_Read[Any], ...] = (model, rows, environment)
        facts = Facts(
            num_training_rows=rows.value.training if rows.value else None,
            num_validation_rows=rows.value.validation if rows.value else None,
            num_rows_with_tools=rows.value.with_tools if rows.value else None,
            model=model.value,
            environment=environment.value.facts if environment.value else None,
            device=device,
            has_no_cuda=device is None,
            unreachable=tuple(problem for read in everything for problem in read.unreachable),
        )
        return Gathered(facts=facts, problems=(*others, *(problem for read in everything for problem in read.problems)))

    def _once[T](self, read: Callable[..., T], *arguments: object) -> T:
        key = (read, *arguments)
        if key not in self._memory:
            self._memory[key] = read(*arguments)
        value: T = self._memory[key]
        return value


def _read_environment(name: str) -> _Read[_Environment]:
    try:
        inspection = inspect_package(FolderSource(resolve_reference("environment", name).local_path()))
    except LauncherError as error:
        return _Read(unreachable=error.problems)
    package = inspection.package
    if package is None:
        return _Read(problems=inspection.problems)
    return _Read(
        value=_Environment(facts=_environment_facts(package), expected=row_expectations(package)),
        problems=inspection.problems,
    )


def _environment_facts(package: Package) -> EnvironmentFacts:
    return EnvironmentFacts(
        format=package.manifest.format,
        agents_without_turn_limit={
            agent.name: agent.implementation for agent in package.agents if agent.implementation not in TURN_LIMITS
        },
        uses_reasoning_parser=any(
            key.endswith("uses_reasoning_parser") and value is True for key, value in walk(package.merged)
        ),
    )


def _read_rows(dataset: str, expected: RowExpectations | None) -> _Read[_Rows]:
    try:
        files = find_dataset(resolve_reference("dataset", dataset).local_path())
    except LauncherError as error:
        return _Read(unreachable=error.problems)
    training, validation = _report(files.training, expected), _report(files.validation, expected)
    counts = [_num_rows(file, report) for file, report in ((files.training, training), (files.validation, validation))]
    reports = [report for report in (training, validation) if report is not None]
    return _Read(
        value=_Rows(
            training=counts[0],
            validation=counts[1],
            with_tools=sum(report.num_rows_with_tools for report in reports) if reports else None,
        ),
        problems=tuple(problem for report in reports for problem in report.problems),
    )


def _is_installed(distribution: str) -> bool:
    """Whether a package is installed; True where no engine is, on a machine that only checks."""
    if importlib.util.find_spec("torch") is None:
        return True
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _report(file: Path | None, expected: RowExpectations | None) -> RowReport | None:
    if file is None or file.stat().st_size > LARGEST_CHECKED_BYTES:
        return None
    return check_rows(file, expected=expected, find_repeated=file.name == "training.jsonl")


def _num_rows(file: Path | None, report: RowReport | None) -> int:
    if report is not None:
        return report.num_rows
    return count_rows(file) if file is not None else 0


def _gym_problems(version: str) -> tuple[Problem, ...]:
    try:
        gym_version(version)
    except LauncherError as error:
        return error.problems
    return ()


def _read_model(name: str) -> _Read[ModelFacts]:
    try:
        reference = resolve_reference("model", name)
        folder = local_model_folder(reference)
        if folder is None and reference.kind == "wheel" and not _is_installed(reference.location):
            fix = f"install it ({reference.location}), or give a folder or hf://org/name"
            raise LauncherError([Problem(code="no-model", path="model", message=f"{name}: no such package is installed",
                                         fix=fix)])  # fmt: skip
        return _Read(value=model_facts(folder) if folder is not None else None)
    except LauncherError as error:
        return _Read(unreachable=error.problems)
