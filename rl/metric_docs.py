"""Explanations of metrics by their full name: ``train_total_reward/p25`` -> what it means and what to do about it.

Imports nothing heavy: ``grpo explain METRIC`` answers at once.
"""

from collections.abc import Mapping
from dataclasses import replace

from rl.metric_table import PERFORMANCE, PHASES, ROLLOUTS, STATISTICS, TRAINING, VALIDATION, MetricDoc

_PREFIXES: Mapping[str, Mapping[str, MetricDoc]] = {
    "train_": TRAINING | ROLLOUTS,
    "val_": VALIDATION | ROLLOUTS,
    "performance/": PERFORMANCE,
}
_STEP = MetricDoc(
    meaning="Training step, from 1; 0 is the validation before the first.",
    formula="count",
    denominator="none",
    healthy="rising",
    action="nothing to do",
)


def metric_doc(name: str) -> MetricDoc | None:
    """The explanation of a metric; None for a name that no run emits.

    Args:
        name: as in ``metrics.jsonl``, or a pattern of ``metric_names`` such as ``train_<agent>/<key>/*``.
    """
    if name == "step":
        return _STEP
    for prefix, table in _PREFIXES.items():
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            if prefix != "performance/" and rest.startswith("timing/"):
                return _phase_doc(rest.removeprefix("timing/"))
            return table.get(rest) or _distribution_doc(rest, table)
    return None


def metric_names() -> list[str]:
    """Every name and pattern that has an explanation."""
    names = [prefix + name for prefix, table in _PREFIXES.items() for name in table]
    return ["step", *names, "train_timing/<phase>", "val_timing/<phase>"]


def _distribution_doc(name: str, table: Mapping[str, MetricDoc]) -> MetricDoc | None:
    """``total_reward/p25``, ``my_agent/reward/mean``, ``my_agent/format_ok/mean``."""
    family, _, statistic = name.rpartition("/")
    if statistic not in STATISTICS:
        return None
    doc = table.get(f"{family}/*")
    if doc is None and "/" in family and "<agent>/<key>/*" in table:
        doc = table["<agent>/reward/*" if family.endswith("/reward") else "<agent>/<key>/*"]
    return doc and replace(doc, meaning=f"{doc.meaning} This is the {STATISTICS[statistic]}.")


def _phase_doc(phase: str) -> MetricDoc:
    return MetricDoc(
        meaning=PHASES.get(phase, f"Time of the phase {phase!r}."),
        formula="wall clock, in seconds",
        denominator="none",
        healthy="steady; generation and policy_training together above 0.9 of total_step_time",
        action="see the performance/ metrics for the phase that grew",
    )
