"""The learning rate as a function of the step.

    step s of n, w = warmup_steps, k = s - 1

    k < w   peak * (f + (1 - f) * k / w),  f = max(minimum / peak, 1e-5)            linear warm-up
    k >= w  minimum + (peak - minimum) * (1 + cos(pi * (k - w) / (n - w))) / 2      cosine annealing
            peak                                                                    flat

The rate would reach its minimum one step after the last. Where a step holds several optimizer steps, all of them run
at its rate. Deviations from the platform on NeMo RL: without warm-up the first step runs at the peak (there at f times
the peak), and warm-up acts on flat schedules too (there it is dropped).
"""

import math
from dataclasses import dataclass

from launcher.schema.training import OptimizerType

LOWEST_START = 1e-5
"""Warm-up starts at this share of the peak when the minimum is lower still."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSettings:
    """What the learning rate depends on.

    Example:
        ScheduleSettings(optimizer_type="adamw_with_cosine_annealing", learning_rate=2e-5, min_learning_rate=0.0,
                         warmup_steps=2, num_steps=16)
    """

    optimizer_type: OptimizerType
    learning_rate: float
    """The peak."""
    min_learning_rate: float
    """Where cosine annealing ends; a flat schedule does not read it."""
    warmup_steps: int
    num_steps: int
    """Steps of the whole run."""


def learning_rate(step: int, settings: ScheduleSettings) -> float:
    """The learning rate of a step, counted from 1; past the last step, the final rate."""
    flat = settings.optimizer_type.endswith("flat_lr")
    peak, minimum = settings.learning_rate, 0.0 if flat else settings.min_learning_rate
    past = step - 1 - settings.warmup_steps
    if past < 0:
        start = max(minimum / peak, LOWEST_START)
        return peak * (start + (1.0 - start) * (step - 1) / settings.warmup_steps)
    if flat:
        return peak
    progress = min(past / max(settings.num_steps - settings.warmup_steps, 1), 1.0)
    return minimum + (peak - minimum) * (1.0 + math.cos(math.pi * progress)) / 2.0
