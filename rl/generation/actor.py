"""The process that hosts vLLM. Everything of vLLM is imported here and nowhere else."""

import asyncio
import functools
import json
import os
import socket
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launcher.schema.problems import RunFailed
from launcher.schema.sampling import Sampling
from rl.actor_output import redirect_output
from rl.generation.call_log import CallLog
from rl.generation.cpu_reload import CPU_KERNEL
from rl.generation.gateway import Gateway
from rl.generation.transfer import TransferStep, TransferTarget

SERVED_NAME = "policy"
"""What requests call the model."""
LARGEST_CPU_CACHE_BYTES = 4 * 2**30
CPU_BLOCK_TOKENS = 32
"""Prefixes are shared in whole blocks; vLLM's default on a CPU, 128, is longer than many prompts."""
CPU_WORKER = "rl.generation.cpu_kernels.CpuWorker"
"""A name: to import it is to import vLLM."""
CPU_KERNEL_OPERATIONS = ("rms_norm", "fused_add_rms_norm")
BACKLOG = 2048
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Bounds on an adapter's rank that vLLM knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSettings:
    """How vLLM runs.

    Example:
        GenerationSettings(model_folder=Path("model"), sampling=Sampling(...), device="cpu", dtype="bfloat16",
                           max_model_len=256, max_num_seqs=64, tensor_parallel_size=1, gpu_memory_utilization=0.5,
                           tool_call_parser=None, reasoning_parser=None, chat_template=None, trust_remote_code=False,
                           seed=42)
    """

    model_folder: Path
    sampling: Sampling
    device: Literal["cpu", "cuda"]
    dtype: Literal["bfloat16", "float32"]
    max_model_len: int
    """Tokens of prompt and response together."""
    max_num_seqs: int
    """Responses that are sampled at the same time."""
    tensor_parallel_size: int
    gpu_memory_utilization: float
    """Share of a GPU's memory that vLLM takes; on a CPU the cache is sized by sequences and their length."""
    tool_call_parser: str | None
    reasoning_parser: str | None
    chat_template: str | None
    trust_remote_code: bool
    seed: int
    config_overrides: dict[str, Any] = field(default_factory=dict)
    """Keys of the model's config to replace."""
    gpus: tuple[str, ...] = ()
    """One per tensor-parallel worker, as CUDA_VISIBLE_DEVICES names them; none on a CPU."""
    shares_gpus: bool = False
    """The policy trains on the same GPUs, so vLLM gives its memory back meanwhile."""
    lora_rank: int | None = None
    """New weights are adapters of this rank; None means whole models."""
    transfer: TransferTarget | None = None
    """How whole models come from GPU to GPU; None means through files."""


def _failing_plainly[**P, T](method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Raise whatever the method raises as ``RunFailed``.

    To read an exception of vLLM's own, the driver would have to import vLLM; and not all of them can be pickled.
    """

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            raise RunFailed(f"{type(error).__name__}: {error}") from None

    return call


class VllmActor:
    """A Ray async actor: one engine, one server on a free loopback port."""

    def __init__(self, settings: GenerationSettings, *, log_file: Path, call_file: Path):
        redirect_output(log_file)
        if os.getpgid(0) != os.getpid():
            os.setpgid(0, 0)  # one process group, so that what vLLM starts can be ended with this process
        self._settings = settings
        self._call_log = CallLog(call_file)
        self._num_aborted = 0
        self._asleep = False  # vLLM's is_sleeping() is also true of an engine that is only paused

    @_failing_plainly
    async def open_port(self) -> tuple[int, str]:
        """Listen on a free loopback port; gives (this process, base URL). Requests wait there until ``serve``."""
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(BACKLOG)
        return os.getpid(), f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    @_failing_plainly
    async def import_vllm(self) -> None:
        """Import vLLM: most of the time that a start takes."""
        import vllm.entrypoints.launchers.api_server.app_state
        import vllm.entrypoints.launchers.app
        import vllm.entrypoints.launchers.cli_args
        import vllm.v1.engine.async_llm  # noqa: F401

    @_failing_plainly
    async def load(self) -> None:
        """Start the engine core and its workers, which load the model."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM

        parser = make_arg_parser(FlexibleArgumentParser())  # type: ignore[no-untyped-call]
        self._arguments = parser.parse_args(vllm_arguments(self._settings))
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(self._arguments))

    @_failing_plainly
    async def serve(self, api_key: str) -> None:
        """Answer on the port: vLLM's OpenAI app behind the gateway."""
        import uvicorn
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app

        tasks = await self._engine.get_supported_tasks()
        app = build_app(self._arguments, supported_tasks=tasks, model_config=self._engine.model_config)
        await init_app_state(self._engine, app.state, self._arguments, supported_tasks=tasks)
        self._models = app.state.openai_serving_models
        self._gateway = Gateway(
            app, model=SERVED_NAME, sampling=self._settings.sampling, api_key=api_key, call_log=self._call_log
        )
        config = uvicorn.Config(self._gateway, log_level="warning", lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        app.state.server = server  # without it vLLM's error handler fails and hides the error
        self._serving = asyncio.create_task(server.serve(sockets=[self._listener]))

    async def pids(self) -> dict[str, int]:
        """This process and vLLM's below it, by name."""
        import psutil

        children = psutil.Process().children(recursive=True)
        return {"actor": os.getpid(), **{f"{child.name()}-{child.pid}": child.pid for child in children}}

    @_failing_plainly
    async def sleep(self) -> None:
        """Give GPU memory back; the next weights wake vLLM up."""
        self._num_aborted += self._gateway.in_flight
        await self._engine.sleep(level=1, mode="abort")
        self._asleep = True

    @_failing_plainly
    async def transfer(self, step: TransferStep, payload: Any = None) -> None:
        """What the policy's rank 0 calls while it sends weights directly; ``take_weights`` comes after that."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        match step:
            case "init":
                await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=payload))
            case "start":
                await self._stop_sampling()
                await self._engine.start_weight_update()
            case "update":
                await self._engine.update_weights(WeightTransferUpdateRequest(update_info=payload))
            case "finish":
                await self._engine.finish_weight_update()

    @_failing_plainly
    async def take_weights(self, folder: Path | None, policy_version: int) -> int:
        """Sample from new weights from now on.

        The loop does this when every rollout is back. What is in flight then belongs to rollouts that were given up;
        it is aborted, so that no call is sampled by two policies.

        Args:
            folder: a model's safetensors, or an adapter; None when they have come by ``transfer``.
            policy_version: their name.

        Returns:
            Number of model calls that were aborted.
        """
        if folder is not None:
            await self._stop_sampling()
            if self._settings.lora_rank is None:
                method = "reload_all_weights" if self._settings.device == "cpu" else "reload_weights"
                await self._engine.collective_rpc(method, kwargs={"weights_path": str(folder)})
            else:
                await self._load_adapter(folder, f"{SERVED_NAME}-{policy_version}")
        await self._engine.reset_prefix_cache()  # cached keys and values are the old policy's
        self._gateway.policy_version = policy_version
        if self._asleep:
            await self._engine.wake_up(["kv_cache"])
            self._asleep = False
        await self._engine.resume_generation()
        num_aborted, self._num_aborted = self._num_aborted, 0
        return num_aborted

    async def _stop_sampling(self) -> None:
        self._num_aborted += self._gateway.in_flight
        await self._engine.pause_generation(mode="abort")
        if self._asleep:  # waking what does not sleep would let it sample again
            await self._engine.wake_up(["weights"])

    async def _load_adapter(self, folder: Path, name: str) -> None:
        """Answer requests for the policy with an adapter from now on, and forget the one before it."""
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest

        previous = self._gateway.model
        if previous != SERVED_NAME:
            await self._models.unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=previous))
        answer = await self._models.load_lora_adapter(LoadLoRAAdapterRequest(lora_name=name, lora_path=str(folder)))
        if isinstance(answer, ErrorResponse):
            raise RuntimeError(answer.error.message)
        self._gateway.model = name

    @_failing_plainly
    async def check_health(self) -> None:
        """Raise when the engine is dead."""
        await self._engine.check_health()
        if self._serving.done():
            self._serving.result()
            raise RuntimeError("vLLM's server has ended")


def vllm_arguments(settings: GenerationSettings) -> list[str]:
    """vLLM's command line for these settings."""
    arguments = [
        f"--model={settings.model_folder}",
        f"--served-model-name={SERVED_NAME}",
        "--host=127.0.0.1",
        f"--dtype={settings.dtype}",
        f"--max-model-len={settings.max_model_len}",
        f"--max-num-seqs={settings.max_num_seqs}",
        f"--tensor-parallel-size={settings.tensor_parallel_size}",
        f"--seed={settings.seed}",
        "--generation-config=vllm",  # a model's own would fill in sampling values in silence
        "--logprobs-mode=processed_logprobs",  # of the distribution that tokens were drawn from
        "--disable-log-stats",
        "--disable-fastapi-docs",
    ]
    if settings.device == "cuda":
        arguments.append(f"--gpu-memory-utilization={settings.gpu_memory_utilization}")
        if settings.shares_gpus:
            arguments.append("--enable-sleep-mode")
    else:
        arguments.append("--enforce-eager")  # compiling costs more than it saves on models that a CPU can train
        arguments.append(f"--kv-cache-memory-bytes={cpu_cache_bytes(settings)}")
        arguments.append(f"--block-size={CPU_BLOCK_TOKENS}")
        arguments.append(f"--worker-extension-cls={CPU_WORKER}")
        arguments.append(f"--ir-op-priority={json.dumps({name: [CPU_KERNEL] for name in CPU_KERNEL_OPERATIONS})}")
        if settings.tensor_parallel_size == 1:
            # The model in the engine's own process: a third of the imports less, and no polling between processes.
            arguments.append("--distributed-executor-backend=uni")
    if settings.transfer is not None:
        arguments.append(f"--weight-transfer-config={json.dumps({'backend': settings.transfer.backend})}")
    if settings.lora_rank is not None:
        bound = next(rank for rank in ADAPTER_RANKS if rank >= settings.lora_rank)
        arguments += ["--enable-lora", "--max-loras=1", f"--max-lora-rank={bound}"]
    if settings.tool_call_parser:
        arguments += ["--enable-auto-tool-choice", f"--tool-call-parser={settings.tool_call_parser}"]
    if settings.reasoning_parser:
        arguments.append(f"--reasoning-parser={settings.reasoning_parser}")
    if settings.chat_template:
        arguments.append(f"--chat-template={settings.chat_template}")
    if settings.trust_remote_code:
        arguments.append("--trust-remote-code")
    if settings.config_overrides:
        arguments.append(f"--hf-overrides={json.dumps(settings.config_overrides)}")
    return arguments


def cpu_cache_bytes(settings: GenerationSettings) -> int:
    """Key and value cache on a CPU: room for every sequence at full length, within bounds.

    2 (keys, values) x layers x key-value heads x head size x bytes per value x tokens.
    """
    config = json.loads((settings.model_folder / "config.json").read_text())
    config = config.get("text_config", config)
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    width = config.get("num_key_value_heads", heads) * head_size
    bytes_per_value = 4 if settings.dtype == "float32" else 2
    per_token = 2 * config["num_hidden_layers"] * width * bytes_per_value
    wanted: int = per_token * settings.max_model_len * settings.max_num_seqs
    return min(max(wanted, 256 * 2**20), LARGEST_CPU_CACHE_BYTES)
