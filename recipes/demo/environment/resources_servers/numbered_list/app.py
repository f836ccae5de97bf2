"""A reward: how well does a response follow "write a numbered list of N things"?

NeMo Gym sends each finished response to ``verify``, together with the dataset row that asked for it. To make an
environment of your own, copy this folder, declare in ``VerifyRequest`` the row keys you need, and return a reward:

* Grade. GRPO learns from differences inside a group of responses to one prompt. A reward with steps between 0 and 1
  tells responses apart where pass or fail would call all of them equal.
* Leave no gap. What scores well gets trained: without the penalty for surplus lines, endless lists would win.
* Return numbers that explain the reward as further fields: they are kept with each rollout.
"""

import re

from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer

ITEM = re.compile(r"(\d+)\. \S{1,20}(?: \S{1,20}){0,2}")
"""``3. bald eagle``: a number, then one to three short words and nothing else."""

SURPLUS_PENALTY = 0.5
"""What a line too many costs, measured in right lines."""


class VerifyRequest(BaseVerifyRequest):
    """The response to score and, beside it, every key of its dataset row."""

    num_items: int


class VerifyResponse(BaseVerifyResponse):
    num_right_lines: int
    num_surplus_lines: int


class NumberedListServer(SimpleResourcesServer):
    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        lines = [line.strip() for line in text_of(body).splitlines() if line.strip()]
        num_right = min(count_right(lines), body.num_items)
        num_surplus = max(0, len(lines) - body.num_items)
        return VerifyResponse(
            **body.model_dump(),
            reward=max(0.0, (num_right - SURPLUS_PENALTY * num_surplus) / body.num_items),
            num_right_lines=num_right,
            num_surplus_lines=num_surplus,
        )


def text_of(body: BaseVerifyRequest) -> str:
    """All text the model wrote; a response is a list of items, of which only messages hold text."""
    messages = [item for item in body.response.output if item.type == "message"]
    return "".join(part.text for message in messages for part in message.content if part.type == "output_text")


def count_right(lines: list[str]) -> int:
    """How many lines are list items that carry their own line number."""
    items = [ITEM.fullmatch(line) for line in lines]
    return sum(item is not None and int(item[1]) == number for number, item in enumerate(items, start=1))


if __name__ == "__main__":
    NumberedListServer.run_webserver()
