"""docs/metrics.md: every metric, written out of the table that ``grpo explain`` reads."""

from rl.metric_docs import metric_doc, metric_names

_HEAD = """\
# Metrics

Written by `make golden` from `rl/metric_table.py`; `grpo explain NAME` says the same of one.

`metrics.jsonl` holds one object per step under these names. `train_` metrics are of the step's training rollouts,
`val_` metrics of a validation pass, `performance/` of the machine. `*` stands for a statistic (mean, max, min, median,
stddev, and percentiles where kept). A failed rollout is counted and belongs to no other metric; a metric that is
undefined in a step is left out of it.
"""


def metric_page() -> str:
    """The page as Markdown."""
    lines = ["| Metric | Meaning | Formula | Over | Healthy | Otherwise |", "|---|---|---|---|---|---|"]
    for name in metric_names():
        doc = metric_doc(name)
        assert doc is not None, f"{name} has no explanation"
        cells = (f"`{name}`", doc.meaning, doc.formula, doc.denominator, doc.healthy, doc.action)
        lines.append(f"| {' | '.join(cell.replace('|', '\\|') for cell in cells)} |")
    return f"{_HEAD}\n" + "\n".join(lines) + "\n"
