"""Metrics of one step, recomputed by hand, and NeMo RL's names and numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.schema.training import RewardScalingConfig
from rl.dynamic_sampling import selected_groups
from rl.loss import LossSettings, policy_loss
from rl.loss_statistics import LossStatistics, combined
from rl.metric_docs import metric_doc, metric_names
from rl.metrics import group_shares, rollout_statistics, spread, step_metrics, validation_metrics
from rl.micro_batch import micro_batch
from rl.workers.step import StepResult

VECTORS = Path(__file__).parents[2] / "vectors"
SECONDS = {"generation": 2.0, "policy_training": 4.0, "total_step_time": 8.0, "weight_sync": 0.5}


def statistics(*, truncation="tis"):
    """Two tokens of one sequence and one of another, all with now = -1: sampled at -1, -2 and -1."""
    _, parts = policy_loss(
        torch.tensor([-1.0, -1.0, -1.0]),
        previous_T=None,
        sampler_T=torch.tensor([-1.0, -2.0, -1.0]),
        reference_T=None,
        advantages_T=torch.tensor([1.0, 1.0, -1.0]),
        sequence_T=torch.tensor([0, 0, 1]),
        num_sequences=2,
        global_num_tokens=3,
        entropies_T=torch.tensor([0.5, 0.25, 0.75]),
        settings=LossSettings(
            ratio_clip_min=0.2,
            ratio_clip_max=0.28,
            ratio_clip_c=None,
            ref_policy_kl_penalty=0.0,
            use_on_policy_kl_approximation=True,
            use_importance_sampling_correction=True,
            truncated_importance_sampling_type=truncation,
            truncated_importance_sampling_ratio=2.0 if truncation else None,
            truncated_importance_sampling_ratio_min=None,
        ),
    )
    return parts


def result(parts: LossStatistics, *, grad_norm=0.5, router_aux_loss=None):
    return StepResult(
        statistics=parts, grad_norm=grad_norm, seconds=3.0, peak_memory_bytes=1000, router_aux_loss=router_aux_loss
    )


def metrics(sampled, *, trained=None, advantages=None, scaling=None, selection=None, results=None):
    trained = sampled if trained is None else trained
    return step_metrics(
        sampled=sampled,
        trained=trained,
        advantages=[0.0] * len(trained) if advantages is None else advantages,
        scaling=scaling,
        shaping=None,
        selection=selection,
        results=[result(statistics())] if results is None else results,
        learning_rate=1e-5,
        micro_batches=[],
        seconds=SECONDS,
    )


def test_one_step_by_hand(rollout):
    """Two groups of two; one rollout of the second failed."""
    rollouts = [
        rollout(1.0, 4, 2, metrics={"lines": 3.0}),
        rollout(0.0, 6, truncated=True, metrics={"lines": 1.0}),
        rollout(0.5, 12, group_id=1, agent="other"),
        rollout(None, group_id=1),
    ]
    found = metrics(rollouts, advantages=[2.0, -1.0, 0.0, 0.0], scaling=RewardScalingConfig(target_max=10.0))
    expected = {
        "train_reward": 5.0,  # (10 + 0 + 5) / 3
        "train_total_reward/mean": 0.5,
        "train_total_reward/max": 1.0,
        "train_total_reward/min": 0.0,
        "train_total_reward/median": 0.5,
        "train_total_reward/stddev": 0.5,
        "train_total_reward/p25": 0.0,
        "train_total_reward/p75": 1.0,
        "train_agent/reward/mean": 0.5,
        "train_agent/lines/mean": 2.0,
        "train_agent/lines/max": 3.0,
        "train_other/reward/mean": 0.5,
        "train_num_failed": 1,
        "train_failed_share": 0.25,
        "train_truncation_rate": 1 / 3,
        "train_natural_termination_rate": 2 / 3,
        "train_baseline_reward/pct_0": 0.0,
        "train_baseline_reward/pct_1": 0.0,
        "train_baseline_reward/pct_mixed": 50.0,
        "train_mean_gen_tokens_per_sample": 8.0,  # (6 + 6 + 12) / 3
        "train_gen_tokens_per_sample/max": 12,
        "train_max_gen_tokens_per_turn/min": 4,
        "train_turns_per_sample/max": 2,
        "train_mean_prompt_length": 10.0,
        "train_total_tokens_per_sample/max": 22,
        "train_total_num_tokens": 54,  # 16 + 16 + 22
        "train_advantages/sum": 6.0,  # 6 * 2 - 6 * 1
        "train_advantages/mean": 0.25,
        "train_advantages/max": 2.0,
        "train_advantages/min": -1.0,
        "train_padding_share": 0.0,
        "train_lr": 1e-5,
        "train_grad_norm": 0.5,
        "train_peak_memory_bytes": 1000,
        "train_timing/weight_sync": 0.5,
        "performance/samples_per_sec": 0.5,
        "performance/tokens_per_sec": 6.75,
        "performance/generation_tokens_per_sec": 12.0,
        "performance/policy_training_tokens_per_sec": 13.5,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert "train_other/reward/stddev" not in found  # of one value


def test_loss_metrics_by_hand(rollout):
    found = metrics([rollout(1.0, 3)])
    e = float(np.e)
    expected = {
        # weights 1, min(e, 2), 1 times -A: (-1 - 2 + 1) / 3
        "train_loss": -2 / 3,
        "train_sampling_importance_ratio": 4 / 3,
        "train_is_oob_ratio": 1 / 3,
        "train_token_mult_prob_error": (2 + e) / 3,
        "train_mean_seq_mult_prob_error": ((1 + e) / 2 + 1) / 2,
        "train_max_seq_mult_prob_error": (1 + e) / 2,
        "train_min_seq_mult_prob_error": 1.0,
        "train_gen_kl_error": (e - 2) / 3,  # prev - gen = 1: e - 1 - 1
        "train_policy_kl_error": (1 / e) / 3,  # e^-1 - 1 + 1
        "train_approx_entropy": (2 + e) / 3,
        "train_entropy": 0.5,
        "train_probs_ratio": 1.0,
        "train_probs_ratio_max": 1.0,
        "train_kl_penalty": 0.0,
        "train_global_valid_toks": 3,
        "train_global_valid_seqs": 2,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_several_optimizer_steps_are_averaged_and_the_last_gradient_norm_stands(rollout):
    two = [
        result(statistics(), grad_norm=3.0, router_aux_loss=2.0),
        result(combined([statistics(), statistics()]), grad_norm=4.0, router_aux_loss=3.0),
    ]
    found = metrics([rollout(1.0, 3)], results=two)
    assert found["train_router_aux_loss"] == 2.5
    assert "train_router_aux_loss" not in metrics([rollout(1.0, 3)])
    assert found["train_global_valid_toks"] == 4.5
    assert found["train_loss"] == pytest.approx((-2 / 3 - 4 / 3) / 2)
    assert found["train_entropy"] == 0.5
    assert found["train_grad_norm"] == 4.0


def test_nothing_trained_leaves_means_out(rollout):
    found = metrics([rollout(1.0, 3, truncated=True)], results=[result(combined([]), grad_norm=0.0)])
    assert found["train_loss"] == 0
    assert found["train_global_valid_toks"] == 0
    assert "train_entropy" not in found


def test_a_gradient_norm_that_is_no_number_is_left_out(rollout):
    assert "train_grad_norm" not in metrics([rollout(1.0, 3)], results=[result(statistics(), grad_norm=float("nan"))])


def test_every_rollout_failed(rollout):
    found = metrics([rollout(None)])
    assert found["train_failed_share"] == 1.0
    assert "train_reward" not in found
    assert "train_baseline_reward/pct_mixed" not in found
    assert validation_metrics([rollout(None)]) == {"val_num_failed": 1, "val_failed_share": 1.0}


def test_dynamic_sampling(rollout):
    sampled = [rollout(1.0, 1), rollout(0.0, 1), rollout(1.0, 1, group_id=1), rollout(1.0, 1, group_id=1)]
    selection = selected_groups([sampled], num_wanted=1)
    found = metrics(sampled, trained=selection.rollouts, selection=selection)
    assert found["train_reward"] == 0.75
    assert found["train_filtered_reward"] == 0.5
    assert found["train_dynamic_sampling_num_gen_batches"] == 1
    assert found["train_dynamic_sampling_num_discarded_valid_samples"] == 0


def test_validation_uses_raw_rewards(rollout):
    found = validation_metrics([rollout(1.0, 4), rollout(0.0, 6), rollout(None)])
    assert found["val_accuracy"] == 0.5
    assert found["val_avg_length"] == 5.0
    assert found["val_failed_share"] == pytest.approx(1 / 3)
    assert found["val_total_reward/stddev"] == pytest.approx(0.5**0.5)


def test_padding_share_counts_positions():
    batch = micro_batch([[]], [], width=8)
    found = step_metrics(
        sampled=[],
        trained=[],
        advantages=[],
        scaling=None,
        shaping=None,
        selection=None,
        results=[result(statistics())],
        learning_rate=0.0,
        micro_batches=[batch],
        seconds=SECONDS,
    )
    assert found["train_padding_share"] == 1.0


def test_values_that_are_not_finite_are_left_out(rollout):
    found = rollout_statistics([rollout(0.0, 1, metrics={"x": float("nan")}), rollout(0.0, 1, metrics={"x": 2.0})])
    assert found["agent/x/mean"] == 2.0
    assert "agent/x/stddev" not in found


@pytest.mark.parametrize("case", json.loads((VECTORS / "rollout_stats.json").read_text())["cases"])
def test_statistics_equal_nemo_rls(case):
    expected = {name: value for name, value in case["metrics"].items() if value != "nan"}
    expected |= {f"x/p{percent}": case[f"p{percent}"] for percent in (25, 75, 95, 99)}
    assert spread("x", case["values"], percentiles=(25, 75, 95, 99)) == pytest.approx(expected)


def test_decision_5_shares_are_of_groups(rollout):
    """NeMo RL counts rollouts by their baseline: with leave-one-out, 31.25, 31.25 and 37.5 for these four groups."""
    cases = json.loads((VECTORS / "baseline_pct.json").read_text())["cases"]
    (case,) = [case for case in cases if case.get("group") == 4 and case["leave_one_out"]]
    rollouts = [rollout(reward, group_id=index // 4) for index, reward in enumerate(case["rewards"])]
    shares = group_shares(rollouts)
    assert shares == {"baseline_reward/pct_0": 25, "baseline_reward/pct_1": 25, "baseline_reward/pct_mixed": 50}
    assert case["metrics"]["baseline_reward/pct_0"] == 31.25


def test_decision_5_shares_come_from_raw_rewards_and_leave_failed_groups_out(rollout):
    rollouts = [rollout(0.5), rollout(0.5), rollout(0.0, group_id=1), rollout(None, group_id=2)]
    shares = group_shares(rollouts)
    assert shares == {"baseline_reward/pct_0": 50, "baseline_reward/pct_1": 0, "baseline_reward/pct_mixed": 0}


NOT_OURS = {
    "histogram": "no tracker-independent form",
    "timing/rollout/": "phases inside NeMo RL",
    "timing/setup/": "phases inside NeMo RL",
    "generation_logger_metrics": "phases inside NeMo RL",
    "get_logprobs/": "phases inside NeMo RL",
    "policy_training/": "phases inside NeMo RL",
    "_per_gpu": "the same figures without the division",
    "training_worker_group": "policy_training_tokens_per_sec",
    "_after_mask": "no job can set the threshold",
    "masked_correct_pct": "no job can set the threshold",
    "num_masked_seqs_by_logprob_error": "no job can set the threshold",
    "num_mask_sample_filtered": "no job can set the flag",
    "positive_nll_loss": "no such term in our loss",
    "num_valid_samples": "global_valid_seqs",
}
"""Parts of NeMo RL's metric names that have no counterpart, with the reason."""


def test_every_other_name_of_nemo_rl_is_emitted_and_explained(rollout):
    names = json.loads((VECTORS / "metric_names.json").read_text())
    logged = [*names["logged"], *names["only_with_dynamic_sampling"], *names["only_with_truncated_is"]]
    sampled = [rollout(1.0, 3), rollout(0.0, 3)]
    selection = selected_groups([sampled], num_wanted=1)
    ours = metrics(sampled, selection=selection) | validation_metrics(sampled)
    for name in logged:
        if any(part in name for part in NOT_OURS):
            continue
        prefixes = {"timing/train/": "train_timing/", "timing/validation/": "val_timing/", "train/": "train_"}
        renames = prefixes | {"validation/": "val_", "performance/": "performance/"}
        prefix = next(prefix for prefix in renames if name.startswith(prefix))
        published = renames[prefix] + name.removeprefix(prefix)
        assert metric_doc(published), published
        if "timing/" not in name:
            assert published in ours, published


def test_every_emitted_metric_is_explained_and_every_explained_one_is_emitted(rollout):
    sampled = [rollout(1.0, 3, metrics={"lines": 2.0}), rollout(0.0, 3, metrics={"lines": 1.0})]
    selection = selected_groups([sampled], num_wanted=1)
    results = [result(statistics(), router_aux_loss=2.0)]
    emitted = metrics(sampled, selection=selection, results=results) | validation_metrics(sampled)
    emitted |= {"step": 1, "val_timing/total": 1.0}
    assert [name for name in emitted if metric_doc(name) is None] == []
    for pattern in metric_names():
        assert metric_doc(pattern), pattern
        family = pattern.replace("<agent>", "agent").replace("<key>", "lines").replace("<phase>", "")
        assert any(name == family or name.startswith(family.rstrip("*")) for name in emitted), pattern


@pytest.mark.parametrize("name", ["", "loss", "train_", "train_losss", "val_loss", "train_total_reward/p26", "a/b"])
def test_unknown_names_have_no_explanation(name):
    assert metric_doc(name) is None
