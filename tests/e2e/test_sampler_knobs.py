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

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

CHANGES: dict[str, float] = {"temperature": 0.7, "top_k": 20, "max_new_tokens": 16}
JUDGED_TOKENS = 20
"""Rank up to which tokens are looked at to tell the temperature: they are sampled with and without top_k."""
ROUNDING = 10
"""Ranks that a token may lie beyond top_k: the sampler's logits are bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What tokens say of the distribution they were drawn from, against the model's own logits."""

    temperature: float
    """The likeliest."""
    largest_rank: int
    """Of a sampled token among all tokens, likeliest first, from 1."""
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
    likeliest, logits_of_sampled, ranks = [], [], []
    for turn in (turn for rollout in rollouts for turn in rollout.turns):
        tokens = torch.tensor([turn.prompt_token_ids + turn.token_ids])
        logits = model(tokens, logits_to_keep=len(turn.token_ids) + 1).logits[0, :-1]
        sampled = logits.gather(1, torch.tensor(turn.token_ids)[:, None])
        likeliest.append(logits.topk(JUDGED_TOKENS).values)
        logits_of_sampled.append(sampled)
        ranks.append((logits > sampled).sum(1) + 1)
    rank = torch.cat(ranks)
    judged = rank <= JUDGED_TOKENS
    top, sampled = torch.cat(likeliest)[judged], torch.cat(logits_of_sampled)[judged]
    temperatures = torch.linspace(0.3, 2.0, 171)
    likelihoods = torch.stack([(sampled[:, 0] / t - (top / t).logsumexp(1)).mean() for t in temperatures])
    return Observed(
        temperature=float(temperatures[likelihoods.argmax()]),
        largest_rank=int(rank.max()),
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
    assert found.temperature == pytest.approx(sampling.temperature, abs=0.13)
    assert (found.largest_rank <= JUDGED_TOKENS + ROUNDING) == (sampling.top_k is not None)
    assert (found.longest <= CHANGES["max_new_tokens"]) == (setting == "max_new_tokens")
    assert found.cut_off_at == {sampling.max_new_tokens}
    assert [r.turns[0].prompt_token_ids for r in rollouts] == [
        r.turns[0].prompt_token_ids for r in untrained_rollouts()
    ]
