"""Units: which samples share a prompt."""

from hypothesis import given
from hypothesis import strategies as st

from gym_bridge.types import TrainSample
from rl.batching import Unit, prompt_sharing_units


def sample(*, group_id: int, prompt: tuple[int, ...], response: int) -> TrainSample:
    """A prompt followed by ``response`` trained tokens."""
    return TrainSample(
        group_id=group_id,
        rollout_id=0,
        token_ids=prompt + (9,) * response,
        loss_mask=(0,) * len(prompt) + (1,) * response,
        logprobs=(0.0,) * (len(prompt) + response),
        truncated=False,
    )


def test_samples_of_a_group_share_their_prompt():
    samples = [sample(group_id=0, prompt=(1,) * 100, response=n) for n in (10, 20, 30)]
    units = prompt_sharing_units(samples, max_unit_tokens=1000, hidden_size=576)
    assert units == [Unit(samples=(0, 1, 2), num_prompt_tokens=100, num_tokens=160)]


def test_other_groups_and_other_prompts_stay_apart():
    samples = [
        sample(group_id=0, prompt=(1,) * 50, response=5),
        sample(group_id=1, prompt=(1,) * 50, response=5),
        sample(group_id=0, prompt=(2,) * 50, response=5),
        sample(group_id=0, prompt=(1,) * 50, response=7),
    ]
    units = prompt_sharing_units(samples, max_unit_tokens=1000, hidden_size=576)
    assert [unit.samples for unit in units] == [(0, 3), (1,), (2,)]


def test_observations_after_the_first_trained_token_belong_to_the_response():
    turns = TrainSample(
        group_id=0,
        rollout_id=0,
        token_ids=(1, 1, 1, 1, 9, 5, 9),
        loss_mask=(0, 0, 0, 0, 1, 0, 1),
        logprobs=(0.0,) * 7,
        truncated=False,
    )
    units = prompt_sharing_units([turns, turns], max_unit_tokens=100, hidden_size=576)
    assert units == [Unit(samples=(0, 1), num_prompt_tokens=4, num_tokens=10)]


def test_long_responses_do_not_share_a_short_prompt():
    # Sharing saves 10 tokens; two units cost 2 * 510^2 / 384 = 1355 in attention, one 1010^2 / 384 = 2657.
    samples = [sample(group_id=0, prompt=(1,) * 10, response=500)] * 2
    units = prompt_sharing_units(samples, max_unit_tokens=10_000, hidden_size=64)
    assert [unit.samples for unit in units] == [(0,), (1,)]


def test_the_cheapest_split_beats_both_extremes():
    # Tokens + tokens^2 / 600. All four in one unit: 1000 + 1667 = 2667. Two of two: 2 * (600 + 600) = 2400.
    # One by one: 4 * (400 + 267) = 2667.
    samples = [sample(group_id=0, prompt=(1,) * 200, response=200)] * 4
    units = prompt_sharing_units(samples, max_unit_tokens=10_000, hidden_size=100)
    assert [unit.samples for unit in units] == [(0, 1), (2, 3)]


def test_a_group_above_the_budget_is_split():
    samples = [sample(group_id=0, prompt=(1,) * 100, response=20)] * 4
    units = prompt_sharing_units(samples, max_unit_tokens=150, hidden_size=576)
    assert [unit.num_tokens for unit in units] == [140, 140]


def test_a_sample_without_a_trained_token_is_kept():
    untrained = sample(group_id=0, prompt=(1,) * 5, response=0)
    units = prompt_sharing_units([untrained], max_unit_tokens=100, hidden_size=576)
    assert units == [Unit(samples=(0,), num_prompt_tokens=5, num_tokens=5)]


@given(
    shapes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 60)), max_size=30),
    max_unit_tokens=st.integers(20, 200),
    hidden_size=st.integers(1, 100),
)
def test_units_partition_the_samples_within_the_budget(
    shapes: list[tuple[int, int, int]], max_unit_tokens: int, hidden_size: int
):
    samples = [sample(group_id=g, prompt=(1,) * p, response=r) for g, p, r in shapes]
    units = prompt_sharing_units(samples, max_unit_tokens=max_unit_tokens, hidden_size=hidden_size)
    assert sorted(i for unit in units for i in unit.samples) == list(range(len(samples)))
    for unit in units:
        members = [samples[i] for i in unit.samples]
        assert len({(m.group_id, m.token_ids[: unit.num_prompt_tokens]) for m in members}) == 1
        responses = sum(len(m.token_ids) - unit.num_prompt_tokens for m in members)
        assert unit.num_tokens == unit.num_prompt_tokens + responses
        assert len(members) == 1 or unit.num_tokens <= max_unit_tokens
    cost = sum(u.num_tokens + u.num_tokens**2 / (6 * hidden_size) for u in units)
    unshared = sum(len(m.token_ids) + len(m.token_ids) ** 2 / (6 * hidden_size) for m in samples)
    assert cost <= unshared + 1e-6
