"""Small packages, written file by file, and a small package index on loopback."""

import ensurepip
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.environment.pure_wheel import pure_wheel

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


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Index:
    """A folder of files and the pages that list them, served on loopback."""

    def __init__(self, root: Path):
        self.root = root
        self.url = ""

    def add(self, name: str, content: bytes) -> None:
        project = name.split("-")[0].replace("_", "-").lower()
        page = self.root / "simple" / project / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        (page.parent / name).write_bytes(content)
        links = (
            f'<a href="{file.name}#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}">{file.name}</a><br>'
            for file in sorted(page.parent.iterdir())
            if file.name != "index.html"
        )
        page.write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


@contextmanager
def served_index(root: Path) -> Iterator[Index]:
    """An empty index in a folder that does not exist yet."""
    (root / "simple").mkdir(parents=True)
    index = Index(root)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        index.url = f"http://127.0.0.1:{server.server_port}/simple/"
        yield index
        server.shutdown()
        thread.join()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Has stand-ins under the names that both installs of a package ask for, and is the only index there is."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with served_index(tmp_path / "index") as index:
        for wheel in (
            pure_wheel("nemo-gym", "0.4.0", {"nemo_gym.py": ""}, requires=["fast", "ray[default]"]),
            pure_wheel("ray", "2.60.0", {"ray.py": ""}, requires=["dashboard; extra == 'default'"]),
            pure_wheel("ray", "2.61.0", {"ray.py": ""}),
            pure_wheel("openai", "2.7.2", {"openai.py": ""}),
            pure_wheel("dashboard", "1.0", {"dashboard.py": ""}),
            pure_wheel("fast", "1.0", {"fast.py": ""}, tag="cp313-cp313-manylinux_2_28_x86_64"),
            pure_wheel("fast", "1.0", {"fast.py": ""}, tag="cp313-cp313-manylinux_2_28_aarch64"),
        ):
            index.add(*wheel)
        (pip,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
        index.add(pip.name, pip.read_bytes())
        for name, value in (
            ("UV_DEFAULT_INDEX", index.url), ("UV_INDEX_URL", index.url), ("PIP_INDEX_URL", index.url),
            ("PIP_CONFIG_FILE", "/dev/null"), ("UV_CACHE_DIR", str(tmp_path / "uv")),
            ("UV_TOOL_DIR", str(tmp_path / "tools")), ("UV_NO_CONFIG", "1"),
        ):  # fmt: skip
            monkeypatch.setenv(name, value)
        yield index
