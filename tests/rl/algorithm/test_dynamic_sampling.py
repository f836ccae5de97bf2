"""Dynamic sampling keeps or drops whole groups, on raw rewards, and says why a step cannot be filled."""

import json
from pathlib import Path

import pytest

from launcher.schema.training import RewardShapingConfig
from rl.dynamic_sampling import gives_loss, selected_groups
from rl.rewards import training_rewards

VECTORS = Path(__file__).parents[2] / "vectors"
CASES = json.loads((VECTORS / "dynamic_sampling.json").read_text())["cases"]


def batch(rollout, *groups, first_id=0):
    return [rollout(reward, 3, group_id=first_id + index) for index, rewards in enumerate(groups) for reward in rewards]


def kept_rewards(selection):
    return [rollout.reward for rollout in selection.rollouts]


def test_a_group_with_one_success_is_kept_whole(rollout):
    # NeMo RL drops the success itself under leave-one-out (decision 7).
    selection = selected_groups([batch(rollout, [1, 0, 0, 0])], num_wanted=1)
    assert selection.complete
    assert kept_rewards(selection) == [1, 0, 0, 0]


def test_groups_of_two_qualify(rollout):
    # In NeMo RL they never do.
    assert selected_groups([batch(rollout, [0, 1], [1, 1])], num_wanted=1).complete


def test_constant_groups_are_dropped_with_their_cause(rollout):
    groups = ([0, 0], [0, 0], [1, 1], [0.5, 0.5 + 1e-9], [1, None], [0, 1])
    selection = selected_groups([batch(rollout, *groups)], num_wanted=2)
    assert not selection.complete
    assert kept_rewards(selection) == [0, 1]
    assert selection.dropped == {
        "all rewards 0": 2,
        "all rewards 1": 1,
        "all rewards alike": 1,
        "fewer than two valid rollouts": 1,
    }
    lines = selection.explanation().splitlines()
    assert lines[0].startswith("dynamic sampling found 1 of 2 groups whose rewards differ in 1 batches")
    assert lines[1].startswith("  2 dropped, all rewards 0: the task is too hard for the model")
    assert lines[-1] == "  most frequent failure: timeout after 60 s"


def test_a_failed_rollout_does_not_drop_its_group(rollout):
    selection = selected_groups([batch(rollout, [1, None, 0])], num_wanted=1)
    assert kept_rewards(selection) == [1, None, 0]


def test_all_rewards_zero_is_dropped_although_shaping_gives_a_spread(rollout):
    rollouts = [rollout(0.0, length) for length in (2, 8, 10, 30)]
    overlong = RewardShapingConfig(overlong_buffer_length=4, overlong_buffer_penalty=1.0, max_response_length=10)
    assert training_rewards(rollouts, scaling=None, shaping=overlong).tolist() == [0, -0.5, -1, -1]
    assert selected_groups([rollouts], num_wanted=1).dropped == {"all rewards 0": 1}


def test_surplus_groups_are_counted_and_left_out(rollout):
    first = batch(rollout, [0, 1], [1, 1])
    second = batch(rollout, [1, 0], [0, None, 1], first_id=10)
    selection = selected_groups([first, second], num_wanted=2)
    assert [r.group_id for r in selection.rollouts] == [0, 0, 10, 10]
    assert (selection.num_surplus, selection.num_surplus_rollouts, selection.num_batches) == (1, 2, 2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_against_nemo_rl(case, rollout):
    size, wanted = case["num_generations_per_prompt"], case["num_prompts_per_step"]
    batches = []
    for index, step in enumerate(case["steps"]):
        rewards = step["rewards"]
        groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
        batches.append(batch(rollout, *groups, first_id=100 * index))
    selection = selected_groups(batches, num_wanted=wanted)
    last = case["steps"][-1]
    match case["name"]:
        case "one success: the successful row itself is dropped under leave-one-out":
            # Ours has both groups after the first batch; theirs samples a second one and trains rows of three groups.
            assert selected_groups(batches[:1], num_wanted=wanted).complete
            assert kept_rewards(selection) == [0, 1, 1, 0, 1, 0, 0, 0]
            assert last["train_uids"] == [1000, 1001, 1002, 1003, 1005, 1006, 1007, 2000]
        case "group of 2: leave-one-out std is always 0, nothing is ever kept":
            assert selection.complete
            assert not last["complete"]
        case _:
            assert selection.complete == last["complete"]
            if selection.complete:
                assert kept_rewards(selection) == pytest.approx(last["filtered_reward"])
                surplus = last["metrics"]["dynamic_sampling_num_discarded_valid_samples"]
                assert selection.num_surplus_rollouts == surplus


def test_overlong_filtering_equals_nemo_rls(rollout):
    """The vector's other cases are a flag (mask_sample) that no job can set."""
    cases = json.loads((VECTORS / "sample_filters.json").read_text())["cases"]
    (case,) = [case for case in cases if "truncated" in case]
    given = zip(case["truncated"], case["loss_multiplier"], case["out"], strict=True)
    for truncated, multiplier, out in given:
        rewards = 1.0 if multiplier else None  # what has no multiplier from the start is a failed rollout here
        assert gives_loss(rollout(rewards, 3, truncated=truncated), overlong_filtering=True) == bool(out)


def test_without_overlong_filtering_truncated_rollouts_are_trained(rollout):
    assert gives_loss(rollout(0.0, 3, truncated=True), overlong_filtering=False)
    assert not gives_loss(rollout(None, 3), overlong_filtering=False)
