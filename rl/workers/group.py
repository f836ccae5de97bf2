"""The policy as the driver sees it: one Ray actor per rank, called together.

PolicyGroup.start --> ranks load the model, join a process group (gloo on a CPU, NCCL on GPUs)
           .train --> every rank gets its micro-batches, all step together
           .write_weights / .export --> rank 0 writes what all ranks gather
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError, RayTaskError

from gym_bridge.ports import free_port
from launcher.schema.problems import RunFailed
from rl.actor_output import last_words
from rl.gpus import gpu_variables
from rl.workers.batch import RankBatch
from rl.workers.rank import PolicyRank
from rl.workers.settings import RankSettings
from rl.workers.step import RankResult, StepResult, joined_results

START_TIMEOUT_S = 600.0


class PolicyGroup:
    """All ranks of the policy. ``async with await PolicyGroup.start(...) as policy`` ends them whatever happens."""

    def __init__(
        self, ranks: Sequence[Any], *, tensor_parallel_size: int, log_files: Sequence[Path], pids: Sequence[int]
    ):
        self._ranks = ranks
        self._tensor_parallel_size = tensor_parallel_size
        self._log_files = log_files
        self.pids = pids

    @classmethod
    async def start(cls, settings: RankSettings, *, num_ranks: int, log_folder: Path, gpus: Sequence[str] = ()) -> Self:
        """Start the ranks and load the model into them.

        Args:
            settings: the same for every rank.
            num_ranks: processes; each gets its share of the cores on a CPU, a GPU of its own otherwise.
            log_folder: gets ``policy-rank-<n>.log``.
            gpus: one per rank, as CUDA_VISIBLE_DEVICES names them; none on a CPU.

        Raises:
            RunFailed: a rank could not start; the message holds its own cause.
        """
        rendezvous = f"tcp://127.0.0.1:{free_port()}"
        threads = max(1, (os.cpu_count() or 1) // num_ranks)
        log_files = [log_folder / f"policy-rank-{rank}.log" for rank in range(num_ranks)]
        ranks: list[Any] = [
            ray.remote(PolicyRank)
            .options(num_cpus=0, runtime_env={"env_vars": gpu_variables(gpus[rank : rank + 1])})
            .remote(
                settings, rank=rank, num_ranks=num_ranks, rendezvous=rendezvous, num_threads=threads, log_file=log_file
            )
            for rank, log_file in enumerate(log_files)
        ]
        group = cls(ranks, tensor_parallel_size=settings.tensor_parallel_size, log_files=log_files, pids=())
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                group.pids = await group._all("pid")
        except TimeoutError:
            group.close()
            words = "\n".join(last_words(file) for file in log_files)
            raise RunFailed(f"the policy did not load within {START_TIMEOUT_S:.0f} s\n{words}") from None
        except BaseException:
            group.close()
            raise
        return group

    async def train(self, batches: Sequence[RankBatch], *, learning_rate: float) -> StepResult:
        """One optimizer step.

        Args:
            batches: the share of each data-parallel rank; all ranks of a tensor group get the same.
            learning_rate: for this step.
        """
        copies = self._tensor_parallel_size
        arguments = [(batch, learning_rate) for batch in batches for _ in range(copies)]
        results: list[RankResult] = await self._each("train", arguments)
        return joined_results(results, copies=copies)

    async def logprobs(self, batches: Sequence[RankBatch]) -> list[Any]:
        """Log-probabilities of the trained tokens under the current weights, per batch in micro-batch order."""
        copies = self._tensor_parallel_size
        return (await self._each("logprobs", [(batch,) for batch in batches for _ in range(copies)]))[::copies]

    async def write_weights(self, folder: Path) -> None:
        """Write the current weights, in the sampler's precision, into ``folder``, or send them to the sampler."""
        await self._all("write_weights", folder)

    async def export(self, folder: Path) -> None:
        """Write a model folder that transformers and vLLM load: weights, config, tokenizer, chat template."""
        await self._all("export", folder)

    def close(self) -> None:
        """End all ranks at once."""
        for rank in self._ranks:
            ray.kill(rank)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return await self._each(method, [arguments] * len(self._ranks))

    async def _each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call every rank at once; the first that fails decides, with its own last words."""
        calls: list[Callable[..., Any]] = [getattr(rank, method).remote for rank in self._ranks]
        refs = [call(*args) for call, args in zip(calls, arguments, strict=True)]
        return list(await asyncio.gather(*(self._answer(rank, ref) for rank, ref in enumerate(refs))))

    async def _answer(self, rank: int, ref: Awaitable[Any]) -> Any:
        try:
            return await ref
        except RayTaskError as error:
            what = f"policy rank {rank} failed: {_first_line(error.cause)}"
        except RayError as error:  # the process is gone: killed, out of memory, or it could not be made
            what = f"policy rank {rank} died: {_first_line(error)}"
        raise RunFailed(f"{what}\n{last_words(self._log_files[rank])}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
