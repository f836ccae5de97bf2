"""What tests that start a NeMo Gym of their own share: the start, small packages, and a look for what is left over."""

import json
import os
import time
from pathlib import Path
from typing import Any

from gym_bridge.install import GymEnvironment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.servers import GymServers
from gym_bridge.session import session_processes
from launcher.environment.package import load_package
from launcher.schema.sampling import Sampling

SAMPLING = Sampling(temperature=0.7, top_p=1.0, top_k=None, max_new_tokens=64)
NOWHERE = PolicyEndpoint(base_url="http://127.0.0.1:9/v1", api_key="none", model="policy")
NO_SESSION = -1
LEFT_S = 15.0
"""Within which the processes of a Gym that has ended must be gone."""


def left_behind(mark: str) -> list[str]:
    """The command lines of marked processes that are still there after ``LEFT_S``."""
    deadline = time.monotonic() + LEFT_S
    while (pids := set(session_processes(NO_SESSION, mark=mark)) - {os.getpid()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids]


async def start(package: Path, gym: GymEnvironment, tmp_path: Path, **options: Any) -> GymServers:
    defaults: dict[str, Any] = {"cache": tmp_path / "cache", "log_folder": tmp_path / "logs", "on_progress": print}
    return await GymServers.start(
        load_package(package), options.pop("policy", NOWHERE), gym=gym, sampling=SAMPLING,
        pass_variables=["GRPO_TEST"], **defaults | options,
    )  # fmt: skip


def package_of(tmp_path: Path, config: dict[str, Any], *, implementation: str = "mine") -> Path:
    """A package with one config file and the (empty) code of one resources server."""
    package = tmp_path / "package"
    server = package / "resources_servers" / implementation
    server.mkdir(parents=True, exist_ok=True)
    for name in ("app.py", "requirements.txt"):
        (server / name).touch()
    (server / "mine.yaml").write_text(json.dumps(config))
    manifest = {
        "format": "native-v1",
        "config_paths": [f"resources_servers/{implementation}/mine.yaml"],
        "metadata": {"name": "mine"},
    }
    (package / "nemo-environment.yaml").write_text(json.dumps(manifest))
    return package


def mine(*, implementation: str = "mine", **settings: Any) -> dict[str, Any]:
    """The config of one resources server, ``mine``."""
    return {"mine": {"resources_servers": {implementation: {"entrypoint": "app.py", "domain": "math", **settings}}}}
