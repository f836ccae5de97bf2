"""The check that ``grpo check`` prints and that ``grpo train`` passes first.

overrides, job JSON --(resolve)--> job --(gather_facts)--> facts --(rules)--> problems --(compile)--> plan
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.compile import compile_plan
from launcher.compose import Composer
from launcher.dataset import count_rows, find_dataset
from launcher.device import find_device
from launcher.facts import Facts
from launcher.resolve import Resolved, draft_job
from launcher.rules import check_rules
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import LauncherError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Everything that is known of a job before anything starts."""

    resolved: Resolved
    facts: Facts
    problems: tuple[Problem, ...]
    """Errors and warnings, fields first, then rules in their order."""
    plan: RunPlan | None
    """None when there are errors, or when the rows are unknown."""

    @property
    def valid(self) -> bool:
        """Whether the job may start: no problem but warnings."""
        return all(problem.severity == "warning" for problem in self.problems)

    def require_valid(self) -> RunPlan:
        """The plan of a job that may start.

        Raises:
            LauncherError: with every problem found.
        """
        if not self.valid or self.plan is None:
            raise LauncherError(self.problems)
        return self.plan


def check_job(
    overrides: Sequence[str],
    *,
    job_json: Path | None = None,
    config_only: bool = False,
    composer: Composer | None = None,
) -> Checked:
    """Resolve a job and find everything that is wrong with it.

    Args:
        overrides: as for ``resolve``.
        job_json: as for ``resolve``.
        config_only: look at no file the job refers to.
        composer: as for ``resolve``.

    Raises:
        LauncherError: when there is no job to check: a recipe that cannot be read, for example.
    """
    draft = draft_job(overrides, job_json=job_json, composer=composer)
    job = draft.resolved.job
    facts = Facts() if config_only else gather_facts(job, skip=draft.broken)
    problems = (*draft.problems, *check_rules(job, facts, broken=draft.broken))
    plan = None
    if all(problem.severity == "warning" for problem in problems) and facts.num_training_rows is not None:
        plan = compile_plan(
            job, num_training_rows=facts.num_training_rows, num_validation_rows=facts.num_validation_rows or 0
        )
    return Checked(resolved=draft.resolved, facts=facts, problems=problems, plan=plan)


def gather_facts(job: JobConfig, *, skip: frozenset[str] = frozenset()) -> Facts:
    """Read what rules need from the files a job refers to and from this machine.

    Args:
        job: the job.
        skip: dotted keys that are broken: what they refer to is not looked for.
    """
    facts = Facts(device=find_device(job.cluster.device))
    problems: list[Problem] = []
    if not {"dataset"} & skip:
        try:
            facts = _with_rows(facts, job.dataset)
        except LauncherError as error:
            problems.extend(error.problems)
    return replace(facts, unreachable=tuple(problems))


def _with_rows(facts: Facts, dataset: str) -> Facts:
    from launcher.references import resolve_reference

    files = find_dataset(resolve_reference("dataset", dataset).local_path())
    return replace(
        facts,
        num_training_rows=count_rows(files.training),
        num_validation_rows=count_rows(files.validation) if files.validation else 0,
    )
