"""A whole run: build the parts, run the loop, close them. Reads as a table of contents.

train      model folder -> Ray -> (policy | vLLM and Gym, side by side) -> TrainingLoop -> export -> summary
evaluate   model folder -> Ray -> vLLM and Gym -> (adapter) -> rollouts
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from gym_bridge.types import Rollout, RolloutRequest
from launcher.dataset import find_dataset, read_rows
from launcher.device import find_device
from launcher.references import resolve_reference
from launcher.run_directory import RunDirectory
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import LauncherError, Problem
from rl.adapter import write_merged_model
from rl.cluster import ray_cluster
from rl.data import group_requests
from rl.display import Display, Say, open_display
from rl.generation.live import LiveSource
from rl.generation.transfer import TransferTarget
from rl.generation.weights import weights_folder
from rl.gpus import GpuLayout, gpu_layout, visible_gpus
from rl.loop import Rows, TrainingLoop
from rl.model_files import cache_folder, model_folder
from rl.report import Report
from rl.settings import generation_settings, gym_settings, loop_settings, rank_settings, weight_transfer
from rl.tasks import all_of, first_of
from rl.trackers import Trackers
from rl.workers.group import PolicyGroup

type Split = Literal["validation", "training"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a run finds before it starts anything."""

    device: Literal["cpu", "cuda"]
    gpus: GpuLayout
    model: Path
    """Local folder of the model."""
    hidden_size: int
    model_bytes: int
    """Size of its weight files."""


async def train(job: JobConfig, plan: RunPlan, run: RunDirectory) -> None:
    """Train a checked job into its run directory.

    Raises:
        RunFailed: a part could not start, or died; the message holds its own last words.
        LauncherError: something the user gave turned out wrong only now.
    """
    with (
        open_display() as display,
        Report(run, plan, display, backend="local", health=job.health, trackers=_trackers(job, plan, run)) as report,
    ):
        rows = load_rows(job)
        machine = await _machine(job, plan, display, num_ranks=plan.num_ranks)
        transfer = weight_transfer(plan, machine.gpus)
        async with _ray(job, machine, display) as scratch, AsyncExitStack() as parts:
            source, policy = await all_of(
                parts.enter_async_context(_source(job, plan, machine, transfer, run.logs, scratch, display)),
                parts.enter_async_context(_policy(job, plan, machine, transfer, run.logs, display)),
            )
            weights = parts.enter_context(weights_folder(machine.model_bytes, fallback=scratch))
            loop = TrainingLoop(
                loop_settings(job, plan, hidden_size=machine.hidden_size),
                rows=rows, source=source, policy=policy, report=report, weights_folder=weights,
            )  # fmt: skip
            await first_of(loop.run(), source.watch())
            with display.phase("exporting the model"):
                await policy.export(run.export)


async def evaluate(
    job: JobConfig,
    plan: RunPlan,
    *,
    adapter: Path | None,
    logs: Path,
    num_samples: int,
    max_rows: int | None,
    split: Split | None,
) -> list[Rollout]:
    """Sample ``num_samples`` responses to each distinct row and score them.

    Args:
        job: names model, environment and rows.
        plan: its plan.
        adapter: folder of an exported adapter of that model to sample with; None takes the model itself.
        logs: folder for the logs of vLLM and Gym.
        num_samples: responses per row.
        max_rows: only the first rows; None takes all.
        split: which rows; None is validation when there is one.
    """
    with open_display() as display:
        rows = load_rows(job)
        chosen = rows.validation if split == "validation" or (split is None and rows.validation) else rows.training
        indices = distinct_rows(chosen)[:max_rows]
        machine = await _machine(job, plan, display, num_ranks=0)
        async with (
            _ray(job, machine, display) as scratch,
            _source(job, plan, machine, None, logs, scratch, display) as source,
        ):
            if adapter is not None:
                with display.phase("loading the adapter"):
                    await _load_adapter(source, adapter, machine, scratch, dtype=job.model.dtype)
            requests = group_requests(chosen, indices, num_generations=num_samples)
            with display.phase(f"sampling {len(requests)} rollouts") as say:
                return await first_of(_collected(source, requests, say), source.watch())


def _trackers(job: JobConfig, plan: RunPlan, run: RunDirectory) -> Trackers:
    name = f"{plan.run_name}-{run.path.name}"
    return Trackers(
        job.logger,
        folder=run.path,
        run_id=name,
        run_name=name,
        job=yaml.safe_load((run.path / "config.yaml").read_text()),
    )


def load_rows(job: JobConfig) -> Rows:
    """All rows of the dataset."""
    files = find_dataset(resolve_reference("dataset", job.dataset).local_path())
    return Rows(
        training=[row for _, row in read_rows(files.training)],
        validation=[row for _, row in read_rows(files.validation)] if files.validation else [],
    )


def distinct_rows(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Index of the first of each set of equal rows (a validation file repeats rows to sample them often)."""
    first: dict[str, int] = {}
    for index, row in enumerate(rows):
        first.setdefault(json.dumps(row, sort_keys=True), index)
    return list(first.values())


async def _load_adapter(
    source: LiveSource, adapter: Path, machine: Machine, scratch: Path, *, dtype: Literal["bfloat16", "float32"]
) -> None:
    """Give the sampler an exported adapter as a training step does: itself on a GPU, merged into the model on a CPU."""
    if machine.device == "cuda":
        await source.update_weights(adapter, policy_version=1)
        return
    with weights_folder(machine.model_bytes, fallback=scratch) as folder:
        await asyncio.to_thread(write_merged_model, machine.model, adapter, folder, dtype=dtype)
        await source.update_weights(folder, policy_version=1)


async def _collected(source: LiveSource, requests: Sequence[RolloutRequest], say: Say) -> list[Rollout]:
    rollouts = []
    async for rollout in source.collect(requests):
        rollouts.append(rollout)
        say(f"{len(rollouts)} done")
    return rollouts


async def _machine(job: JobConfig, plan: RunPlan, display: Display, *, num_ranks: int) -> Machine:
    """Find the device, and the model's files (converted or fetched the first time)."""
    with display.phase("finding the model") as say:
        reference = resolve_reference("model", job.model.name)
        name = reference.text if reference.is_model_source else str(reference.local_path())
        folder = await asyncio.to_thread(model_folder, name, cache=cache_folder(), on_progress=say)
    device = find_device(job.cluster.device)
    if device is None:
        raise LauncherError([Problem(
            code="no-device", path="cluster.device", message="cuda is wanted and this machine shows no CUDA device",
            fix="set cluster.device=cpu, or run on a machine with a GPU",
        )])  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    return Machine(
        device=device.kind,
        gpus=gpu_layout(
            visible_gpus(device.count) if device.kind == "cuda" else (),
            num_ranks=num_ranks,
            num_sampler_workers=plan.vllm_tensor_parallel_size,
        ),
        model=folder,
        hidden_size=config.get("text_config", config)["hidden_size"],
        model_bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
    )


@asynccontextmanager
async def _ray(job: JobConfig, machine: Machine, display: Display) -> AsyncIterator[Path]:
    cluster = ray_cluster(address=job.cluster.address)
    with display.phase("starting Ray"):
        scratch = await cluster.__aenter__()
    try:
        yield scratch
    finally:
        await cluster.__aexit__(None, None, None)


@asynccontextmanager
async def _source(
    job: JobConfig, plan: RunPlan, machine: Machine, transfer: TransferTarget | None, logs: Path, scratch: Path,
    display: Display,
) -> AsyncIterator[LiveSource]:  # fmt: skip
    package = resolve_reference("environment", job.environment.name).local_path()
    source = await LiveSource.start(
        generation_settings(
            job, plan, model_folder=machine.model, device=machine.device, gpus=machine.gpus, transfer=transfer
        ),
        gym_settings(job, package=package, cache=cache_folder()),
        log_folder=logs, scratch=scratch, display=display,
    )  # fmt: skip
    async with source:
        yield source


@asynccontextmanager
async def _policy(
    job: JobConfig, plan: RunPlan, machine: Machine, transfer: TransferTarget | None, logs: Path, display: Display
) -> AsyncIterator[PolicyGroup]:
    settings = rank_settings(job, plan, model_folder=machine.model, device=machine.device, transfer=transfer)
    with display.phase("loading the policy"):
        policy = await PolicyGroup.start(settings, num_ranks=plan.num_ranks, log_folder=logs, gpus=machine.gpus.policy)
    async with policy:
        yield policy
