"""The check that ``grpo check`` prints and that ``grpo train`` passes first.

overrides, job JSON --(resolve)--> job --(FactReader)--> facts --(rules)--> problems --(compile)--> plan
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.compile import compile_plan
from launcher.compose import Composer
from launcher.facts import Facts
from launcher.gathering import FactReader, Gathered
from launcher.paths import config_roots
from launcher.resolve import Resolved, draft_job
from launcher.rules import check_rules
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
        return not has_errors(self.problems)

    def require_valid(self) -> RunPlan:
        """The plan of a job that may start.

        Raises:
            LauncherError: with every problem found.
        """
        if not self.valid or self.plan is None:
            raise LauncherError(self.problems)
        return self.plan


@dataclass(kw_only=True, slots=True)
class Checker:
    """Checks jobs one after the other; what their compositions and files have in common is read once."""

    composer: Composer = field(default_factory=lambda: Composer(config_roots()))
    reader: FactReader = field(default_factory=FactReader)

    def check(self, overrides: Sequence[str], *, job_json: Path | None = None, config_only: bool = False) -> Checked:
        """Resolve a job and find everything that is wrong with it.

        Args:
            overrides: as for ``resolve``.
            job_json: as for ``resolve``.
            config_only: look at no file the job refers to.

        Raises:
            LauncherError: when there is no job to check: a recipe that cannot be read, for example.
        """
        draft = draft_job(overrides, job_json=job_json, composer=self.composer)
        job = draft.resolved.job
        gathered = Gathered(facts=Facts(), problems=())
        if not config_only:
            gathered = self.reader.gather(job, skip=draft.broken)
        facts = gathered.facts
        rules = map(draft.resolved.located, check_rules(job, facts, broken=draft.broken))
        problems = (*draft.problems, *rules, *gathered.problems)
        plan = None
        if facts.num_training_rows is not None and not has_errors(problems):
            plan = compile_plan(
                job, num_training_rows=facts.num_training_rows, num_validation_rows=facts.num_validation_rows or 0
            )
        return Checked(resolved=draft.resolved, facts=facts, problems=problems, plan=plan)


def check_job(overrides: Sequence[str], *, job_json: Path | None = None, config_only: bool = False) -> Checked:
    """``Checker.check`` for a single job."""
    return Checker().check(overrides, job_json=job_json, config_only=config_only)


def has_errors(problems: Iterable[Problem]) -> bool:
    """Whether there is more than warnings."""
    return any(problem.severity == "error" for problem in problems)
