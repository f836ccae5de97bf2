"""The loss, its gradient and its statistics equal those that NeMo RL's own code gave (tests/vectors/loss.json)."""

import json
from pathlib import Path

import pytest
import torch

from rl.loss import KL_INPUT_CLAMP, KL_OUTPUT_CLAMP, LossSettings, k3_divergence, policy_loss
from rl.loss_statistics import SUM_NAMES, TOKEN_MEANS, loss_values

VECTORS = Path(__file__).parents[2] / "vectors"
LOSS = json.loads((VECTORS / "loss.json").read_text())
KL = json.loads((VECTORS / "kl.json").read_text())

NO_SETTING = {
    "sequence-level loss": "the loss is normalised over tokens",
    "gspo": "no sequence-level ratios",
    "cispo": "no CISPO",
    "force_on_policy_ratio": "previous logprobs are the current ones whenever that is true",
    "disable_ppo_ratio (REINFORCE)": "no REINFORCE",
    "kl k1 beta 0.1 on_policy_approx=True": "the KL estimator is k3",
    "kl k1 beta 0.1 on_policy_approx=False": "the KL estimator is k3",
    "kl k2 beta 0.1 on_policy_approx=True": "the KL estimator is k3",
    "kl k2 beta 0.1 on_policy_approx=False": "the KL estimator is k3",
    "kl k3 seq-level": "the loss is normalised over tokens",
}
"""Variants that NeMo RL computes and that no job can ask for, with the reason."""


MICRO_BATCHES = "micro-batches 1+2+3 (losses and mean metrics add up to the whole batch)"


def test_every_variant_is_either_checked_or_out_of_reach():
    variants = {case["variant"] for case in LOSS["cases"]}
    assert set(NO_SETTING) < variants
    assert len(variants - set(NO_SETTING)) == 16
    assert len(k3_cases_with_our_clamps()) == 4


def cases():
    """(id, config, rows or None for all, global token count, expected loss, metrics and gradient or None)."""
    for case in LOSS["cases"]:
        name, size = f"{case['inputs']}-{case['variant']}", round(case["global_valid_toks"])
        if case["variant"] == MICRO_BATCHES:
            for part in case["parts"]:
                yield name, case["inputs"], case["config"], slice(*part["rows"]), size, part
        elif case["variant"] not in NO_SETTING:
            yield name, case["inputs"], case["config"], slice(None), size, case


def settings(config):
    return LossSettings(
        ratio_clip_min=config["ratio_clip_min"],
        ratio_clip_max=config["ratio_clip_max"],
        ratio_clip_c=config["ratio_clip_c"],
        ref_policy_kl_penalty=config["reference_policy_kl_penalty"],
        use_on_policy_kl_approximation=config["use_on_policy_kl_approximation"],
        use_importance_sampling_correction=config["use_importance_sampling_correction"],
        truncated_importance_sampling_type=config["truncated_importance_sampling_type"],
        truncated_importance_sampling_ratio=config["truncated_importance_sampling_ratio"],
        truncated_importance_sampling_ratio_min=config["truncated_importance_sampling_ratio_min"],
    )


@pytest.mark.parametrize(("name", "inputs", "config", "rows", "size", "expected"), list(cases()))
def test_loss_gradient_and_statistics(name, inputs, config, rows, size, expected):
    given = {key: torch.tensor(value)[rows] for key, value in LOSS["inputs"][inputs].items()}
    curr = given["curr_logprobs"].requires_grad_()
    mask = (given["token_mask"][:, 1:] * given["sample_mask"][:, None]).bool()
    row_of_token = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    sequences, sequence_of_token = row_of_token.unique(return_inverse=True)
    loss, statistics = policy_loss(
        curr[mask],
        previous_T=given["prev_logprobs"][:, 1:][mask],
        sampler_T=given["generation_logprobs"][:, 1:][mask],
        reference_T=given["reference_policy_logprobs"][:, 1:][mask],
        advantages_T=given["advantages"][:, 1:][mask],
        sequence_T=sequence_of_token,
        num_sequences=len(sequences),
        global_num_tokens=size,
        entropies_T=torch.zeros(int(mask.sum())),
        settings=settings(config),
    )
    assert loss.item() == pytest.approx(expected["loss"], rel=2e-5, abs=1e-6)
    if "grad_curr_logprobs" in expected:
        loss.backward()
        torch.testing.assert_close(curr.grad, torch.tensor(expected["grad_curr_logprobs"]), rtol=2e-5, atol=1e-6)
    metrics = expected["metrics"]
    sums = dict(zip(SUM_NAMES, statistics.sums.tolist(), strict=True))
    for name in TOKEN_MEANS:
        if name != "entropy":  # not one of NeMo RL's
            assert sums[name] / size == pytest.approx(metrics[name], rel=2e-5, abs=1e-6), name
    values = loss_values(statistics)
    assert values["loss"] == pytest.approx(metrics["loss"], rel=2e-5, abs=1e-6)
    assert values["global_valid_seqs"] == metrics["num_valid_samples"]
    assert values.get("is_oob_ratio") == pytest.approx(metrics.get("is_oob_ratio"), abs=1e-6)
    for name in ("probs_ratio_min", "probs_ratio_max", "probs_ratio_clamped_min", "probs_ratio_clamped_max"):
        assert values[name] == pytest.approx(metrics[name], rel=1e-5), name


def k3_cases_with_our_clamps():
    ours = ("k3", KL_INPUT_CLAMP, KL_OUTPUT_CLAMP)
    return [case for case in KL["cases"] if (case["kl_type"], case["input_clamp"], case["output_clamp"]) == ours]


@pytest.mark.parametrize("case", k3_cases_with_our_clamps(), ids=lambda case: case["name"])
def test_k3_divergence(case):
    now, reference = torch.tensor(case["logprobs"]), torch.tensor(case["logprobs_reference"])
    weights = torch.tensor(case["weights"]) if "weights" in case else torch.ones_like(now)
    estimate = k3_divergence(now, reference, weights_T=weights)
    torch.testing.assert_close(estimate, torch.tensor(case["out"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", json.loads((VECTORS / "seq_logprob_error.json").read_text())["cases"])
def test_sequence_errors(case):
    """Per-sequence errors equal NeMo RL's. We report them; no job can set the threshold that drops sequences."""
    given = {name: torch.tensor(case[name]) for name in ("token_mask", "prev_logprobs", "generation_logprobs")}
    mask = (given["token_mask"] * torch.tensor(case["sample_mask"])[:, None]).bool()
    mask[:, 0] = False
    row_of_token = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    previous = given["prev_logprobs"][mask]
    _, statistics = policy_loss(
        previous,
        previous_T=previous,
        sampler_T=given["generation_logprobs"][mask],
        reference_T=None,
        advantages_T=torch.zeros_like(previous),
        sequence_T=row_of_token.unique(return_inverse=True)[1],
        num_sequences=len(row_of_token.unique()),
        global_num_tokens=len(previous),
        entropies_T=torch.zeros_like(previous),
        settings=settings(LOSS["cases"][0]["config"]),
    )
    values = loss_values(statistics)
    for name in ("min_seq_mult_prob_error", "mean_seq_mult_prob_error", "max_seq_mult_prob_error"):
        assert values[name] == pytest.approx(case["metrics"][name], rel=1e-5), name
