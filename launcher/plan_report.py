"""The short plan that ``grpo check`` prints: what a job amounts to, in numbers, each with how it came about."""

from dataclasses import dataclass
from math import prod

from launcher.checking import Checked
from launcher.memory import MemoryEstimate, adapted_layers, adapter_parameters, memory_estimate
from launcher.prompt_lengths import TokenLengths
from launcher.schema.problems import Problem

_SHOWN = {
    "num_prompts_per_step": "prompts per step",
    "rollouts_per_step": "rollouts per step",
    "optimizer_steps_per_step": "optimizer steps per step",
    "steps_per_epoch": "steps per epoch",
    "num_steps": "steps in all",
    "rows_left_out_per_epoch": "rows left out per epoch",
    "num_validation_rollouts": "validation rollouts",
    "validation_interval": "steps between validations",
    "data_parallel_size": "data-parallel size",
    "train_mb_tokens": "tokens per micro-batch",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanLine:
    """One line of the plan."""

    name: str
    value: str
    how: str


def plan_lines(checked: Checked, lengths: TokenLengths | None) -> list[PlanLine]:
    """The plan of a job; empty when there is none."""
    plan = checked.plan
    if plan is None:
        return []
    lines = [
        PlanLine(name=words, value="-" if (value := getattr(plan, field)) is None else f"{value:,}",
                 how=plan.formulas[field])
        for field, words in _SHOWN.items()
    ]  # fmt: skip
    lines += _model_lines(checked)
    estimate = estimated_memory(checked)
    if estimate is not None:
        label = "within 10 % of what was measured" if estimate.device == "cpu" else "an estimate"
        share = estimate.terms[estimate.dominant] / estimate.total_bytes
        how = f"{label}; {share:.0%} {estimate.dominant}, less with {estimate.knob}"
        lines.append(PlanLine(name="memory per rank", value=_gibibytes(estimate.total_bytes), how=how))
    if lengths is not None:
        sample = "all rows" if lengths.num_rows == lengths.num_all_rows else f"a sample of {lengths.num_rows:,} rows"
        limit = checked.resolved.job.training.max_seq_length
        how = f"50 % have at most this; 99 % {lengths.p99:,}, the longest {lengths.max:,}, limit {limit:,}; {sample}"
        lines.append(PlanLine(name="prompt tokens", value=f"{lengths.p50:,}", how=how))
    return lines


def estimated_memory(checked: Checked) -> MemoryEstimate | None:
    """Memory of one rank, when model files and device are known."""
    model, device = checked.facts.model, checked.facts.device
    if model is None or (device is None and checked.resolved.job.cluster.device != "cuda"):
        return None
    return memory_estimate(checked.resolved.job, model, device.kind if device is not None else "cuda")


def memory_problems(checked: Checked) -> list[Problem]:
    """A warning when a rank would need more than the device has."""
    estimate, device = estimated_memory(checked), checked.facts.device
    if estimate is None or device is None or device.kind != estimate.device:
        return []
    if estimate.total_bytes <= device.memory_bytes:
        return []
    message = (
        f"a rank needs about {_gibibytes(estimate.total_bytes)}, {estimate.terms[estimate.dominant] / 2**30:.1f} of it "
        f"{estimate.dominant}; {device.name} has {_gibibytes(device.memory_bytes)}"
    )
    return [Problem(code="memory", path="training", message=message, fix=f"change {estimate.knob}", severity="warning")]


def length_problems(lengths: TokenLengths | None, max_seq_length: int) -> list[Problem]:
    """A warning for rows whose prompt leaves no room to generate."""
    if lengths is None or not lengths.num_without_room:
        return []
    message = (
        f"{lengths.num_without_room:,} of {lengths.num_rows:,} rows looked at have prompts of at least max_seq_length "
        f"({max_seq_length:,}) tokens: no room to generate"
    )
    fix = f"raise training.max_seq_length above {lengths.max:,}, or drop these rows"
    return [Problem(code="no-room", path="dataset", message=message, fix=fix, severity="warning")]


def _model_lines(checked: Checked) -> list[PlanLine]:
    model, training = checked.facts.model, checked.resolved.job.training
    if model is None or not model.tensors:
        return []
    parameters = sum(map(prod, model.tensors.values()))
    if training.finetuning_type != "lora":
        return [PlanLine(name="trainable parameters", value=f"{parameters:,}", how="all weights")]
    layers, trained = adapted_layers(training, model), adapter_parameters(training, model)
    kinds = sorted({name.rpartition(".")[2] for name in layers})
    how = f"rank × (in + out) of each adapted layer; {trained / parameters:.2%} of {parameters:,}"
    return [
        PlanLine(name="adapted modules", value=f"{len(layers):,}", how=", ".join(kinds)),
        PlanLine(name="trainable parameters", value=f"{trained:,}", how=how),
    ]


def _gibibytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
