"""Small packages, written file by file."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

POLICY = """\
policy_model:
  responses_api_models:
    vllm_model:
      entrypoint: app.py
      base_url: ${policy_base_url}
      api_key: ${policy_api_key}
      model: ${policy_model_name}
      return_token_id_information: true
"""
SERVER = """\
lists:
  resources_servers:
    lists:
      entrypoint: app.py
      domain: instruction_following
lists_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: lists}
      model_server: {type: responses_api_models, name: policy_model}
"""
NATIVE = {
    "nemo-environment.yaml": """\
format: native-v1
config_paths:
  - responses_api_models/vllm_model/configs/policy_model.yaml
  - resources_servers/lists/configs/lists.yaml
metadata:
  name: lists
""",
    "responses_api_models/vllm_model/configs/policy_model.yaml": POLICY,
    "resources_servers/lists/configs/lists.yaml": SERVER,
    "resources_servers/lists/app.py": "print('hello')\n",
    "resources_servers/lists/requirements.txt": "# nothing\n",
}

Files = Mapping[str, str | bytes | None]
WritePackage = Callable[[Files], Path]


@pytest.fixture
def native(tmp_path: Path) -> WritePackage:
    """Write a right native-v1 package with some files changed, added or (None) left out."""

    def write(changes: Files) -> Path:
        root = tmp_path / "package"
        for path, content in {**NATIVE, **changes}.items():
            if content is None:
                continue
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return write
