import numpy as np
import pytest

from gym_bridge.types import TrainSample
from rl.batching import Unit
from rl.micro_batch import micro_batch


def sample(prompt: tuple[int, ...], response: tuple[int, ...], logprobs: tuple[float, ...]) -> TrainSample:
    return TrainSample(
        group_id=0,
        rollout_id=0,
        token_ids=prompt + response,
        loss_mask=(0,) * len(prompt) + (1,) * len(response),
        logprobs=(0.0,) * len(prompt) + logprobs,
        truncated=False,
    )


SAMPLES = [sample((1, 2, 3), (10, 11), (-0.1, -0.2)), sample((1, 2, 3), (20,), (-0.3,)), sample((5,), (6, 7), (-1, -2))]


def test_single_samples_are_padded_rows() -> None:
    rows = [
        [Unit(samples=(0,), num_prompt_tokens=3, num_tokens=5)],
        [Unit(samples=(2,), num_prompt_tokens=1, num_tokens=3)],
    ]
    batch = micro_batch(rows, SAMPLES, width=6)
    assert batch.token_ids.tolist() == [[1, 2, 3, 10, 11, 0], [5, 6, 7, 0, 0, 0]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 0, 0, -1], [0, 0, 0, -1, -1, -1]]
    assert not batch.segment_ids.any()
    assert batch.predict_from.tolist() == [2, 3, 6, 7]  # 10 is predicted by column 2 of row 0, 6 by column 0 of row 1
    assert batch.targets.tolist() == [10, 11, 6, 7]
    assert batch.samples.tolist() == [0, 0, 2, 2]
    assert batch.sampler_logprobs.tolist() == pytest.approx([-0.1, -0.2, -1, -2])
    assert batch.num_tokens == 8


def test_a_shared_prompt_is_laid_out_once_and_predicts_every_first_token() -> None:
    batch = micro_batch([[Unit(samples=(0, 1), num_prompt_tokens=3, num_tokens=6)]], SAMPLES, width=8)
    assert batch.token_ids[0].tolist() == [1, 2, 3, 10, 11, 20, 0, 0]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 3, 6, 7]  # the second response follows the prompt, too
    assert batch.segment_ids[0].tolist() == [0, 0, 0, 1, 1, 2, 0, 0]
    assert batch.predict_from.tolist() == [2, 3, 2]
    assert batch.targets.tolist() == [10, 11, 20]


def test_packed_units_are_documents_of_one_row() -> None:
    row = [Unit(samples=(2,), num_prompt_tokens=1, num_tokens=3), Unit(samples=(1,), num_prompt_tokens=3, num_tokens=4)]
    batch = micro_batch([row], SAMPLES, width=7)
    assert batch.token_ids[0].tolist() == [5, 6, 7, 1, 2, 3, 20]
    assert batch.document_ids[0].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert batch.predict_from.tolist() == [0, 1, 5]


def test_a_rank_without_units_gets_padding() -> None:
    batch = micro_batch([], SAMPLES, width=0)
    assert batch.token_ids.shape == (1, 1)
    assert batch.num_tokens == 0
    assert batch.targets.shape == (0,)


def test_observations_between_turns_are_not_trained() -> None:
    turns = TrainSample(
        group_id=0, rollout_id=0, token_ids=(1, 2, 3, 4, 5), loss_mask=(0, 1, 0, 0, 1), logprobs=(0, -1, 0, 0, -2),
        truncated=False,
    )  # fmt: skip
    batch = micro_batch([[Unit(samples=(0,), num_prompt_tokens=1, num_tokens=5)]], [turns], width=5)
    assert batch.predict_from.tolist() == [0, 3]
    assert batch.targets.tolist() == [2, 5]
    assert np.issubdtype(batch.token_ids.dtype, np.int64)
