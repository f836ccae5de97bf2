"""The Ray cluster that NeMo RL runs on: joined, or started on this machine, and known to have the GPUs that are asked.

Everything here runs in the checkout's own Python, because a cluster and its driver need the same Ray.
"""

import asyncio
import json
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gym_bridge.ports import free_port
from launcher.schema.problems import LauncherError, Problem, RunFailed
from rl.nemo_rl.checkout import Checkout
from rl.nemo_rl.outcome import plain_lines
from rl.nemo_rl.processes import ended, running

PROBE_TIMEOUT_S = 180.0
START_TIMEOUT_S = 180.0

_PROBE = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
alive = [node for node in ray.nodes() if node["Alive"]]
nodes = [{"name": node["NodeManagerHostname"], "gpus": int(node["Resources"].get("GPU", 0))} for node in alive]
print("NODES " + json.dumps(nodes))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A machine of the cluster.

    Example:
        Node(name="gpu-17", num_gpus=8)
    """

    name: str
    num_gpus: int


@asynccontextmanager
async def started_cluster(
    checkout: Checkout, uv: Path, *, environment: Mapping[str, str], output: Path
) -> AsyncIterator[str]:
    """A Ray head on this machine's loopback while the block runs.

    Args:
        checkout: whose Ray is started.
        uv: the uv program.
        environment: variables of its processes, ``cluster_secret`` among them.
        output: file for what it prints.

    Yields:
        Its address.

    Raises:
        RunFailed: it did not come up.
    """
    # Ray's sockets lie under this folder, and the path of a socket may not exceed 107 characters.
    temporary = Path(tempfile.mkdtemp(prefix="grpo-ray-", dir="/tmp"))
    address = f"127.0.0.1:{free_port()}"
    command = checkout.command(
        uv, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={address.rpartition(':')[2]}", f"--temp-dir={temporary}",
        "--include-dashboard=false", "--disable-usage-stats",
    )  # fmt: skip
    try:
        async with running(command, environment=environment, folder=checkout.root, output=output) as head:
            await _wait_for_port(address, head, output)
            yield address
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cluster_secret() -> dict[str, str]:
    """Variables with which a new cluster answers those alone that hold them."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


async def cluster_nodes(
    checkout: Checkout, uv: Path, address: str, *, environment: Mapping[str, str], output: Path
) -> list[Node]:
    """The machines of a cluster.

    Args:
        checkout: whose Ray asks.
        uv: the uv program.
        address: HOST:PORT.
        environment: variables of the process that asks.
        output: file for what it prints.

    Raises:
        LauncherError: no cluster answers at that address.
    """
    try:
        _connect(address)  # Ray itself would try for minutes
    except (OSError, ValueError) as error:
        raise _cannot_join(address, str(error)) from None
    start = output.stat().st_size if output.exists() else 0
    command = checkout.command(uv, "-c", _PROBE, address)
    async with running(command, environment=environment, folder=checkout.root, output=output) as probe:
        status = await ended(probe, timeout_s=PROBE_TIMEOUT_S)
    lines = plain_lines(output.read_bytes()[start:].decode(errors="replace"))
    answer = next((line for line in lines if line.startswith("NODES ")), None)
    if answer is None:
        late = f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        raise _cannot_join(address, late if status is None else next(iter(reversed(lines)), "it said nothing"))
    return [Node(name=node["name"], num_gpus=node["gpus"]) for node in json.loads(answer.removeprefix("NODES "))]


def too_few_gpus(nodes: Sequence[Node], *, num_nodes: int, num_gpus_per_node: int) -> Problem | None:
    """Why a job of that size does not fit the cluster."""
    if sum(node.num_gpus >= num_gpus_per_node for node in nodes) >= num_nodes:
        return None
    has = ", ".join(f"{node.name} {node.num_gpus}" for node in nodes) or "no nodes"
    return Problem(
        code="ray-cluster",
        path="training.parallelism",
        message=f"{num_nodes} nodes with {num_gpus_per_node} GPUs are asked for; GPUs of the cluster's nodes: {has}",
        fix="lower training.parallelism.num_nodes or num_gpus_per_node, or add nodes to the cluster",
    )


def _cannot_join(address: str, why: str) -> LauncherError:
    message = f"the Ray cluster at {address} cannot be joined: {why}"
    fix = "start Ray from the NeMo RL checkout on every node (ray start), and set cluster.address=HOST:PORT of its head"
    return LauncherError([Problem(code="ray-cluster", path="cluster.address", message=message, fix=fix)])


def _connect(address: str) -> None:
    """Open and close a connection.

    Raises:
        OSError: nobody listens there.
        ValueError: that is no HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5.0).close()


async def _wait_for_port(address: str, head: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if head.poll() is not None:
            last_words = "\n".join(plain_lines(output.read_text(errors="replace"))[-5:])
            raise RunFailed(f"Ray did not start (status {head.returncode}):\n{last_words}")
        try:
            _connect(address)
            return
        except OSError:
            await asyncio.sleep(0.2)
    raise RunFailed(f"Ray did not start within {START_TIMEOUT_S:.0f} s; its output is in {output}")
