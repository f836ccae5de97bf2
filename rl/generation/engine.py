"""vLLM as the driver sees it: an actor with its async engine and its own OpenAI app behind the gateway.

VllmEngine.launch, .load --> VllmActor (engine core and workers are its children) --> http://127.0.0.1:<port>/v1
          .update_weights --> pause, reload from a folder, forget cached prefixes, resume
          .watch --> raises when the actor or its engine dies
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import ray
from ray.exceptions import RayActorError, RayTaskError

from gym_bridge.types import CallRecord
from launcher.schema.problems import RunFailed
from rl.actor_output import last_words
from rl.generation.actor import SERVED_NAME, GenerationSettings, VllmActor
from rl.generation.call_log import CallLogReader
from rl.gpus import gpu_variables
from rl.process_group import end_process_group, is_alive, wait_for_end

START_TIMEOUT_S = 600.0
"""Bound on each phase of a start."""
SYNC_TIMEOUT_S = 300.0
KILL_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 60.0
WATCH_INTERVAL_S = 2.0

logger = logging.getLogger(__name__)


class VllmEngine:
    """A running vLLM. ``async with await VllmEngine.launch(...)`` ends it whatever happens."""

    model_name = SERVED_NAME

    def __init__(self, settings: GenerationSettings, actor: Any, *, api_key: str, log_file: Path, calls: CallLogReader):
        self._settings = settings
        self._actor = actor
        self._log_file = log_file
        self._calls = calls
        self.api_key = api_key
        """Only requests that carry it are answered."""
        self.base_url = ""
        """OpenAI-compatible, with /v1."""
        self.pids: Mapping[str, int] = {}
        """``actor`` and vLLM's own processes below it."""

    @classmethod
    async def launch(cls, settings: GenerationSettings, *, log_folder: Path, scratch: Path) -> Self:
        """Start vLLM's process and open its port; ``load`` does the rest. Requests before that wait for their answer.

        Args:
            settings: how it runs.
            log_folder: gets ``vllm.log``.
            scratch: folder for temporary files of the run.

        Raises:
            RunFailed: the process did not start.
        """
        log_file = (log_folder / "vllm.log").resolve()
        call_file = scratch / f"calls-{secrets.token_hex(4)}.jsonl"
        api_key = secrets.token_urlsafe(24)
        actor: Any = ray.remote(VllmActor).options(
            num_cpus=0, max_concurrency=16, name=settings.transfer.actor_name if settings.transfer else None,
            runtime_env={"env_vars": actor_variables(settings)},
        ).remote(settings, log_file=log_file, call_file=call_file)  # fmt: skip
        engine = cls(settings, actor, api_key=api_key, log_file=log_file, calls=CallLogReader(call_file))
        try:
            pid, engine.base_url = await engine._answer(actor.open_port.remote(), timeout_s=START_TIMEOUT_S)
            engine.pids = {"actor": pid}
        except BaseException:
            await engine.close()
            raise
        return engine

    async def load(self, on_progress: Callable[[str], None]) -> None:
        """Load the model and answer requests.

        Args:
            on_progress: told in a few words what vLLM is doing.

        Raises:
            RunFailed: vLLM did not start; the message holds its own last output.
        """
        actor = self._actor
        on_progress("importing vLLM")
        await self._answer(actor.import_vllm.remote(), timeout_s=START_TIMEOUT_S)
        on_progress("loading the model")
        await self._answer(actor.load.remote(), timeout_s=START_TIMEOUT_S)
        on_progress("opening the server")
        await self._answer(actor.serve.remote(self.api_key), timeout_s=START_TIMEOUT_S)
        self.pids = await self._answer(actor.pids.remote(), timeout_s=START_TIMEOUT_S)

    def find_call(self, token_ids: Sequence[int]) -> CallRecord | None:
        """What the gateway recorded of the model call that sampled these tokens."""
        return self._calls.find(token_ids)

    async def sleep(self) -> None:
        """Give GPU memory back until the next weights come; does nothing where nobody else needs it."""
        if self._settings.shares_gpus:
            await self._answer(self._actor.sleep.remote(), timeout_s=SYNC_TIMEOUT_S)

    async def update_weights(self, folder: Path, *, policy_version: int) -> None:
        """Sample from new weights from now on. Model calls in flight are aborted.

        Args:
            folder: a model's safetensors, or an adapter; not read when the policy has sent its weights directly.
            policy_version: their name.

        Raises:
            RunFailed: vLLM could not load them.
        """
        update = self._actor.take_weights.remote(None if self._settings.transfer else folder, policy_version)
        if num_aborted := await self._answer(update, timeout_s=SYNC_TIMEOUT_S):
            logger.warning("%d model calls outlived their rollouts and were aborted", num_aborted)
        self._calls.forget()

    async def watch(self) -> NoReturn:
        """Wait for as long as vLLM lives.

        Raises:
            RunFailed: it died, or does not answer any more; the message holds its last output.
        """
        while True:
            await self._answer(self._actor.check_health.remote(), timeout_s=HEALTH_TIMEOUT_S)
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def close(self) -> None:
        """End vLLM and all its processes at once; bounded."""
        ray.kill(self._actor)
        if "actor" in self.pids:
            # Ray prints a warning over the run's own output when an actor dies before it has told it to.
            await wait_for_end(self.pids["actor"], timeout_s=KILL_TIMEOUT_S)
            await end_process_group(self.pids["actor"], timeout_s=STOP_TIMEOUT_S)
        self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _answer(self, ref: Any, *, timeout_s: float) -> Any:
        """The result of a call to the actor, or its failure with its own last output."""
        try:
            async with asyncio.timeout(timeout_s):
                return await ref
        except TimeoutError:
            raise self._failure(f"vLLM did not answer within {timeout_s:.0f} s") from None
        except RayActorError:
            raise self._failure("the vLLM actor died") from None
        except RayTaskError as error:
            raise self._failure(f"vLLM failed: {_first_line(error.cause)}") from None

    def _failure(self, what: str) -> RunFailed:
        gone = [f"{name} (pid {pid})" for name, pid in self.pids.items() if not is_alive(pid)]
        gone_words = f"; gone: {', '.join(gone)}" if gone else ""
        return RunFailed(f"{what}{gone_words}\n{last_words(self._log_file)}")


def actor_variables(settings: GenerationSettings) -> dict[str, str]:
    """Environment of the actor and its children."""
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **gpu_variables(settings.gpus)}
    if settings.transfer is not None and settings.transfer.backend == "ipc":
        variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # handles of GPU memory travel pickled
    if settings.device == "cpu":
        variables["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"  # vLLM leaves a core to others; ours are idle while it samples
        variables["TORCH_COMPILE_DISABLE"] = "1"  # one small function of the sampler: 20 s for the first token, and g++
        num_workers = settings.tensor_parallel_size
        threads = max(len(os.sched_getaffinity(0)) // num_workers, 1)
        variables["OMP_NUM_THREADS"] = str(threads)  # Ray says 1 to actors without CPUs
        if num_workers == 1:
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # allows the executor that vllm_arguments asks for
        else:
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # vLLM would want a NUMA node for each worker
    return variables


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
