"""Real runs of the demo that the tests here look at from all sides: two steps of training, and the untrained model's
rollouts under several jobs."""

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gym_bridge.types import Rollout, Turn
from launcher.checking import Checked, check_job
from launcher.run_directory import RunDirectory, make_run_directory
from launcher.schema.plan import RunPlan
from launcher.schema.sampling import Sampling
from rl.data import group_requests
from rl.display import PlainDisplay
from rl.driver import load_rows
from rl.generation.live import LiveSource
from rl.loop import Rows, TrainingLoop
from rl.model_files import cache_folder
from rl.report import Report
from rl.settings import gym_settings, loop_settings, rank_settings
from rl.workers.batch import RankBatch
from rl.workers.group import PolicyGroup
from rl.workers.step import StepResult

DEMO = Path(__file__).parents[2] / "recipes" / "demo" / "environment"
JOB = (
    "recipe=demo", "training.max_steps=2", "training.batch_size=32", "training.num_generations_per_prompt=8",
    "training.val_at_end=false",
)  # fmt: skip
NUM_VALIDATION_ROWS = 8


@pytest.fixture(scope="session")
def demo_job() -> Callable[..., Checked]:
    """The demo at half its batch for two steps, with settings changed: ``demo_job(temperature=0.7)``."""

    def job(**training: Any) -> Checked:
        checked = check_job([*JOB, *(f"training.{name}={value}" for name, value in training.items())])
        checked.require_valid()
        return checked

    return job


@pytest.fixture(scope="session")
def demo_source(
    runner: asyncio.Runner, vllm: Any, demo_generation: Any, demo_job: Callable[..., Checked],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Sampling], LiveSource]]:  # fmt: skip
    """The demo's environment, asking the session's vLLM; ``demo_source(sampling)`` asks as a job with that sampling."""
    gym = gym_settings(demo_job().resolved.job, package=DEMO, cache=cache_folder())
    log_folder, display = tmp_path_factory.mktemp("gym"), PlainDisplay(io.StringIO())
    servers = runner.run(LiveSource.start_servers(vllm, demo_generation, gym, log_folder=log_folder, display=display))
    yield lambda sampling: LiveSource(vllm, servers, gym=gym, generation=replace(demo_generation, sampling=sampling))
    runner.run(servers.close())


@dataclass(frozen=True, kw_only=True)
class TwoSteps:
    run: RunDirectory
    plan: RunPlan
    first: list[Rollout]
    """Of step 1, sampled by the untrained model."""
    second: list[Rollout]
    validation: list[Rollout]
    """By the untrained model."""
    metrics: list[dict[str, float]]
    """Of steps 1 and 2."""
    before: dict[str, float]
    """Metrics of the validation before the first step."""
    batches: list[Sequence[RankBatch]]
    """What was trained in each optimizer step."""


class Watched:
    """A ``Policy`` whose optimizer steps are kept."""

    def __init__(self, policy: PolicyGroup):
        self._policy = policy
        self.logprobs, self.write_weights = policy.logprobs, policy.write_weights
        self.batches: list[Sequence[RankBatch]] = []

    async def train(self, batches: Sequence[RankBatch], *, learning_rate: float) -> StepResult:
        self.batches.append(batches)
        return await self._policy.train(batches, learning_rate=learning_rate)


@pytest.fixture(scope="session")
def two_steps(
    runner: asyncio.Runner, vllm: Any, demo_source: Callable[[Sampling], LiveSource], demo_model_folder: Path,
    demo_job: Callable[..., Checked], tmp_path_factory: pytest.TempPathFactory,
) -> TwoSteps:  # fmt: skip
    """Two steps of the demo with the real model, vLLM and NeMo Gym, in this process so that all can be looked at."""
    path = tmp_path_factory.mktemp("two-steps")
    checked = demo_job()
    job, plan = checked.resolved.job, checked.require_valid()
    rows = load_rows(job)
    rows = Rows(training=rows.training, validation=rows.validation[:NUM_VALIDATION_ROWS])
    run = make_run_directory(path / "run")
    (path / "weights").mkdir()

    async def train() -> list[Sequence[RankBatch]]:
        settings = rank_settings(job, plan, model_folder=demo_model_folder, device="cpu")
        report = Report(run, plan, PlainDisplay(io.StringIO()), backend="local", health=job.health)
        try:
            async with await PolicyGroup.start(settings, num_ranks=1, log_folder=run.logs) as policy:
                watched = Watched(policy)
                loop = TrainingLoop(
                    loop_settings(job, plan, hidden_size=576), rows=rows, source=demo_source(plan.sampling),
                    policy=watched, report=report, weights_folder=path / "weights",
                )  # fmt: skip
                await loop.run()
                await policy.export(run.export)
        finally:
            await vllm.update_weights(demo_model_folder, policy_version=0)
        return watched.batches

    batches = runner.run(train())
    before, *metrics = run.read_metrics()
    first, second = ([read_back(record) for record in run.read_rollouts(step)] for step in (1, 2))
    validation = [read_back(record) for record in run.read_rollouts(0, validation=True)]
    return TwoSteps(
        run=run, plan=plan, first=first, second=second, validation=validation, metrics=metrics, before=before,
        batches=batches,
    )  # fmt: skip


def read_back(record: Mapping[str, Any]) -> Rollout:
    """A rollout as it was before it was written down."""
    turns = tuple(
        Turn(
            prompt_token_ids=tuple(turn["prompt_token_ids"]), token_ids=tuple(turn["token_ids"]),
            logprobs=tuple(turn["logprobs"]), finish_reason=turn["finish_reason"],
        )
        for turn in record["turns"]
    )  # fmt: skip
    return Rollout(**{**{k: v for k, v in record.items() if k != "advantage"}, "turns": turns})


@pytest.fixture(scope="session")
def untrained_rollouts(
    runner: asyncio.Runner, vllm: Any, demo_source: Callable[[Sampling], LiveSource],
    demo_job: Callable[..., Checked], sampling_as: Callable[..., Any],
) -> Callable[..., list[Rollout]]:  # fmt: skip
    """Rollouts of the untrained model as a job with some settings changed samples them, made once for each change."""
    made: dict[Sampling, list[Rollout]] = {}

    async def collected(source: LiveSource, rows: Sequence[Mapping[str, Any]]) -> list[Rollout]:
        requests = group_requests(rows, range(4), num_generations=8)
        rollouts = [rollout async for rollout in source.collect(requests)]
        return sorted(rollouts, key=lambda rollout: (rollout.group_id, rollout.rollout_id))

    def rollouts(**training: Any) -> list[Rollout]:
        checked = demo_job(**training)
        sampling = checked.require_valid().sampling
        if sampling not in made:
            with sampling_as(vllm, sampling):
                made[sampling] = runner.run(collected(demo_source(sampling), load_rows(checked.resolved.job).training))
        return made[sampling]

    return rollouts


@pytest.fixture(scope="session")
def exported(
    runner: asyncio.Runner, start_vllm: Callable[..., Any], two_steps: TwoSteps, demo_generation: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:  # fmt: skip
    """A vLLM in float32 that was started with the export of the two steps."""
    settings = replace(
        demo_generation, model_folder=two_steps.run.export, dtype="float32", max_num_seqs=32, chat_template=None,
        tool_call_parser=None,
    )  # fmt: skip
    engine = start_vllm(settings, tmp_path_factory.mktemp("exported"))
    yield engine
    runner.run(engine.close())
