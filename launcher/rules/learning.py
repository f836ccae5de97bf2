"""Rules about the learning signal: groups, clipping, importance weights, rewards."""

from collections.abc import Iterator

from launcher.facts import Facts
from launcher.rules.base import Finding
from launcher.schema.job import JobConfig

GREEDY_TEMPERATURE = 0.01


def group_has_spread(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """The learning signal is the spread of rewards inside a group: one response per prompt has none.

    A leave-one-out baseline moreover needs others to average over.
    """
    if job.training.num_generations_per_prompt == 1:
        reason = "a group of one has no spread of rewards, so every advantage is 0"
        if job.training.use_leave_one_out_baseline:
            reason += ", and use_leave_one_out_baseline has no others to average"
        yield Finding(
            path="training.num_generations_per_prompt",
            message=f"is 1: {reason}",
            fix="set training.num_generations_per_prompt=2 or more; 8 is usual",
        )


def advantage_bounds_enclose_zero(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Advantages of a group lie around 0. Bounds that are out of order, or that leave out 0, would clip all of them
    to one sign: every response would be reinforced, or every one discouraged.
    """
    low, high = job.training.advantage_clip_low, job.training.advantage_clip_high
    if low is not None and high is not None and low >= high:
        yield Finding(
            path="training.advantage_clip_low",
            message=f"{low:g} is not below advantage_clip_high ({high:g})",
            fix="set a low below 0 and a high above 0, such as -5 and 5",
        )
    if low is not None and low > 0:
        yield Finding(
            path="training.advantage_clip_low",
            reads=("training.advantage_clip_low",),
            message=f"{low:g} is above 0: every advantage becomes positive",
            fix=f"set training.advantage_clip_low={-low:g}, or leave it out",
        )
    if high is not None and high < 0:
        yield Finding(
            path="training.advantage_clip_high",
            reads=("training.advantage_clip_high",),
            message=f"{high:g} is below 0: every advantage becomes negative",
            fix=f"set training.advantage_clip_high={-high:g}, or leave it out",
        )


def importance_truncation_is_complete(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Truncated importance sampling cuts the weight between sampler and trainer.

    Every type needs truncated_importance_sampling_ratio, the upper bound; ``icepop`` and ``seq-mask-tis`` drop what
    lies outside a range and need the lower bound too. Without a type, or without the correction whose weights are cut,
    the bounds would have no effect.
    """
    training = job.training
    prefix = "truncated_importance_sampling"
    kind, most, least = (
        training.truncated_importance_sampling_type,
        training.truncated_importance_sampling_ratio,
        training.truncated_importance_sampling_ratio_min,
    )
    if kind is None:
        for name, value in ((f"{prefix}_ratio", most), (f"{prefix}_ratio_min", least)):
            if value is not None:
                yield Finding(
                    path=f"training.{name}",
                    message=f"{value:g} has no effect without {prefix}_type",
                    fix=f"set training.{prefix}_type=tis, or leave training.{name} out",
                )
        return
    if most is None:
        yield Finding(
            path=f"training.{prefix}_ratio",
            message=f"is not set, and {kind} needs an upper bound",
            fix=f"set training.{prefix}_ratio=2.0",
        )
    if least is None and kind != "tis":
        yield Finding(
            path=f"training.{prefix}_ratio_min",
            message=f"is not set, and {kind} needs a lower bound",
            fix=f"set training.{prefix}_ratio_min=0.5",
        )
    if most is not None and least is not None and least > most:
        yield Finding(
            path=f"training.{prefix}_ratio_min",
            message=f"{least:g} is above {prefix}_ratio ({most:g})",
            fix="swap the two",
        )
    if not training.use_importance_sampling_correction:
        yield Finding(
            path="training.use_importance_sampling_correction",
            message=f"is off, so {kind} has no weights to cut",
            fix=f"turn it on, or leave training.{prefix}_type out",
        )


def multiplier_has_dynamic_sampling(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """batch_multiplier samples more prompts than a step trains; only dynamic sampling chooses among them."""
    if job.training.batch_multiplier != 1 and not job.training.use_dynamic_sampling:
        yield Finding(
            path="training.batch_multiplier",
            message=f"{job.training.batch_multiplier:g} has no effect without use_dynamic_sampling",
            fix="set training.use_dynamic_sampling=true, or leave training.batch_multiplier out",
        )


def reward_shaping_is_one_penalty(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Reward shaping is one of two penalties.

    ``overlong_buffer_length``, ``overlong_buffer_penalty`` and ``max_response_length`` belong together: the penalty
    grows over the buffer and is whole at max_response_length. ``stop_properly_penalty_coef`` multiplies the reward of
    truncated responses instead.
    """
    shaping = job.training.reward_shaping
    if shaping is None:
        return
    trio = {
        "overlong_buffer_length": shaping.overlong_buffer_length,
        "overlong_buffer_penalty": shaping.overlong_buffer_penalty,
        "max_response_length": shaping.max_response_length,
    }
    unset = [name for name, value in trio.items() if value is None]
    has_stop_penalty = shaping.stop_properly_penalty_coef is not None
    path = "training.reward_shaping"
    if len(unset) == len(trio) and not has_stop_penalty:
        fix = f"set {', '.join(trio)}, or stop_properly_penalty_coef, or leave reward_shaping out"
        yield Finding(path=path, message="names no penalty", fix=fix)
    elif 0 < len(unset) < len(trio):
        fix = f"set {' and '.join(unset)} as well"
        yield Finding(path=path, message=f"lacks {', '.join(unset)}: the three belong together", fix=fix)
    if has_stop_penalty and len(unset) < len(trio):
        message = "has both an overlong penalty and stop_properly_penalty_coef"
        yield Finding(path=path, message=message, fix="keep one of the two")
    buffer, longest = shaping.overlong_buffer_length, shaping.max_response_length
    if buffer is not None and longest is not None and buffer > longest:
        yield Finding(
            path=f"{path}.overlong_buffer_length",
            message=f"{buffer} is above max_response_length ({longest})",
            fix=f"set {path}.overlong_buffer_length={max(longest // 4, 1)}",
        )


def reward_ranges_are_ordered(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Reward scaling maps [source_min, source_max] to [target_min, target_max]; an empty range cannot be mapped and an
    inverted one would reward failure.
    """
    scaling = job.training.reward_scaling
    if scaling is None:
        return
    ranges = {
        "source": (scaling.source_min, scaling.source_max),
        "target": (scaling.target_min, scaling.target_max),
    }
    for name, (low, high) in ranges.items():
        if low >= high:
            yield Finding(
                path=f"training.reward_scaling.{name}_min",
                message=f"{low:g} is not below {name}_max ({high:g})",
                fix=f"set {name}_min below {name}_max",
            )


def sampling_explores(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Greedy sampling makes every response of a group the same, and the run a no-op."""
    training = job.training
    if training.top_k == 1:
        yield Finding(
            path="training.top_k",
            reads=("training.top_k",),
            message="is 1: sampling is greedy, and every response of a group is the same",
            fix="leave training.top_k out, or set 20 or more",
        )
    if training.temperature < GREEDY_TEMPERATURE:
        yield Finding(
            path="training.temperature",
            reads=("training.temperature",),
            message=f"{training.temperature:g} is below {GREEDY_TEMPERATURE:g}: sampling is greedy, and every response "
            "of a group is the same",
            fix="set training.temperature=1.0",
        )
