"""What each metric means: the text behind ``grpo explain METRIC``. No imports beyond the standard library.

Names are without their prefix (``train_``, ``val_``). ``x/*`` stands for the statistics of a distribution, ``<agent>``,
``<key>`` and ``<phase>`` for names that a run brings. In formulas gen, prev and curr are the log-probability of a
sampled token: the sampler's, the trainer's before the step, the trainer's now; k3(d) = exp(d) - 1 - d.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricDoc:
    """One metric, explained.

    Example:
        MetricDoc(meaning="Share of responses that ended at a length cap.", formula="truncated / scored rollouts",
                  denominator="scored rollouts of the step", healthy="below 0.1 and not rising", action="raise ...")
    """

    meaning: str
    formula: str
    denominator: str
    healthy: str
    action: str
    """What to do when it leaves the healthy range."""


def _doc(meaning: str, formula: str, denominator: str, healthy: str, action: str) -> MetricDoc:
    return MetricDoc(meaning=meaning, formula=formula, denominator=denominator, healthy=healthy, action=action)


_SCORED = "scored rollouts: those sampled that did not fail"
_TOKENS = "trained tokens of the optimizer step; the mean over its optimizer steps when a step has several"
_NOTHING = "nothing to do"
_NOT_A_GOAL = "informative only"

ROLLOUTS: dict[str, MetricDoc] = {
    "num_failed": _doc(
        "Rollouts without a reward: server errors, timeouts, missing or NaN rewards.",
        "count", "none", "0", "read the reasons: grpo rollouts RUN_DIR --failed, and the environment's log"),
    "failed_share": _doc(
        "Share of rollouts that failed. They belong to no reward, baseline or other metric.",
        "failed / all rollouts", "all rollouts sampled", "below 0.02; the run stops above engine.max_failed_share",
        "read the reasons: grpo rollouts RUN_DIR --failed, and the environment's log"),
    "truncation_rate": _doc(
        "Share of responses that ended at a length cap, as the sampler says. Rising truncation is a common reason why "
        "reward stops improving.",
        "truncated / scored rollouts", _SCORED, "below 0.1 and not rising",
        "raise training.max_new_tokens or max_seq_length; training.reward_shaping penalises length, "
        "training.overlong_filtering takes cut responses out of the loss"),
    "natural_termination_rate": _doc(
        "Share of responses that the model ended by itself.",
        "1 - truncation_rate", _SCORED, "above 0.9", "see truncation_rate"),
    "mean_gen_tokens_per_sample": _doc(
        "Tokens sampled for a response, over all its turns.",
        "mean of gen_tokens", _SCORED, "steady, or growing with the reward",
        "growing without the reward: penalise length with training.reward_shaping"),
    "gen_tokens_per_sample/*": _doc(
        "Tokens sampled for a response, over all its turns.",
        "sum of sampled tokens over turns", _SCORED, "max below training.max_new_tokens", "see truncation_rate"),
    "total_tokens_per_sample/*": _doc(
        "Longest context of a rollout: prompt, responses and observations.",
        "max over turns of prompt + sampled tokens", _SCORED, "max below training.max_seq_length",
        "raise training.max_seq_length, or shorten the prompts"),
    "turns_per_sample/*": _doc(
        "Model calls of a rollout. NeMo RL counts user messages instead.",
        "number of model calls", _SCORED, "above 1 for environments with tools or several turns",
        "at 1 with tools: check model.tool_call_parser; at the agent's limit: raise training.max_rollout_turns"),
    "max_gen_tokens_per_turn/*": _doc(
        "Longest single response of a rollout.",
        "max over turns of sampled tokens", _SCORED, "below training.max_new_tokens", "see truncation_rate"),
    "total_reward/*": _doc(
        "The environment's reward, before scaling and shaping. On a 0/1 reward, stddev follows from the mean and the "
        "quartiles are 0 or 1: read the mean alone.",
        "reward of verify()", _SCORED, "mean rising; p25 and p75 apart",
        "flat: see baseline_reward/pct_mixed; all at one end: change the difficulty of the rows"),
    "<agent>/reward/*": _doc(
        "The environment's reward of the rows that one Gym agent ran.",
        "reward of verify()", "scored rollouts of that agent", "mean rising for every agent",
        "one agent stuck: its rows are too hard or too easy, or its verify() is wrong"),
    "<agent>/<key>/*": _doc(
        "A numeric field that the environment's verify() returned besides the reward.",
        "as the environment defines it", "scored rollouts of that agent that carry the field", _NOT_A_GOAL, _NOTHING),
}  # fmt: skip
"""Metrics of training and validation alike."""

TRAINING: dict[str, MetricDoc] = {
    "reward": _doc(
        "Mean reward of the step's rollouts after scaling and shaping: the headline. With dynamic sampling it covers "
        "every rollout sampled, so that filtering cannot flatter it.",
        "mean(reward after scaling and shaping)", _SCORED, "rising over tens of steps; noisy from step to step",
        "flat: read baseline_reward/pct_mixed, truncation_rate and failed_share before changing the learning rate"),
    "filtered_reward": _doc(
        "Mean reward of the rollouts that dynamic sampling kept.",
        "mean(reward after scaling and shaping)", "scored rollouts of kept groups", _NOT_A_GOAL,
        "judge progress by reward: groups are kept for their spread, which holds this near the middle"),
    "dynamic_sampling_num_gen_batches": _doc(
        "Batches sampled until the step had enough groups whose rewards differ.",
        "count", "none", "1 or 2",
        "many: rows are too easy or too hard; raise training.batch_multiplier or change the rows"),
    "dynamic_sampling_num_discarded_valid_samples": _doc(
        "Scored rollouts of groups with spread that were sampled beyond what the step needs.",
        "count", "none", "small against rollouts_per_step", "lower training.batch_multiplier"),
    "mean_prompt_length": _doc(
        "Tokens of the prompt of a rollout's first turn.",
        "mean over rollouts", _SCORED, "as in the dataset", "grpo check --tokens shows lengths before a run"),
    "total_num_tokens": _doc(
        "Tokens of the trained rollouts, prompts included.",
        "sum of total_tokens", "none", _NOT_A_GOAL, _NOTHING),
    "baseline_reward/pct_0": _doc(
        "Share of groups in which every response scored 0. Unlike NeMo RL, which counts rollouts by their baseline.",
        "100 * groups with all raw rewards 0 / groups", "groups with a scored rollout", "falling",
        "high: rows are too hard; start from easier ones or give partial credit"),
    "baseline_reward/pct_1": _doc(
        "Share of groups in which every response scored 1. Unlike NeMo RL, which counts rollouts by their baseline.",
        "100 * groups with all raw rewards 1 / groups", "groups with a scored rollout", "rising as the task is learnt",
        "high from the start: rows are too easy"),
    "baseline_reward/pct_mixed": _doc(
        "Share of groups whose responses scored differently. Only they carry a gradient: near 0 there is nothing left "
        "to learn from. The rest to 100, beside pct_0 and pct_1, is groups alike at another value.",
        "100 * groups with deviation >= 1e-6 / groups", "groups with a scored rollout", "above 20",
        "more responses (training.num_generations_per_prompt), a finer reward, rows of other difficulty, "
        "training.use_dynamic_sampling"),
    "advantages/mean": _doc(
        "Mean advantage of a sampled token, after clipping.",
        "sum_i A_i n_i / sum_i n_i, n_i tokens of rollout i",
        "sampled tokens of scored rollouts in trained groups, those of overlong filtering too",
        "near 0; above: better responses are longer; below: they are shorter", _NOTHING),
    "advantages/sum": _doc(
        "Sum of advantages over sampled tokens. NeMo RL sums over the padded matrix, before clipping.",
        "sum_i A_i n_i", "none", _NOT_A_GOAL, _NOTHING),
    "advantages/max": _doc(
        "Largest advantage, after clipping.", "max_i A_i", "none",
        "below sqrt(training.num_generations_per_prompt) when normalised", "clip with training.advantage_clip_high"),
    "advantages/min": _doc(
        "Smallest advantage, after clipping.", "min_i A_i", "none",
        "above -sqrt(training.num_generations_per_prompt) when normalised", "clip with training.advantage_clip_low"),
    "loss": _doc(
        "The clipped surrogate plus the KL penalty. It oscillates about 0 and says nothing about the run's quality.",
        "sum over tokens / trained tokens", _TOKENS, "finite", "judge by reward, not by loss"),
    "global_valid_toks": _doc(
        "Trained tokens of an optimizer step.", "count", "optimizer steps of the step", "steady",
        "falling with training.overlong_filtering: see truncation_rate"),
    "global_valid_seqs": _doc(
        "Token sequences with trained tokens in an optimizer step. A rollout gives one, or several when its turns do "
        "not continue each other.",
        "count", "optimizer steps of the step", "near training.batch_size", "falling: see failed_share"),
    "probs_ratio": _doc(
        "Probability ratio of the current to the pre-update policy; exactly 1 when a step has one optimizer step.",
        "mean(exp(curr - prev))", _TOKENS, "0.95 to 1.05",
        "lower training.learning_rate, or take fewer optimizer steps per step"),
    "probs_ratio_min": _doc(
        "Smallest probability ratio of a token.", "min(exp(curr - prev))", "none", "above 0.1", "see probs_ratio"),
    "probs_ratio_max": _doc(
        "Largest probability ratio of a token.", "max(exp(curr - prev))", "none", "below 10", "see probs_ratio"),
    "probs_ratio_clamped": _doc(
        "Probability ratio after clipping; apart from probs_ratio by what was clipped.",
        "mean(clamp(exp(curr - prev), 1 - clip_min, 1 + clip_max))", _TOKENS, "near probs_ratio", "see probs_ratio"),
    "probs_ratio_clamped_min": _doc(
        "Smallest clipped ratio; at 1 - training.ratio_clip_min when the clip acts.",
        "min(clamp(ratio))", "none", _NOT_A_GOAL, _NOTHING),
    "probs_ratio_clamped_max": _doc(
        "Largest clipped ratio; at 1 + training.ratio_clip_max when the clip acts.",
        "max(clamp(ratio))", "none", _NOT_A_GOAL, _NOTHING),
    "kl_penalty": _doc(
        "Estimated KL divergence from the reference policy, before its coefficient; 0 when the penalty is off.",
        "mean(v * k3(reference - curr)), v = exp(curr - gen) or 1, clamped to +-10", _TOKENS, "below 0.1",
        "raise training.ref_policy_kl_penalty or lower training.learning_rate"),
    "token_mult_prob_error": _doc(
        "How far sampler and trainer disagree on a sampled token: the factor between their probabilities.",
        "mean(exp(abs(gen - prev)))", _TOKENS, "1.00 to 1.06 in bfloat16, near 1.001 in float32",
        "rising: sampler and trainer hold different weights, precision or sampling settings; from 1.1 on use "
        "training.truncated_importance_sampling_type"),
    "gen_kl_error": _doc(
        "KL divergence of the trainer from the sampler on the sampled tokens.",
        "mean(k3(prev - gen))", _TOKENS, "below 0.005", "see token_mult_prob_error"),
    "policy_kl_error": _doc(
        "KL divergence of the sampler from the trainer on the sampled tokens.",
        "mean(k3(gen - prev))", _TOKENS, "below 0.005", "see token_mult_prob_error"),
    "js_divergence_error": _doc(
        "Jensen-Shannon divergence of sampler and trainer on the sampled tokens.",
        "mean(k3(prev - mix) + k3(gen - mix)) / 2, mix = log(exp(prev)/2 + exp(gen)/2)", _TOKENS, "below 0.002",
        "see token_mult_prob_error"),
    "sampling_importance_ratio": _doc(
        "Importance weight that corrects for the difference of sampler and trainer, after truncation.",
        "mean(exp(prev - gen))", _TOKENS, "0.98 to 1.02",
        "away from 1: see token_mult_prob_error; far below 1 with icepop or seq-mask-tis: see is_oob_ratio"),
    "approx_entropy": _doc(
        "Entropy of the policy estimated from the sampled tokens alone.",
        "-mean(exp(curr - gen) * curr)", _TOKENS, "falling slowly, not to 0",
        "collapsing: raise training.temperature or ratio_clip_max, lower training.learning_rate"),
    "entropy": _doc(
        "Entropy of the sampling distribution at the sampled positions, exact, in nats.",
        "mean(-sum_v p_v log p_v)", _TOKENS, "falling slowly, not to 0", "see approx_entropy"),
    "mean_seq_mult_prob_error": _doc(
        "token_mult_prob_error of a sequence, averaged over sequences.",
        "mean over sequences of mean(exp(abs(gen - prev)))", "sequences with trained tokens", "1.00 to 1.06",
        "see token_mult_prob_error"),
    "min_seq_mult_prob_error": _doc(
        "token_mult_prob_error of the sequence where it is smallest.",
        "min over sequences", "none", _NOT_A_GOAL, _NOTHING),
    "max_seq_mult_prob_error": _doc(
        "token_mult_prob_error of the sequence where it is largest: one broken sequence shows here first.",
        "max over sequences", "none", "below 1.5",
        "a single outlier: look for that response with grpo rollouts; many: see token_mult_prob_error"),
    "is_oob_ratio": _doc(
        "Share of importance weights outside the truncation range; only with truncated importance sampling.",
        "outside / all tokens (tis, icepop) or sequences (seq-mask-tis)", "trained tokens or sequences", "below 0.05",
        "widen training.truncated_importance_sampling_ratio, or see token_mult_prob_error"),
    "grad_norm": _doc(
        "Norm of the whole gradient at the last optimizer step, before clipping.",
        "sqrt(sum of squares)", "none", "steady; spikes are clipped to training.max_grad_norm",
        "growing: lower training.learning_rate; exactly 0: no group had spread"),
    "router_aux_loss": _doc(
        "Load-balancing loss of a mixture of experts, before training.router_aux_loss_coef; no part of loss.",
        "experts × sum over experts of share of assignments × mean router probability", "tokens × layers",
        "near the experts per token, where all are used alike",
        "rising: raise training.router_aux_loss_coef"),
    "lr": _doc("Learning rate of the step.", "see training.optimizer_type", "none", "as scheduled", _NOTHING),
    "padding_share": _doc(
        "Share of the token positions of forward passes that hold padding.",
        "1 - tokens / positions", "token positions of all micro-batches", "below 0.12 dynamic, 0.02 packed",
        "training.batching_strategy: sequence_packing; or a larger training.train_mb_tokens"),
    "peak_memory_bytes": _doc(
        "Highest memory use of a rank so far: GPU memory, or resident memory on a CPU.",
        "max over ranks", "none", "below what the device has",
        "lower training.train_mb_tokens, set training.activation_checkpointing"),
}  # fmt: skip

VALIDATION: dict[str, MetricDoc] = {
    "accuracy": _doc(
        "Mean reward of the validation pass. The name is NeMo RL's; it is no accuracy in the classifier's sense.",
        "mean(raw reward), without scaling or shaping", "scored validation rollouts", "rising with train_reward",
        "falling while train_reward rises: the policy exploits the reward or overfits the rows"),
    "avg_length": _doc(
        "Tokens sampled for a validation response.",
        "mean over rollouts", "scored validation rollouts", "as in training", "see truncation_rate"),
}  # fmt: skip

PHASES: dict[str, str] = {
    "total_step_time": "Wall clock of the step, everything included.",
    "generation": "Sampling and scoring the rollouts.",
    "advantage_calculation": "Rewards to advantages.",
    "training_prep": "Laying samples out in micro-batches.",
    "policy_training": "Forward, backward and optimizer.",
    "weight_sync": "New weights to the sampler.",
    "validation": "The validation pass.",
    "checkpointing": "Writing a checkpoint.",
}

PERFORMANCE: dict[str, MetricDoc] = {
    "samples_per_sec": _doc(
        "Rollouts per second of the whole step.", "rollouts sampled / total_step_time", "seconds", "steady", _NOTHING),
    "tokens_per_sec": _doc(
        "Tokens of trained rollouts, prompts included, per second of the whole step.",
        "train_total_num_tokens / total_step_time", "seconds", "steady", "see which phase of train_timing grew"),
    "generation_tokens_per_sec": _doc(
        "Tokens sampled per second of generation; environment time counts.",
        "sampled tokens / generation seconds", "seconds", "steady",
        "low: a slow verify() keeps the sampler idle; grpo rollouts RUN_DIR shows the time of each rollout"),
    "policy_training_tokens_per_sec": _doc(
        "Tokens of trained rollouts, prompts included, per second of training.",
        "train_total_num_tokens / policy_training seconds", "seconds", "steady",
        "low: see train_padding_share and training.train_mb_tokens"),
}  # fmt: skip

STATISTICS: dict[str, str] = {
    "mean": "mean",
    "max": "largest",
    "min": "smallest",
    "median": "median",
    "stddev": "standard deviation (n - 1); left out for a single value",
    "p25": "25th percentile (nearest rank)",
    "p75": "75th percentile (nearest rank)",
    "p95": "95th percentile (nearest rank)",
    "p99": "99th percentile (nearest rank)",
}
