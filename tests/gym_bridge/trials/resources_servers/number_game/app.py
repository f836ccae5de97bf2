"""A game of several turns: the model guesses a number, the environment answers higher or lower until it is found."""

import re

from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gymnasium import GymnasiumServer, extract_text


class NumberGameServer(GymnasiumServer):
    async def reset(self, metadata: dict, session_id: str | None = None) -> tuple[str | None, dict]:
        self.session_state[session_id] = 0
        return None, {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict, session_id: str | None = None
    ) -> tuple[str | None, float, bool, bool, dict]:
        """(what the model reads next, reward of this turn, found, given up, nothing)."""
        self.session_state[session_id] += 1
        secret = metadata["secret"]
        digits = re.findall(r"\d+", extract_text(action))
        if not digits:
            return "Answer with a number.", 0.0, False, False, {}
        guess = int(digits[0])
        if guess == secret:
            return None, 1.0 / self.session_state[session_id], True, False, {}
        return f"The number is {'higher' if guess < secret else 'lower'}. Guess again.", 0.0, False, False, {}


if __name__ == "__main__":
    NumberGameServer.run_webserver()
