"""What the bridge adds to a rollout beyond Gym's own time: a fast environment, a policy that answers at once.

    .venv/bin/python benchmarks/bridge.py [--rollouts 1000] [--in-flight 256] [--rounds 3]

The same rows go to the same running servers from Gym's own client, in Gym's Python, and from ours, in turns. Wall clock
is mostly the servers'; the processor time of either client is its own.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from gym_bridge.client import GymClient
from gym_bridge.install import GymEnvironment, gym_environment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.rows import run_request
from gym_bridge.servers import GymServers
from gym_bridge.types import RolloutRequest
from gym_bridge.versions import DEFAULT_GYM_VERSION, gym_version
from launcher.environment.package import load_package
from launcher.schema.sampling import Sampling
from rl.model_files import cache_folder

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "recipes" / "demo"
BOUND_MS = 5.0
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64)

POLICY = """
import asyncio
from tests.gym_bridge.fake_policy import fake_policy

async def serve():
    async with fake_policy(lambda _: "1. red\\n2. blue\\n3. green and yellow\\n4. black, and more") as policy:
        print(policy.base_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(serve())
"""

GYM_S_CLIENT = """
import asyncio, json, sys, time
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, set_global_aiohttp_client
from omegaconf import DictConfig

asked = json.load(sys.stdin)

class Helper(RolloutCollectionHelper):
    def setup_server_client(self, head_server_config=None):
        return ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=9), global_config_dict=DictConfig(asked["servers"]))

async def collect():
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    wall, processor = time.monotonic(), time.process_time()
    rewards = []
    for future in Helper().run_examples(asked["rows"], semaphore=asyncio.Semaphore(asked["in_flight"])):
        row, result = await future
        rewards.append(result["reward"])
    print(json.dumps([len(rewards), time.monotonic() - wall, time.process_time() - processor]))

asyncio.run(collect())
"""  # noqa: E501

type Cost = tuple[float, float]
"""Milliseconds per rollout: wall clock, processor time of the client."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1000, help="each time (1000)")
    parser.add_argument("--in-flight", type=int, default=256, help="at a time (256)")
    parser.add_argument("--rounds", type=int, default=3, help="of each client, after one that warms up (3)")
    options = parser.parse_args()
    rounds = asyncio.run(measure(options.rollouts, options.in_flight, options.rounds))
    gym, ours = ([median(cost[i] for cost in costs) for i in (0, 1)] for costs in zip(*rounds, strict=True))
    print(f"{platform.machine()}, {os.cpu_count()} cores; {options.rollouts} rollouts, {options.in_flight} in flight")
    print("milliseconds per rollout     wall clock   processor time of the client")
    print(f"  Gym's own client           {gym[0]:10.2f}   {gym[1]:10.2f}")
    print(f"  the bridge                 {ours[0]:10.2f}   {ours[1]:10.2f}")
    print(f"  added (bound {BOUND_MS:g})            {ours[0] - gym[0]:10.2f}   {ours[1] - gym[1]:10.2f}")


async def measure(num_rollouts: int, in_flight: int, num_rounds: int) -> list[tuple[Cost, Cost]]:
    """(Gym's client, ours) of each round."""
    cache = cache_folder()
    gym = await gym_environment(gym_version(DEFAULT_GYM_VERSION), cache=cache, timeout_s=900, on_progress=print)
    lines = (DEMO / "dataset" / "training.jsonl").read_text().splitlines()
    requests = [
        RolloutRequest(group_id=i, rollout_id=0, row_index=i, row=json.loads(lines[i % len(lines)]))
        for i in range(num_rollouts)
    ]
    with tempfile.TemporaryDirectory() as logs, policy_at_once() as base_url:
        servers = await GymServers.start(
            load_package(DEMO / "environment"),
            PolicyEndpoint(base_url=base_url, api_key="none", model="policy"),
            gym=gym, sampling=SAMPLING, cache=cache, log_folder=Path(logs), on_progress=print,
        )  # fmt: skip
        async with servers:
            rounds = [
                (
                    await of_gym_s_client(gym, servers, requests, in_flight, Path(logs)),
                    await of_the_bridge(servers, requests, in_flight),
                )
                for _ in range(num_rounds + 1)
            ]
    return rounds[1:]


@contextmanager
def policy_at_once() -> Iterator[str]:
    """The tests' fake policy, in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", POLICY], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def of_the_bridge(servers: GymServers, requests: Sequence[RolloutRequest], in_flight: int) -> Cost:
    client = GymClient(servers.agents, sampling=SAMPLING, find_call=lambda _: None, watch=servers.watch)
    wall, processor = time.monotonic(), time.process_time()
    rollouts = client.rollouts(requests, max_in_flight=in_flight, timeout_s=120, policy_version=0)
    failures = [rollout.failure async for rollout in rollouts]
    assert failures == [None] * len(requests)
    return per_rollout(len(requests), time.monotonic() - wall, time.process_time() - processor)


async def of_gym_s_client(
    gym: GymEnvironment, servers: GymServers, requests: Sequence[RolloutRequest], in_flight: int, work: Path
) -> Cost:
    asked = {
        "rows": [run_request(request, SAMPLING) for request in requests],
        "servers": {agent: config_of(url) for agent, url in servers.agents.items()},
        "in_flight": in_flight,
    }
    process = await asyncio.create_subprocess_exec(
        str(gym.python), "-c", GYM_S_CLIENT, cwd=work, env=os.environ | {"PYTHONPYCACHEPREFIX": str(gym.bytecode)},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    answer, _ = await process.communicate(json.dumps(asked).encode())
    num_rollouts, wall_s, processor_s = json.loads(answer.splitlines()[-1])
    assert num_rollouts == len(requests)
    return per_rollout(num_rollouts, wall_s, processor_s)


def config_of(url: str) -> dict[str, Any]:
    """A server as Gym's client looks it up."""
    host, port = url.removeprefix("http://").split(":")
    return {"responses_api_agents": {"any": {"host": host, "port": int(port)}}}


def per_rollout(num_rollouts: int, *seconds: float) -> Cost:
    wall, processor = (1000 * each / num_rollouts for each in seconds)
    return wall, processor


if __name__ == "__main__":
    main()
