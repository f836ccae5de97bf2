"""A job on NeMo RL, from the checkout to the exported model.

checkout -> its Python environment -> Ray cluster (joined or started) -> enough GPUs? -> the script, followed:
    output -> logs/nemo_rl.log      event files -> metrics.jsonl      exit status, last words -> success or a cause
-> the best checkpoint -> export/
"""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.run_directory import RunDirectory
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from launcher.schema.problems import LauncherError, Problem, RunFailed
from rl.nemo_rl.checkout import SCRIPT, Checkout
from rl.nemo_rl.checkpoints import Checkpoint, best_checkpoint, export_checkpoint
from rl.nemo_rl.cluster import cluster_nodes, cluster_secret, started_cluster, too_few_gpus
from rl.nemo_rl.config import RunFiles, master_config
from rl.nemo_rl.metrics import EventFiles, StepMetrics
from rl.nemo_rl.omegaconf_yaml import to_yaml
from rl.nemo_rl.outcome import failure_cause, nothing_trained, plain_lines
from rl.nemo_rl.processes import child_environment, ended, running

INSTALL_TIMEOUT_S = 2 * 3600.0
"""Bound on making the checkout's environment, which compiles CUDA extensions the first time."""

SILENCE_LIMIT_S = 3600.0
"""A script that prints nothing for so long hangs: its longest silent phase is one long generation or save."""

_POLL_S = 0.5
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A run that trained.

    Example:
        Finished(num_steps=16, checkpoint=Checkpoint(step=16, ...), export=Path("runs/demo/1/export"))
    """

    num_steps: int
    checkpoint: Checkpoint
    export: Path


async def train_on_nemo_rl(
    job: JobConfig,
    plan: RunPlan,
    files: RunFiles,
    *,
    checkout: Checkout,
    package: Path,
    run: RunDirectory,
    on_progress: Callable[[str], None] = lambda _: None,
    on_step: Callable[[Mapping[str, float]], None] = lambda _: None,
    silence_limit_s: float = SILENCE_LIMIT_S,
) -> Finished:
    """Run a job to its end. Whatever was started here is gone when this returns, raises or is cancelled.

    Args:
        job: a job that ``launcher.rules`` accepts for ``engine=nemo_rl``.
        plan: what follows from it.
        files: inputs and outputs, as every node sees them.
        checkout: from ``open_checkout``.
        package: root of the environment package.
        run: gets config, log, metrics, checkpoints and the exported model.
        on_progress: told in a few words what takes long.
        on_step: given the metrics of each step, which are also written to ``metrics.jsonl``.
        silence_limit_s: longest time without a line of output.

    Raises:
        LauncherError: the cluster cannot be joined or lacks GPUs; nothing was started.
        RunFailed: with the cause.
    """
    uv = find_uv()
    run.write_text("nemo_rl.yaml", to_yaml(master_config(job, plan, files)))
    run.write_json("nemo_rl_checkout.json", {
        "root": str(checkout.root), "version": checkout.version, "commit": checkout.commit,
        "changed_files": checkout.changed_files,
    })  # fmt: skip
    log = run.logs / "nemo_rl.log"
    await _prepare_environment(checkout, uv, log, on_progress)
    async with _cluster(job, checkout, uv, run.logs / "ray.log", on_progress) as (address, secret):
        environment = child_environment(secret | {"RAY_ADDRESS": address} | package_environment(package))
        command = checkout.command(uv, str(SCRIPT), "--config", str(run.path / "nemo_rl.yaml"))
        on_progress("NeMo RL is starting")
        async with running(command, environment=environment, folder=checkout.root, output=log) as process:
            await _follow(process, log, run, on_step, silence_limit_s)
    if process.returncode != 0:
        cause = failure_cause(plain_lines(_tail(log)), exit_status=process.returncode)
        raise RunFailed(f"{cause}. Its output: {log}")
    checkpoint = best_checkpoint(files.output / "checkpoints", metric="val:total_reward/mean")
    if checkpoint is None:
        raise RunFailed(
            nothing_trained(num_rows=plan.num_training_rows, num_prompts_per_step=plan.num_prompts_per_batch)
            + f". Its output: {log}"
        )
    on_progress(f"exporting step {checkpoint.step}")
    await asyncio.to_thread(export_checkpoint, checkpoint, run.export, base_model=files.model, dtype=job.model.dtype)
    return Finished(num_steps=checkpoint.newest_step, checkpoint=checkpoint, export=run.export)


def package_environment(package: Path) -> dict[str, str]:
    """Variables through which stock NeMo RL and NeMo Gym find an environment package.

    A package with vendored wheels is self-contained: its servers are installed from them alone.
    """
    variables = {"NEMO_GYM_EXTRA_ROOTS": str(package)}
    if (package / "wheels").is_dir():
        variables |= {"UV_FIND_LINKS": str(package / "wheels"), "UV_OFFLINE": "1"}
    return variables


def find_uv() -> Path:
    """The uv program: beside our own Python, else on PATH.

    Raises:
        LauncherError: there is none.
    """
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if found is None:
        message = "the program uv, which runs NeMo RL, is neither beside this Python nor on PATH"
        raise LauncherError([Problem(code="no-uv", path="engine.name", message=message, fix="install uv")])
    return Path(found)


async def _prepare_environment(checkout: Checkout, uv: Path, log: Path, on_progress: Callable[[str], None]) -> None:
    """Make the checkout's environment now, without a cluster waiting for it; no work when it is there."""
    on_progress(f"preparing the Python environment of NeMo RL {checkout.version}")
    command = checkout.command(uv, "-c", "import ray")
    async with running(command, environment=child_environment({}), folder=checkout.root, output=log) as process:
        status = await ended(process, timeout_s=INSTALL_TIMEOUT_S)
    if status is None:
        raise RunFailed(f"the environment of {checkout.root} was not ready after {INSTALL_TIMEOUT_S:.0f} s")
    if status != 0:
        cause = failure_cause(plain_lines(_tail(log)), exit_status=status)
        raise RunFailed(f"the environment of {checkout.root} cannot be made: {cause}. Its output: {log}")


@asynccontextmanager
async def _cluster(
    job: JobConfig, checkout: Checkout, uv: Path, output: Path, on_progress: Callable[[str], None]
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Address of a cluster with enough GPUs, and the secret that opens it when it is ours."""
    layout = job.training.parallelism
    if job.cluster.address is not None:
        on_progress(f"joining the Ray cluster at {job.cluster.address}")
        await _require_gpus(job, checkout, uv, job.cluster.address, {}, output)
        yield job.cluster.address, {}
        return
    if layout.num_nodes > 1:
        message = f"is unset, and {layout.num_nodes} nodes are asked for: a cluster started here has one"
        fix = "start Ray from the NeMo RL checkout on every node (ray start), and set it to HOST:PORT of the head"
        raise LauncherError([Problem(code="ray-cluster", path="cluster.address", message=message, fix=fix)])
    secret = cluster_secret()
    on_progress("starting Ray on this machine")
    async with started_cluster(checkout, uv, environment=child_environment(secret), output=output) as address:
        await _require_gpus(job, checkout, uv, address, secret, output)
        yield address, secret


async def _require_gpus(
    job: JobConfig, checkout: Checkout, uv: Path, address: str, secret: Mapping[str, str], output: Path
) -> None:
    layout = job.training.parallelism
    environment = child_environment(secret)
    nodes = await cluster_nodes(checkout, uv, address, environment=environment, output=output)
    problem = too_few_gpus(nodes, num_nodes=layout.num_nodes, num_gpus_per_node=layout.num_gpus_per_node)
    if problem is not None:
        raise LauncherError([problem])


async def _follow(
    process: subprocess.Popen[bytes],
    log: Path,
    run: RunDirectory,
    on_step: Callable[[Mapping[str, float]], None],
    silence_limit_s: float,
) -> None:
    """Wait for the script, handing on the metrics of each step as it ends."""
    events, metrics = EventFiles(run.logs / "nemo_rl"), StepMetrics()
    size, heard = log.stat().st_size, time.monotonic()
    for _ in events.read():  # what an earlier, interrupted attempt in this run directory left
        pass

    def report(steps: list[dict[str, float]]) -> None:
        for step in steps:
            run.append_metrics(step)
            on_step(step)

    while process.poll() is None:
        await asyncio.sleep(_POLL_S)
        report(metrics.add(events.read()))
        if log.stat().st_size != size:
            size, heard = log.stat().st_size, time.monotonic()
        elif time.monotonic() - heard > silence_limit_s:
            report(metrics.rest())
            last = next((line for line in reversed(plain_lines(_tail(log))) if line), "nothing")
            raise RunFailed(
                f"NeMo RL hangs: it printed nothing for {silence_limit_s:.0f} s and was ended. Last line: {last}. "
                f"Its output: {log}"
            )
    report(metrics.add(events.read()))
    report(metrics.rest())


def _tail(file: Path) -> str:
    """The end of a log."""
    with file.open("rb") as stream:
        stream.seek(max(file.stat().st_size - _TAIL_BYTES, 0))
        return stream.read().decode(errors="replace")
