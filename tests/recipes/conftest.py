"""An installed NeMo Gym, for code that runs inside it."""

import asyncio
import os
from pathlib import Path

import pytest

from gym_bridge.install import GymEnvironment, gym_environment
from gym_bridge.versions import gym_version


@pytest.fixture(scope="session")
def gym() -> GymEnvironment:
    cache = Path(os.environ.get("GRPO_CACHE") or "~/.cache/grpo-launcher").expanduser()
    return asyncio.run(gym_environment(gym_version("0.4.0"), cache=cache, timeout_s=600, on_progress=print))
