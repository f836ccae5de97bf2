"""The table of differences names what differs, and nothing else: both sides are computed on one recorded batch.

Ours comes from the engine's functions, NeMo RL's from its formulas, written out here with their names.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from gym_bridge.types import Rollout, Turn
from launcher.compile import compile_plan
from launcher.schema.job import JobConfig
from launcher.schema.training import TrainingConfig
from rl.advantages import AdvantageSettings, group_advantages
from rl.dynamic_sampling import selected_groups
from rl.metrics import advantage_statistics, group_shares, rollout_statistics
from rl.nemo_rl.differences import differences
from rl.rewards import training_rewards

MAX_SEQ_LENGTH = 20
CAP = 8

REWARDS = (
    (0.0, 0.0, 0.0, 1.0),  # a lone success
    (0.5, 0.5, 0.5, 0.5),
    (1.0, 1.0, 1.0, 1.0),
    (0.2, 0.6, 1.0, 0.0),  # asks the same as the group before, in batches with repeated prompts
    (-1.0, 0.0, 0.0, 1.0),  # differ, with a mean of 0
    (2.0, 1.0, 1.0, 0.0),  # differ, with a mean of 1
)
NUM_GROUPS = len(REWARDS)


def turn(*, prompt: int, response: int) -> Turn:
    return Turn(
        prompt_token_ids=(1,) * prompt, token_ids=(2,) * response, logprobs=(0.0,) * response, finish_reason="stop"
    )


def recorded_batch(*, capped: bool) -> list[Rollout]:
    """Each group has a short rollout, one that reaches the cap of 8 tokens, one that fills the sequence in its second
    turn (12 + 8 tokens), and another short one.
    """
    turns = (
        (turn(prompt=4, response=3),),
        (turn(prompt=4, response=CAP),),
        (turn(prompt=4, response=6), turn(prompt=12, response=8)),
        (turn(prompt=4, response=5),),
    )
    return [
        Rollout(
            group_id=group_id,
            rollout_id=rollout_id,
            row_index=group_id,
            agent="a",
            turns=turns[rollout_id],
            reward=reward,
            failure=None,
            truncated=rollout_id == 2 or (rollout_id == 1 and capped),
            policy_version=0,
            prompt="p",
            response="r",
        )
        for group_id, rewards in enumerate(REWARDS)
        for rollout_id, reward in enumerate(rewards)
    ]


def total_tokens(rollout: Rollout) -> int:
    return len(rollout.turns[-1].prompt_token_ids) + len(rollout.turns[-1].token_ids)


def their_truncated(rollout: Rollout) -> bool:
    return total_tokens(rollout) == MAX_SEQ_LENGTH


def their_rewards(rollouts: Sequence[Rollout], training: TrainingConfig) -> list[float]:
    """Scaling, then one of the two penalties."""
    rewards = [rollout.reward or 0.0 for rollout in rollouts]
    if scale := training.reward_scaling:
        source, target = scale.source_max - scale.source_min, scale.target_max - scale.target_min
        clamped = [min(max(r, scale.source_min), scale.source_max) for r in rewards]
        rewards = [scale.target_min + (r - scale.source_min) / source * target for r in clamped]
    shape = training.reward_shaping
    if shape and shape.stop_properly_penalty_coef is not None:
        factors = [shape.stop_properly_penalty_coef if their_truncated(rollout) else 1.0 for rollout in rollouts]
        rewards = [reward * factor for reward, factor in zip(rewards, factors, strict=True)]
    elif shape:
        assert shape.max_response_length is not None
        assert shape.overlong_buffer_length is not None
        assert shape.overlong_buffer_penalty is not None
        free = shape.max_response_length - shape.overlong_buffer_length
        over = [(len(rollout.turns[0].token_ids) - free) / shape.overlong_buffer_length for rollout in rollouts]
        rewards = [r + min(-o * shape.overlong_buffer_penalty, 0.0) for r, o in zip(rewards, over, strict=True)]
    return rewards


def their_baselines(
    rewards: Sequence[float], groups: Sequence[int], *, leave_one_out: bool
) -> list[tuple[float, float]]:
    """(b_i, std_i) over the k others, or the whole group: b = sum / k, std^2 = (squares / k - b^2) k / (k - 1)."""
    members: dict[int, list[float]] = defaultdict(list)
    for group, reward in zip(groups, rewards, strict=True):
        members[group].append(reward)
    found = []
    for group, reward in zip(groups, rewards, strict=True):
        own = reward if leave_one_out else 0.0
        k = len(members[group]) - leave_one_out
        b = (sum(members[group]) - own) / k
        q = (sum(r * r for r in members[group]) - own * own) / k
        variance = (q - b * b) * k / (k - 1) if k > 1 else 0.0
        found.append((b, math.sqrt(variance) if variance > 1e-12 else 0.0))
    return found


def their_advantages(rewards: Sequence[float], groups: Sequence[int], training: TrainingConfig) -> list[float]:
    baselines = their_baselines(rewards, groups, leave_one_out=training.use_leave_one_out_baseline)
    return [
        (reward - b) / (std + 1e-6) if training.normalize_rewards and std > 0 else reward - b
        for reward, (b, std) in zip(rewards, baselines, strict=True)
    ]


def their_shares(rewards: Sequence[float], groups: Sequence[int], training: TrainingConfig) -> list[float]:
    """Percentages of baselines that are 0, 1, and neither."""
    baselines = [b for b, _ in their_baselines(rewards, groups, leave_one_out=training.use_leave_one_out_baseline)]
    zero, one = (100.0 * sum(b == value for b in baselines) / len(baselines) for value in (0.0, 1.0))
    return [zero, one, 100.0 - zero - one]


def both_sides(job: JobConfig, *, repeated: bool) -> dict[str, tuple[Any, Any]]:
    """Name -> ours, theirs, for everything the table may speak of."""
    training = job.training
    batch = recorded_batch(capped=training.max_new_tokens == CAP)
    rows = [rollout.group_id for rollout in batch]
    prompts = [2 if row == 3 else row for row in rows] if repeated else rows
    rewards = training_rewards(batch, scaling=training.reward_scaling, shaping=training.reward_shaping)
    settings = AdvantageSettings(
        use_leave_one_out_baseline=training.use_leave_one_out_baseline, normalize_rewards=training.normalize_rewards,
        advantage_clip_low=None, advantage_clip_high=None,
    )  # fmt: skip
    advantages = group_advantages(rewards, np.array(rows), settings).tolist()
    theirs = their_rewards(batch, training)
    sides: dict[str, tuple[Any, Any]] = {
        "rewards": (rewards.tolist(), theirs),
        "train_reward": (fmean(rewards), fmean(theirs)),
        "advantages": (advantages, their_advantages(rewards.tolist(), prompts, training)),
        "rollouts without loss": (
            [training.overlong_filtering and rollout.truncated for rollout in batch],
            [training.overlong_filtering and their_truncated(rollout) for rollout in batch],
        ),
        "train_advantages/sum": (
            advantage_statistics(batch, advantages)["advantages/sum"],
            sum(advantage * MAX_SEQ_LENGTH for advantage in their_advantages(rewards.tolist(), prompts, training)),
        ),
    }
    rate = fmean(map(their_truncated, batch))
    ours = rollout_statistics(batch)
    sides["train_truncation_rate"] = (ours["truncation_rate"], rate)
    sides["train_natural_termination_rate"] = (ours["natural_termination_rate"], 1.0 - rate)
    shares = list(group_shares(batch).values())
    sides["train_baseline_reward/pct_*"] = (shares, their_shares(theirs, prompts, training))
    if training.use_dynamic_sampling:
        sides |= dynamic_sampling(batch, training)
    return sides


def dynamic_sampling(batch: Sequence[Rollout], training: TrainingConfig) -> dict[str, tuple[Any, Any]]:
    """Both keep what they can of one batch."""
    raw = [rollout.reward or 0.0 for rollout in batch]
    groups = [rollout.group_id for rollout in batch]
    selection = selected_groups([batch], num_wanted=NUM_GROUPS)
    spreads = their_baselines(raw, groups, leave_one_out=training.use_leave_one_out_baseline)
    limit = training.dynamic_sampling_max_gen_batches
    return {
        "rollouts that are trained": (
            [(rollout.group_id, rollout.rollout_id) for rollout in selection.rollouts],
            [(r.group_id, r.rollout_id) for r, (_, std) in zip(batch, spreads, strict=True) if std != 0],
        ),
        "train_reward": (fmean(raw), fmean(raw[:8])),
        "batches sampled before the run stops": (limit, limit + 1),
    }


def differing(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and ours and isinstance(ours[0], float):
        return ours != pytest.approx(theirs, abs=1e-5)
    return bool(ours != pytest.approx(theirs, abs=1e-5)) if isinstance(ours, float) else bool(ours != theirs)


OVERLONG = {"overlong_buffer_length": 4, "overlong_buffer_penalty": 1.0}
JOBS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "whole-group baseline": {"use_leave_one_out_baseline": False},
    "unnormalised": {"normalize_rewards": False},
    "capped responses": {"max_new_tokens": CAP},
    "overlong filtering": {"overlong_filtering": True},
    "overlong filtering, capped": {"overlong_filtering": True, "max_new_tokens": CAP},
    "stop penalty": {"reward_shaping": {"stop_properly_penalty_coef": 0.5}},
    "stop penalty, capped": {"reward_shaping": {"stop_properly_penalty_coef": 0.5}, "max_new_tokens": CAP},
    "overlong penalty": {"reward_shaping": {**OVERLONG, "max_response_length": CAP}, "max_new_tokens": CAP},
    "overlong penalty that grows": {"reward_shaping": {**OVERLONG, "max_response_length": 6}},
    "scaled rewards": {"reward_scaling": {"target_min": -1.0}, "use_leave_one_out_baseline": False},
    "dynamic sampling": {"use_dynamic_sampling": True, "batch_multiplier": 2.0},
    "dynamic sampling of groups": {"use_dynamic_sampling": True, "use_leave_one_out_baseline": False},
}


@pytest.mark.parametrize("repeated", [False, True], ids=["", "repeated prompts"])
@pytest.mark.parametrize("name", JOBS)
def test_the_table_names_exactly_what_differs(name: str, repeated: bool):
    training = {
        "type": "grpo",
        "max_seq_length": MAX_SEQ_LENGTH,
        "num_generations_per_prompt": 4,
        "batch_size": 4 * NUM_GROUPS,
    }
    job = JobConfig.model_validate(
        {"model": "m", "dataset": "d", "environment": "e", "training": training | JOBS[name]}
    )
    plan = compile_plan(job, num_training_rows=64, num_validation_rows=0)
    named = {thing for difference in differences(job, plan, repeated_prompts=repeated) for thing in difference.affects}
    sides = both_sides(job, repeated=repeated)
    assert named == {thing for thing, (ours, theirs) in sides.items() if differing(ours, theirs)}


def job_with(**settings: Any) -> JobConfig:
    tree = {"model": {"name": "m"}, "dataset": "d", "environment": "e", "training": {"type": "grpo"}}
    return JobConfig.model_validate(tree | settings)


def settings_named(job: JobConfig, **known: bool) -> set[str]:
    plan = compile_plan(job, num_training_rows=64, num_validation_rows=0)
    return {difference.setting for difference in differences(job, plan, **known)}


def test_unknown_prompts_are_spoken_of_with_an_if():
    job = job_with()
    found = differences(job, compile_plan(job, num_training_rows=64, num_validation_rows=0))
    assert ("advantages, if rows have the same prompt",) in [difference.affects for difference in found]
    assert "dataset" not in settings_named(job, repeated_prompts=False)


def test_one_prompt_a_step_cannot_meet_its_like():
    job = job_with(training={"type": "grpo", "batch_size": 8})
    assert "dataset" not in settings_named(job, repeated_prompts=True)


def test_code_of_a_model_that_is_not_trusted():
    assert "model.trust_remote_code" in settings_named(job_with(), model_ships_code=True)
    assert "model.trust_remote_code" not in settings_named(job_with(), model_ships_code=False)
    trusted = job_with(model={"name": "m", "trust_remote_code": True})
    assert "model.trust_remote_code" not in settings_named(trusted, model_ships_code=True)
