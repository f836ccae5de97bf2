"""What is wrong with something a user gave us, and how a run failed.

Every check returns ``Problem`` values, never raises on the first one; a command raises one ``LauncherError``
holding them all. ``launcher.cli`` turns the exceptions below into exit statuses.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong, and its fix.

    Example:
        Problem(code="R05", path="training.max_new_tokens", message="4096 is above max_seq_length (2048)",
                fix="set training.max_new_tokens=2048 or raise training.max_seq_length")
    """

    code: str
    """Stable identifier: a rule (``R05``), or a kebab-case name such as ``unknown-key`` or ``bad-row``."""
    path: str
    """Key path (``training.max_new_tokens``), ``file:line``, or the file it is about."""
    message: str
    """What was found and what is allowed."""
    fix: str
    """What to do about it, concretely."""
    severity: Literal["error", "warning"] = "error"
    """Warnings are shown and do not change the exit status."""

    def to_json(self) -> dict[str, str]:
        """The object that ``--json`` prints."""
        return asdict(self)


class LauncherError(Exception):
    """The user's input is wrong: exit status 1. Carries every problem found."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{p.path}: {p.message}. {p.fix}" for p in self.problems))


class UsageError(Exception):
    """The command line itself is wrong (unknown flag or subcommand): exit status 2."""


class RunFailed(Exception):
    """A run that had started failed: exit status 3. One string, so that it crosses Ray and pickles."""

    def __init__(self, message: str):
        super().__init__(message)
