"""What a rule is. One function in this package per rule; ``launcher.rules`` lists them."""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Literal

from launcher.facts import Facts
from launcher.origins import touches
from launcher.schema.job import JobConfig
from launcher.schema.problems import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a rule found at one key; ``Rule`` adds its code."""

    path: str
    message: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    reads: tuple[str, ...] = ()
    """Keys it depends on besides ``path``, when they are fewer than those of the rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A condition that relates several settings, or settings and facts.

    Example:
        Rule(code="R05", title="max_new_tokens fits max_seq_length", check=response_fits,
             reads=("training.max_new_tokens", "training.max_seq_length"))
    """

    code: str
    title: str
    """What holds when the rule is kept."""
    check: Callable[[JobConfig, Facts], Iterator[Finding]]
    """Its docstring is the long form that ``grpo explain`` prints."""
    reads: tuple[str, ...]
    """Keys it looks at."""

    def problems(self, job: JobConfig, facts: Facts, *, broken: Set[str] = frozenset()) -> Iterator[Problem]:
        """What the rule finds in a job.

        Args:
            job: a job whose fields are valid one by one.
            facts: what is known of files and machine.
            broken: dotted keys whose value stands in for an invalid one: findings that depend on them are left out.
        """
        for found in self.check(job, facts):
            keys = (found.path, *(found.reads or self.reads))
            if not any(touches(key, bad) for key in keys for bad in broken):
                yield Problem(
                    code=self.code, path=found.path, message=found.message, fix=found.fix, severity=found.severity
                )


def nearest_multiples(value: int, of: int) -> str:
    """The multiples of ``of`` around ``value``: ``"24 or 32"``; only the upper one below ``of``."""
    below = value // of * of
    return f"{below} or {below + of}" if below else str(of)


def nearest_divisors(value: int, of: int) -> str:
    """The divisors of ``of`` around ``value``: ``"4 or 8"``."""
    below = max((d for d in _divisors(of) if d <= value), default=None)
    above = min((d for d in _divisors(of) if d >= value), default=None)
    return " or ".join(str(d) for d in dict.fromkeys((below, above)) if d is not None)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, min(int(number**0.5) + 1, 100_000)) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
