"""Learning rates: NeMo RL's where we agree, hand-worked ones where we differ on purpose."""

import json
from pathlib import Path

import pytest

from rl.schedule import ScheduleSettings, learning_rate

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "lr_schedule.json").read_text())["cases"]


def rates(kind="adamw_with_cosine_annealing", *, peak=1e-6, minimum=0.0, warmup=0, steps=5, upto=None):
    settings = ScheduleSettings(
        optimizer_type=kind, learning_rate=peak, min_learning_rate=minimum, warmup_steps=warmup, num_steps=steps
    )
    return [learning_rate(step, settings) for step in range(1, (upto or steps) + 1)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['optimizer_type']}-warmup{case['warmup_steps']}")
def test_against_nemo_rl(case):
    flat, warmup, steps = case["optimizer_type"].endswith("flat_lr"), case["warmup_steps"], case["num_steps"]
    ours = rates(
        case["optimizer_type"],
        peak=case["learning_rate"],
        minimum=case["min_learning_rate"] or 0.0,
        warmup=warmup,
        steps=steps,
    )
    theirs = case["lr_used_by_step_1_2_..."][:steps]
    if flat and warmup:
        # Decision: warm-up acts. Theirs is flat from the first step.
        assert ours[0] == pytest.approx(case["learning_rate"] * 1e-5)
        assert theirs[0] == case["learning_rate"]
    elif warmup == 0 and not flat:
        # Decision: the first step runs at the peak. Theirs warms up for one step all the same.
        assert ours[0] == case["learning_rate"]
        assert theirs[0] < case["learning_rate"]
    else:
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_cosine_without_warmup():
    # (1 + cos(pi k / 4)) / 2 for k = 0 .. 4
    assert rates(peak=1.0, steps=4, upto=5) == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], abs=1e-6)


def test_cosine_with_warmup_and_minimum():
    assert rates(peak=1.0, minimum=0.2, warmup=2, steps=4) == pytest.approx([0.2, 0.6, 1.0, 0.6])


def test_flat_with_warmup():
    assert rates("adam_with_flat_lr", peak=1.0, warmup=2, steps=4) == pytest.approx([1e-5, 0.500005, 1, 1])


def test_past_the_last_step_the_rate_stays_at_its_minimum():
    assert rates(peak=1.0, minimum=0.1, steps=2, upto=9)[2:] == [0.1] * 7
