"""Each verdict fires on a run crafted to be ill in that one way, once, and none on the demo."""

import json
from pathlib import Path

import pytest

from launcher.schema.groups import HealthConfig
from rl.health import new_verdicts, verdicts
from rl.metric_docs import metric_doc

DEMO = json.loads((Path(__file__).parents[2] / "vectors" / "demo_metrics.json").read_text())["runs"]
HEALTHY = {
    "train_reward": 0.4,
    "train_baseline_reward/pct_mixed": 90.0,
    "train_baseline_reward/pct_0": 5.0,
    "train_baseline_reward/pct_1": 5.0,
    "train_approx_entropy": 0.8,
    "train_truncation_rate": 0.1,
    "train_failed_share": 0.0,
    "train_token_mult_prob_error": 1.04,
    "train_grad_norm": 0.5,
}


def run(num_steps, **changing):
    """Steps like HEALTHY, with some metrics as functions of the step (counted from 0)."""
    return [
        HEALTHY | {name: value(step) for name, value in changing.items()} | {"step": step + 1}
        for step in range(num_steps)
    ]


def series(name, value):
    return {f"train_{name}": value}


def names(history):
    return [verdict.name for verdict in verdicts(history)]


def test_a_healthy_run_is_silent():
    history = [{"step": 0, "val_accuracy": 0.2}, *run(20, train_reward=lambda step: 0.2 + 0.03 * step)]
    assert all(names(history[:step]) == [] for step in range(len(history) + 1))


def demo(demo_run, **changing):
    """The recorded demo, with some metrics as functions of (step counted from 0, recorded value)."""
    step, history = 0, []
    for record in demo_run["metrics"]:
        changed = {}
        if "train_reward" in record:
            changed = {name: value(step, record[name]) for name, value in changing.items()}
            step += 1
        history.append(record | changed)
    return history


@pytest.mark.parametrize("demo_run", DEMO, ids=lambda demo_run: demo_run["run"])
def test_the_demo_is_silent(demo_run):
    history = demo(demo_run)
    assert [record["step"] for record in history] == list(range(17))
    assert all(HEALTHY.keys() <= record.keys() for record in history[1:])
    assert all(names(history[:step]) == [] for step in range(len(history) + 1))


@pytest.mark.parametrize("demo_run", DEMO, ids=lambda demo_run: demo_run["run"])
def test_the_demo_with_one_illness_gives_one_verdict(demo_run):
    """Each verdict stands out against real metrics, and drags no other along."""
    ill = {
        "no_spread": series("baseline_reward/pct_mixed", lambda step, value: value if step < 8 else 0.0),
        "entropy_collapse": series("approx_entropy", lambda step, value: value * 0.7**step),
        "truncation": series("truncation_rate", lambda step, value: value if step < 10 else 0.9),
        "failures": series("failed_share", lambda step, value: 0.02 * (step // 4)),
        "sampler_drift": series("token_mult_prob_error", lambda step, value: value + 0.01 * step),
    }
    for name, changing in ill.items():
        told = {verdict.name for end in range(18) for verdict in verdicts(demo(demo_run, **changing)[:end])}
        assert told == {name}
    twice_as_long = [*demo(demo_run), *demo(demo_run, train_reward=lambda step, value: 0.3 + 0.05 * (-1) ** step)[1:]]
    assert names(twice_as_long) == ["reward_flat"]


@pytest.mark.parametrize(
    ("pct_0", "pct_1", "advice"),
    [(95.0, 0.0, "too hard"), (0.0, 95.0, "the model solves these rows"), (5.0, 0.0, "grade finer")],
)
def test_no_spread(pct_0, pct_1, advice):
    history = run(
        3,
        **series("baseline_reward/pct_mixed", lambda step: 5.0),
        **series("baseline_reward/pct_0", lambda step: pct_0),
        **series("baseline_reward/pct_1", lambda step: pct_1),
    )
    (verdict,) = verdicts(history)
    assert verdict.name == "no_spread"
    assert advice in verdict.advice
    assert names(history[:2]) == []


def test_entropy_collapse():
    history = run(10, train_approx_entropy=lambda step: 0.8 * 0.4**step)
    assert names(history) == ["entropy_collapse"]
    low_from_the_start = run(10, train_approx_entropy=lambda step: 0.04)
    assert names(low_from_the_start) == []


def test_truncation_rising():
    history = run(8, train_truncation_rate=lambda step: 0.1 + 0.04 * step)
    assert names(history) == ["truncation"]
    assert "more and more" in verdicts(history)[0].cause


def test_truncation_stuck():
    history = run(8, train_truncation_rate=lambda step: 0.6)
    assert names(history) == ["truncation"]
    assert verdicts(history)[0].evidence == "train_truncation_rate 0.60, 0.60 in the first steps"


def test_failures():
    assert names(run(3, train_failed_share=lambda step: 0.06)) == ["failures"]
    assert names(run(9, train_failed_share=lambda step: 0.1 if step == 5 else 0.0)) == []


@pytest.mark.parametrize("error", [lambda step: 1.12, lambda step: 1.03 + 0.01 * step])
def test_sampler_drift(error):
    assert names(run(7, train_token_mult_prob_error=error)) == ["sampler_drift"]


def noisy(level):
    return lambda step: level + 0.05 * (-1) ** step


def test_reward_flat():
    history = run(30, train_reward=noisy(0.4))
    assert names(history) == ["reward_flat"]
    assert names(history[:29]) == []


def test_a_flat_reward_is_no_fault_of_a_solved_task_or_of_weights_that_stand_still():
    solved = run(30, train_reward=noisy(0.95), **series("baseline_reward/pct_1", lambda step: 85.0))
    assert names(solved) == []
    assert names(run(30, train_reward=noisy(0.4), train_grad_norm=lambda step: 0.0)) == []


def test_a_slow_rise_is_not_flat():
    assert names(run(30, train_reward=lambda step: noisy(0.2)(step) + 0.01 * step)) == []


def test_a_verdict_is_told_once_with_the_reaction_of_the_job():
    history = run(12, train_failed_share=lambda step: 0.1, train_truncation_rate=lambda step: 0.6)
    health = HealthConfig(failures="stop", truncation="ignore")
    told = [[(v.name, reaction) for v, reaction in new_verdicts(history[:end], health)] for end in range(13)]
    assert told == [[], [], [], [("failures", "stop")], *[[]] * 9]
    warned = [v.name for end in range(13) for v, reaction in new_verdicts(history[:end], HealthConfig())]
    assert warned == ["failures", "truncation"]


def test_a_line_names_cause_evidence_advice_and_key():
    (verdict,) = verdicts(run(3, train_failed_share=lambda step: 0.1))
    assert verdict.line() == (
        "rollouts fail and are left out of their groups (train_failed_share 0.10, 0.10 in the first steps): read the "
        "reasons with `grpo rollouts RUN_DIR --failed` and the environment's log [health.failures]"
    )
    assert "\n" not in verdict.line()


def test_every_verdict_has_its_key_in_the_job_and_reads_metrics_that_exist():
    assert set(HealthConfig.model_fields) == {
        "no_spread", "entropy_collapse", "truncation", "failures", "sampler_drift", "reward_flat",
    }  # fmt: skip
    assert all(metric_doc(name) for name in HEALTHY)
