"""A whole run: build the parts, run the loop, close them. Reads as a table of contents.

    train      model folder -> Ray -> (policy | vLLM | Gym, side by side) -> TrainingLoop -> export -> summary
    evaluate   model folder -> Ray -> (vLLM | Gym) -> rollouts
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

from gym_bridge.types import Rollout
from launcher.dataset import find_dataset, read_rows
from launcher.references import resolve_reference
from launcher.run_directory import RunDirectory
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from rl.cluster import RayCluster
from rl.data import group_requests
from rl.display import Display, open_display
from rl.generation.live import LiveSource
from rl.loop import Rows, TrainingLoop
from rl.model_files import cache_folder, model_folder
from rl.report import Report
from rl.settings import generation_settings, loop_settings, rank_settings
from rl.summary import run_summary
from rl.types import RolloutSource
from rl.workers.group import PolicyGroup

type Split = Literal["validation", "training"]


async def train(job: JobConfig, plan: RunPlan, run: RunDirectory) -> None:
    """Train a checked job into its run directory.

    Raises:
        RunFailed: a part could not start, or died; the message holds its own last words.
        LauncherError: something the user gave turned out wrong only now (a model folder without tokenizer).
    """
    with open_display() as display, _reported(Report(run, plan, display)) as report:
        rows = load_rows(job)
        async with open_parts(job, plan, run.logs, display) as parts:
            policy = await parts.start_policy
        ...
