"""Nearest known names for a mistyped one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

_LEAST = 0.6
_MARGIN = 0.1


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Known names that look like ``name``, best first; those clearly farther than the best are left out.

    Example:
        nearest("dtenser", ["automodel", "dtensor"]) == ["dtensor"]
    """
    wanted = name.lower()
    ratios = {candidate: SequenceMatcher(None, wanted, candidate.lower()).ratio() for candidate in known}
    best = max(ratios.values(), default=0.0)
    close = [candidate for candidate, ratio in ratios.items() if ratio >= max(_LEAST, best - _MARGIN)]
    return sorted(close, key=lambda candidate: -ratios[candidate])[:3]


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str, prefix: str = "") -> str:
    """A fix that offers the nearest names, each behind ``prefix``, or ``otherwise`` when none is near."""
    matches = nearest(name, known)
    if not matches:
        return otherwise
    return "did you mean " + " or ".join(prefix + match for match in matches) + "?"
