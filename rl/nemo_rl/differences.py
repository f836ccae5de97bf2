"""Where NeMo RL computes something else than ``engine=local`` for the same job: what, and what avoids it. Pure."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.training import TrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that differs.

    Example:
        Difference(setting="training.overlong_filtering", affects=("filtered rollouts",), local="...", nemo_rl="...",
                   avoided_by="leave training.max_new_tokens unset")
    """

    setting: str
    """Key of the job that brings it in."""
    affects: tuple[str, ...]
    """Metrics, or what else is computed from the rollouts."""
    local: str
    """What ``engine=local`` does."""
    nemo_rl: str
    """What NeMo RL does."""
    avoided_by: str
    """What makes both equal."""

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return asdict(self)


def differences(
    job: JobConfig, plan: RunPlan, *, repeated_prompts: bool | None = None, model_ships_code: bool | None = None
) -> tuple[Difference, ...]:
    """What NeMo RL computes differently for this job; nothing that the job does not touch.

    Args:
        job: the job.
        plan: what follows from it.
        repeated_prompts: whether rows of the training file have the same prompt; None when that is unknown.
        model_ships_code: whether the model's folder has Python files that ``trust_remote_code`` is about; None when
            unknown.
    """
    training = job.training
    found = [difference for differs in _OF_TRAINING if (difference := differs(training)) is not None]
    if plan.num_prompts_per_batch > 1 and repeated_prompts is not False:
        found.append(_groups_by_prompt(known=repeated_prompts is True))
    if not job.model.trust_remote_code and model_ships_code:
        found.append(_CODE_RUNS)
    return tuple(found)


def _advantage_deviation(training: TrainingConfig) -> Difference | None:
    if not (training.normalize_rewards and training.use_leave_one_out_baseline):
        return None
    return Difference(
        setting="training.use_leave_one_out_baseline",
        affects=("advantages",),
        local="divides by the standard deviation of the whole group",
        nemo_rl="divides by that of the other rollouts of the group, which explodes where those score nearly alike, "
        "and not at all where they score the same (a lone success)",
        avoided_by="training.use_leave_one_out_baseline=false or training.normalize_rewards=false",
    )


def _sampled_rows(training: TrainingConfig) -> Difference | None:
    if not (training.use_dynamic_sampling and training.use_leave_one_out_baseline):
        return None
    pairs = ", and with 2 generations it keeps none" if training.num_generations_per_prompt == 2 else ""
    return Difference(
        setting="training.use_dynamic_sampling",
        affects=("rollouts that are trained",),
        local="keeps or drops whole groups",
        nemo_rl=f"drops single rollouts: a lone success or failure leaves, and the rest of its group stays{pairs}",
        avoided_by="training.use_leave_one_out_baseline=false",
    )


def _sampled_batches(training: TrainingConfig) -> Difference | None:
    if not training.use_dynamic_sampling:
        return None
    limit = training.dynamic_sampling_max_gen_batches
    return Difference(
        setting="training.dynamic_sampling_max_gen_batches",
        affects=("batches sampled before the run stops",),
        local=f"stops when {limit} batches did not fill a step",
        nemo_rl=f"stops when {limit + 1} did not",
        avoided_by=f"training.dynamic_sampling_max_gen_batches={limit - 1}, for NeMo RL" if limit > 1 else "nothing",
    )


def _sampled_reward(training: TrainingConfig) -> Difference | None:
    if not training.use_dynamic_sampling:
        return None
    return Difference(
        setting="training.use_dynamic_sampling",
        affects=("train_reward",),
        local="mean over all rollouts that were sampled for the step",
        nemo_rl="mean over the first of them, as many as a step trains",
        avoided_by="reading train_filtered_reward, the mean over those that are trained",
    )


def _overlong(training: TrainingConfig) -> Difference | None:
    if not training.overlong_filtering or _cap(training) is None:
        return None
    return Difference(
        setting="training.overlong_filtering",
        affects=("rollouts without loss",),
        local="filters responses that ended at max_new_tokens or max_seq_length",
        nemo_rl="filters rollouts that fill max_seq_length, and no others",
        avoided_by=_NO_CAP,
    )


def _truncation(training: TrainingConfig) -> Difference | None:
    if _cap(training) is None:
        return None
    return Difference(
        setting="training.max_new_tokens",
        affects=("train_truncation_rate", "train_natural_termination_rate"),
        local="a rollout that ended at max_new_tokens counts as truncated",
        nemo_rl="only a rollout that fills max_seq_length does",
        avoided_by=_NO_CAP,
    )


def _stop_penalty(training: TrainingConfig) -> Difference | None:
    shaping = training.reward_shaping
    if shaping is None or shaping.stop_properly_penalty_coef in (None, 1.0) or _cap(training) is None:
        return None
    return Difference(
        setting="training.reward_shaping.stop_properly_penalty_coef",
        affects=("rewards", "train_reward"),
        local="is applied to responses that ended at max_new_tokens or max_seq_length",
        nemo_rl="is applied to rollouts that fill max_seq_length, and no others",
        avoided_by=_NO_CAP,
    )


def _overlong_penalty(training: TrainingConfig) -> Difference | None:
    shaping = training.reward_shaping
    if shaping is None or not shaping.overlong_buffer_penalty or shaping.max_response_length is None:
        return None
    grows = (_cap(training) or training.max_seq_length) > shaping.max_response_length
    beyond = ", and lets the penalty grow beyond max_response_length" if grows else ""
    return Difference(
        setting="training.reward_shaping.overlong_buffer_penalty",
        affects=("rewards", "train_reward"),
        local="counts the tokens of all turns; the penalty ends at its full size",
        nemo_rl=f"counts the tokens of the first turn alone{beyond}",
        avoided_by="an environment of one turn"
        + (f" and training.reward_shaping.max_response_length={_cap(training) or training.max_seq_length}" * grows),
    )


def _baseline_shares(training: TrainingConfig) -> Difference:
    reshaped = training.reward_scaling is not None or training.reward_shaping is not None
    leave_one_out = training.use_leave_one_out_baseline
    settings = [
        *["training.use_leave_one_out_baseline=false"] * leave_one_out,
        *["no reward_scaling and no reward_shaping"] * reshaped,
        "rewards of 0 and 1 alone",
    ]
    return Difference(
        setting="training.use_leave_one_out_baseline" if leave_one_out else "training",
        affects=("train_baseline_reward/pct_*",),
        local="percentage of groups whose rewards, as the environment gave them, are all 0, all 1, or differ",
        nemo_rl="percentage of rollouts whose baseline"
        + (" (the mean of the others)" * leave_one_out)
        + (", after scaling and shaping," * reshaped)
        + " is 0, 1, or anything else",
        avoided_by=", ".join(settings),
    )


def _advantage_sum(training: TrainingConfig) -> Difference:
    return Difference(
        setting="training",
        affects=("train_advantages/sum",),
        local="sum over the sampled tokens, after clipping",
        nemo_rl="sum over all positions, prompts and padding included, before clipping",
        avoided_by="reading train_advantages/mean, which is the same in both",
    )


_OF_TRAINING: tuple[Callable[[TrainingConfig], Difference | None], ...] = (
    _advantage_deviation,
    _sampled_rows,
    _sampled_batches,
    _sampled_reward,
    _overlong,
    _truncation,
    _stop_penalty,
    _overlong_penalty,
    _baseline_shares,
    _advantage_sum,
)

_NO_CAP = "leaving training.max_new_tokens unset"

_CODE_RUNS = Difference(
    setting="model.trust_remote_code",
    affects=("code that is run",),
    local="refuses the Python files that ship with the model",
    nemo_rl="runs them whatever the setting is",
    avoided_by="a model without code of its own, or model.trust_remote_code=true to agree with it",
)


def _groups_by_prompt(*, known: bool) -> Difference:
    return Difference(
        setting="dataset",
        affects=("advantages",) if known else ("advantages, if rows have the same prompt",),
        local="a group is the rollouts of one row",
        nemo_rl="a group is the rollouts of one prompt: rows of a step with equal prompts form one",
        avoided_by="rows with different prompts",
    )


def _cap(training: TrainingConfig) -> int | None:
    """The cap on a response, when it can end one that does not fill the sequence."""
    cap = training.max_new_tokens
    return cap if cap is not None and cap < training.max_seq_length else None
