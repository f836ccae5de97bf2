"""The last words of a run: reward before and after, sample responses, where everything lies, what to try next."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.run_directory import RunDirectory
from launcher.schema.plan import RunPlan

NUM_SAMPLES = 3
LONGEST_SAMPLE = 600


def run_summary(run: RunDirectory, plan: RunPlan) -> str:
    """What is printed on stdout when a run has completed."""
    metrics = run.read_metrics()
    lines = [*_rewards(metrics, plan), *_samples(run), *_places(run, plan), "", "Try next:"]
    lines += [
        f"  {command}" for command in _next_commands(run, plan, validated=bool(run.rollout_steps(validation=True)))
    ]
    return "\n".join(lines)


def _rewards(metrics: Sequence[Mapping[str, float]], plan: RunPlan) -> Iterable[str]:
    validated = [m for m in metrics if "val_accuracy" in m]
    trained = [m for m in metrics if "train_reward" in m]
    yield f"{len(trained)} steps of {plan.rollouts_per_step} rollouts."
    if len(validated) >= 2 and validated[0]["step"] == 0:
        before, after = validated[0]["val_accuracy"], validated[-1]["val_accuracy"]
        yield f"Reward on unseen prompts: {before:.3f} before training, {after:.3f} after ({after - before:+.3f})."
    elif validated:
        yield f"Reward on unseen prompts: {validated[-1]['val_accuracy']:.3f} after training."
    if trained:
        yield f"Reward in training: {trained[0]['train_reward']:.3f} in the first step, {trained[-1]['train_reward']:.3f} in the last."  # noqa: E501


def _samples(run: RunDirectory) -> Iterable[str]:
    """The same prompts before and after, first rollout of each."""
    steps = run.rollout_steps(validation=True)
    if len(steps) < 2:
        return
    before, after = (_first_of_each_row(run.read_rollouts(step, validation=True)) for step in (steps[0], steps[-1]))
    shown = 0
    for prompt, old in before.items():
        new = after.get(prompt)
        if new is None or shown == NUM_SAMPLES:
            continue
        shown += 1
        yield ""
        yield f"> {prompt}"
        yield f"before (reward {old['reward']:.2f}):"
        yield _indented(old["response"])
        yield f"after (reward {new['reward']:.2f}):"
        yield _indented(new["response"])


def _first_of_each_row(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    first: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: (r["group_id"], r["rollout_id"])):
        if record["failure"] is None:
            first.setdefault(record["prompt"], record)
    return first


def _indented(text: str) -> str:
    shortened = text if len(text) <= LONGEST_SAMPLE else text[:LONGEST_SAMPLE] + " …"
    return "\n".join(f"    {line}" for line in shortened.splitlines() or [""])


def _places(run: RunDirectory, plan: RunPlan) -> Iterable[str]:
    yield ""
    yield f"Run directory: {run.path}"
    if plan.output_type == "adapter":
        yield "  export/         the trained adapter, in PEFT's format"
    else:
        yield "  export/         the trained model, a Hugging Face folder"
    yield "  metrics.jsonl   one object per step"
    yield "  rollouts/       everything that was sampled and scored"
    yield "  config.yaml, origins.json, plan.json, status.json, logs/"


def _next_commands(run: RunDirectory, plan: RunPlan, *, validated: bool) -> Iterable[str]:
    yield f"grpo rollouts {run.path} --worst"
    if plan.output_type == "model":
        yield f"grpo eval {run.path}"
    if not validated:
        yield "grpo train ... training.val_at_start=true    # with a validation.jsonl: before and after in one run"
