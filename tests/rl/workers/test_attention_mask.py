import torch

from rl.workers.policy import attention_mask


def test_responses_see_their_prompt_and_themselves_only() -> None:
    documents = torch.tensor([[0, 0, 0, 0, 1, -1]])
    segments = torch.tensor([[0, 1, 1, 2, 0, 0]])
    mask = attention_mask(documents, segments)
    assert mask.shape == (1, 1, 6, 6)
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0],  # the second response does not see the first
        [0, 0, 0, 0, 1, 0],  # nor another document
        [0, 0, 0, 0, 0, 1],  # padding sees itself, so that softmax has something to normalise
    ]
