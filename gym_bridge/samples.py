"""``Rollout`` --> the token sequences that are trained. Pure.

    turn 1:  prompt 1 | sampled 1
    turn 2:  prompt 1 | sampled 1 | tool output | sampled 2      continues turn 1 token for token: one sample
    mask:        0    |     1     |      0      |     1

A later prompt need not continue what was sampled: a chat template drops earlier reasoning, an agent compacts its
history, and text that is tokenised anew can split differently. Then the turns before and after become samples of their
own. That is exact, because each turn holds the very prompt the model saw; only the work of the shared beginning is done
twice.
"""

from collections.abc import Sequence

from gym_bridge.types import Rollout, TrainSample, Turn


def train_samples(rollout: Rollout) -> tuple[TrainSample, ...]:
    """The samples of a scored rollout, in order; each sampled token is trained in exactly one.

    Example:
        turns (prompt 1 2, sampled 3 4) and (prompt 1 2 3 4 5, sampled 6) give the tokens 1 2 3 4 5 6, mask 0 0 1 1 0 1
    """
    assert rollout.failure is None, "a failed rollout is not trained"
    return tuple(_sample(rollout, turns) for turns in continuous_turns(rollout.turns))


def continuous_turns(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Group the turns so that within a group each prompt begins with all tokens before it."""
    groups: list[list[Turn]] = []
    for turn in turns:
        before = groups[-1][-1] if groups else None
        seen = before.prompt_token_ids + before.token_ids if before else None
        if seen is not None and turn.prompt_token_ids[: len(seen)] == seen:
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return groups


def _sample(rollout: Rollout, turns: Sequence[Turn]) -> TrainSample:
    token_ids: list[int] = []
    loss_mask: list[int] = []
    logprobs: list[float] = []
    for turn in turns:
        given = turn.prompt_token_ids[len(token_ids) :]
        token_ids += [*given, *turn.token_ids]
        loss_mask += [0] * len(given) + [1] * len(turn.token_ids)
        logprobs += [0.0] * len(given) + list(turn.logprobs)
    return TrainSample(
        group_id=rollout.group_id,
        rollout_id=rollout.rollout_id,
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        logprobs=tuple(logprobs),
        truncated=rollout.truncated,
    )
