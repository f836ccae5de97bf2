"""The sampler's settings on real rollouts: each job's own tokens, through NeMo Gym and vLLM, show what it asked for.

tests/rl/test_knobs.py has the same for the settings that act on rollouts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_bridge.types import Rollout
from launcher.schema.sampling import Sampling

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CHANGES: dict[str, float] = {"temperature": 0.7, "top_k": 20, "max_new_tokens": 16}
JUDGED_TOKENS = 20
"""Rank up to which tokens are looked at to tell the temperature: they are sampled with and without top_k."""
ROUNDING = 1.0
"""What a token may lie below the last of top_k, as a logit: the sampler's are bfloat16, to about 0.1."""
SIGMAS, BIAS = 5.0, 0.03
"""How far a temperature may lie from the sampler's: in standard errors, and what logits in bfloat16 and the grid of
temperatures add."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What tokens say of the distribution they were drawn from, against the model's own logits."""

    temperature: float
    """The likeliest."""
    temperature_error: float
    """Its standard error, from the Fisher information."""
    furthest: float
    """How far below the logit of the last judged token that of a sampled token lies, at most."""
    longest: int
    """Tokens of the longest response."""
    cut_off_at: set[int]
    """Lengths of the responses that are marked as truncated."""


@pytest.fixture(scope="module")
def model(demo_model_folder: Path) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(demo_model_folder, dtype=torch.float32)
    return loaded


@torch.no_grad()
def observed(rollouts: Sequence[Rollout], model: PreTrainedModel) -> Observed:
    likeliest, logits_of_sampled = [], []
    for turn in (turn for rollout in rollouts for turn in rollout.turns):
        tokens = torch.tensor([turn.prompt_token_ids + turn.token_ids])
        logits = model(tokens, logits_to_keep=len(turn.token_ids) + 1).logits[0, :-1]
        sampled = logits.gather(1, torch.tensor(turn.token_ids)[:, None])
        likeliest.append(logits.topk(JUDGED_TOKENS).values)
        logits_of_sampled.append(sampled)
    below = torch.cat(likeliest)[:, -1] - torch.cat(logits_of_sampled)[:, 0]
    judged = below <= 0
    top, sampled = torch.cat(likeliest)[judged], torch.cat(logits_of_sampled)[judged]
    temperatures = torch.linspace(0.3, 2.0, 171)
    likelihoods = torch.stack([(sampled[:, 0] / t - (top / t).logsumexp(1)).mean() for t in temperatures])
    temperature = float(temperatures[likelihoods.argmax()])
    probabilities = (top / temperature).softmax(1)
    variances = (probabilities * top.square()).sum(1) - (probabilities * top).sum(1).square()
    return Observed(
        temperature=temperature,
        temperature_error=temperature**2 / float(variances.sum()) ** 0.5,
        furthest=float(below.max()),
        longest=max(len(turn.token_ids) for rollout in rollouts for turn in rollout.turns),
        cut_off_at={len(turn.token_ids) for rollout in rollouts if rollout.truncated for turn in rollout.turns},
    )


def test_every_setting_of_the_sampler_is_changed() -> None:
    """``top_p`` is no setting of a job: it is 1 for all."""
    assert CHANGES.keys() == {field.name for field in fields(Sampling)} - {"top_p"}


@pytest.mark.parametrize("setting", [None, *CHANGES])
def test_a_setting_changes_what_it_should_and_nothing_else(
    setting: str | None, untrained_rollouts: Callable[..., list[Rollout]], demo_job: Callable[..., Any],
    model: PreTrainedModel,
) -> None:  # fmt: skip
    changed = {} if setting is None else {setting: CHANGES[setting]}
    sampling = demo_job(**changed).require_valid().sampling
    rollouts = untrained_rollouts(**changed)
    assert {rollout.failure for rollout in rollouts} == {None}
    found = observed(rollouts, model)
    assert found.temperature_error < 0.1, "too few tokens to tell temperatures apart"
    assert found.temperature == pytest.approx(sampling.temperature, abs=SIGMAS * found.temperature_error + BIAS)
    assert (found.furthest <= ROUNDING) == (sampling.top_k is not None)
    assert (found.longest <= CHANGES["max_new_tokens"]) == (setting == "max_new_tokens")
    assert found.cut_off_at <= {sampling.max_new_tokens}, "none need be cut off"
    assert [r.truncated for r in rollouts] == [r.turns[0].finish_reason == "length" for r in rollouts]
    ended = [turn for rollout in rollouts if not rollout.truncated for turn in rollout.turns]
    assert all(turn.token_ids[-1] == model.config.eos_token_id for turn in ended)
    assert [r.turns[0].prompt_token_ids for r in rollouts] == [
        r.turns[0].prompt_token_ids for r in untrained_rollouts()
    ]
