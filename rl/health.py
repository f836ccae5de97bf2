"""A run judges itself: what is wrong now, from the metrics of its steps so far.

metrics of every step  ->  verdicts that hold  ->  those that have just begun to hold, with the reaction asked for

Each verdict compares the mean of the last ``RECENT`` steps with a bound, or with the mean of the first ``RECENT``; one
odd step raises none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Literal

from launcher.schema.groups import HealthConfig

VerdictName = Literal["no_spread", "entropy_collapse", "truncation", "failures", "sampler_drift", "reward_flat"]
History = Sequence[Mapping[str, float]]

RECENT = 3
"""Steps that a verdict looks back."""
FLAT_WINDOW = 30
"""Steps over which a reward that has not risen counts as flat."""
LEAST_MIXED = 10.0
"""Per cent of groups with spread."""
COLLAPSED_ENTROPY = 0.05
"""Nats per token; the entropy must also have fallen below a fifth of what the run began with."""
MOST_TRUNCATED = 0.5
"""Share of responses, unless it is falling."""
RISE_OF_TRUNCATION = 0.2
MOST_FAILED = 0.05
"""Share of rollouts."""
MOST_DRIFT = 1.1
"""Of token_mult_prob_error."""
HEALTHY_DRIFT = 1.06
"""Up to here token_mult_prob_error may rise: bfloat16 alone explains as much."""
RISE_OF_DRIFT = 0.03
SOLVED = 80.0
"""Per cent of groups all at reward 1 from which a flat reward is no fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Something that is wrong with a run.

    Example:
        Verdict(name="truncation", cause="most responses end at the length cap", evidence="train_truncation_rate 0.62,
                0.58 in the first steps", advice="raise training.max_new_tokens ...")
    """

    name: VerdictName
    """The key under ``health`` that says what the run does about it."""
    cause: str
    evidence: str
    """The metrics that say so."""
    advice: str
    """What to change."""

    def line(self) -> str:
        """All of it on one line."""
        return f"{self.cause} ({self.evidence}): {self.advice} [health.{self.name}]"


def verdicts(history: History) -> tuple[Verdict, ...]:
    """Everything that is wrong after the last step.

    Args:
        history: the metrics of each step, oldest first, under their published names; records of validation alone may
            stand among them.
    """
    found = (judge(history) for judge in _JUDGES)
    return tuple(verdict for verdict in found if verdict is not None)


def new_verdicts(history: History, health: HealthConfig) -> tuple[tuple[Verdict, Literal["warn", "stop"]], ...]:
    """Verdicts that hold after the last step and did not before it, with the reaction; ignored ones are left out."""
    before = {verdict.name for verdict in verdicts(history[:-1])}
    reactions = health.model_dump()
    return tuple(
        (verdict, reactions[verdict.name])
        for verdict in verdicts(history)
        if verdict.name not in before and reactions[verdict.name] != "ignore"
    )


def _no_spread(history: History) -> Verdict | None:
    mixed = _series(history, "train_baseline_reward/pct_mixed")
    if len(mixed) < RECENT or fmean(mixed[-RECENT:]) >= LEAST_MIXED:
        return None
    solved = _last_mean(history, "train_baseline_reward/pct_1")
    unsolved = _last_mean(history, "train_baseline_reward/pct_0")
    if solved > 50.0:
        advice = "the model solves these rows; stop here, or train on harder ones"
    elif unsolved > 50.0:
        advice = "the rows are too hard; start from easier ones, or give partial credit in verify()"
    else:
        advice = "grade finer in verify(), raise training.num_generations_per_prompt or training.temperature"
    return Verdict(
        name="no_spread",
        cause="hardly any group has responses that scored differently, so there is nothing left to learn from",
        evidence=f"train_baseline_reward/pct_mixed {fmean(mixed[-RECENT:]):.0f}, pct_0 {unsolved:.0f}, "
        f"pct_1 {solved:.0f}",
        advice=advice,
    )


def _entropy_collapse(history: History) -> Verdict | None:
    entropy = _series(history, "train_approx_entropy")
    if len(entropy) < 2 * RECENT:
        return None
    first, last = fmean(entropy[:RECENT]), fmean(entropy[-RECENT:])
    if last >= min(COLLAPSED_ENTROPY, first / 5):
        return None
    return Verdict(
        name="entropy_collapse",
        cause="the policy has become almost deterministic: responses repeat and exploration has ended",
        evidence=f"train_approx_entropy {last:.3f}, {first:.3f} in the first steps",
        advice="lower training.learning_rate, raise training.ratio_clip_max or training.temperature, "
        "or set training.ref_policy_kl_penalty",
    )


def _truncation(history: History) -> Verdict | None:
    rates = _series(history, "train_truncation_rate")
    if len(rates) < 2 * RECENT:
        return None
    first, last = fmean(rates[:RECENT]), fmean(rates[-RECENT:])
    stuck = last >= MOST_TRUNCATED and last > first - 0.05
    if not stuck and last < first + RISE_OF_TRUNCATION:
        return None
    return Verdict(
        name="truncation",
        cause="most responses end at the length cap" if stuck else "more and more responses end at the length cap",
        evidence=f"train_truncation_rate {last:.2f}, {first:.2f} in the first steps",
        advice="raise training.max_new_tokens, or penalise length with training.reward_shaping",
    )


def _failures(history: History) -> Verdict | None:
    shares = _series(history, "train_failed_share")
    if len(shares) < RECENT or fmean(shares[-RECENT:]) < MOST_FAILED:
        return None
    return Verdict(
        name="failures",
        cause="rollouts fail and are left out of their groups",
        evidence=f"train_failed_share {fmean(shares[-RECENT:]):.2f}, {fmean(shares[:RECENT]):.2f} in the first steps",
        advice="read the reasons with `grpo rollouts RUN_DIR --failed` and the environment's log",
    )


def _sampler_drift(history: History) -> Verdict | None:
    errors = _series(history, "train_token_mult_prob_error")
    if len(errors) < RECENT:
        return None
    first, last = fmean(errors[:RECENT]), fmean(errors[-RECENT:])
    if last <= MOST_DRIFT and (last <= HEALTHY_DRIFT or last < first + RISE_OF_DRIFT):
        return None
    return Verdict(
        name="sampler_drift",
        cause="sampler and trainer disagree on the probability of the sampled tokens",
        evidence=f"train_token_mult_prob_error {last:.3f}, {first:.3f} in the first steps",
        advice="set training.truncated_importance_sampling_type=tis with a ratio of 2, lower training.learning_rate, "
        "and check that both run in the same precision",
    )


def _reward_flat(history: History) -> Verdict | None:
    rewards, norms = _series(history, "train_reward"), _series(history, "train_grad_norm")
    if len(rewards) < FLAT_WINDOW or not any(norms[-FLAT_WINDOW:]):
        return None
    half = FLAT_WINDOW // 2
    earlier, later = rewards[-FLAT_WINDOW:-half], rewards[-half:]
    noise = sqrt((variance(earlier) + variance(later)) / half)
    rise = fmean(later) - fmean(earlier)
    if rise > noise or _last_mean(history, "train_baseline_reward/pct_1") >= SOLVED:
        return None
    return Verdict(
        name="reward_flat",
        cause=f"the reward has not risen for {FLAT_WINDOW} steps although the weights move",
        evidence=f"train_reward {fmean(later):.3f} in the last {half} steps, {fmean(earlier):.3f} in the {half} "
        f"before, noise {noise:.3f}",
        advice="look at the responses with `grpo rollouts RUN_DIR --worst`; raise training.learning_rate or "
        "training.num_generations_per_prompt, or check that verify() rewards what is asked for",
    )


_JUDGES: tuple[Callable[[History], Verdict | None], ...] = (
    _no_spread, _entropy_collapse, _truncation, _failures, _sampler_drift, _reward_flat,
)  # fmt: skip


def _series(history: History, name: str) -> list[float]:
    return [record[name] for record in history if name in record]


def _last_mean(history: History, name: str) -> float:
    values = _series(history, name)[-RECENT:]
    return fmean(values) if values else 0.0
