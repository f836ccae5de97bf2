"""A checked job on NeMo RL, into its run directory: what ``grpo train engine=nemo_rl`` does after the check."""

from launcher.run_directory import RunDirectory
from launcher.schema.job import JobConfig
from launcher.schema.plan import RunPlan
from rl.display import Display, open_display
from rl.nemo_rl.checkout import open_checkout
from rl.nemo_rl.inputs import run_files
from rl.nemo_rl.launch import Finished, train_on_nemo_rl
from rl.report import Report


async def train(job: JobConfig, plan: RunPlan, run: RunDirectory) -> Finished:
    """Train a checked job; ``status.json`` follows it, and a line per step goes to stderr.

    Raises:
        LauncherError: the checkout, the cluster or a file is not what the job needs.
        RunFailed: with the cause.
    """
    with (
        open_display() as display,
        Report(run, plan, display, backend="nemo_rl", health=job.health) as report,
    ):
        return await _train(job, plan, run, display, report)


async def _train(job: JobConfig, plan: RunPlan, run: RunDirectory, display: Display, report: Report) -> Finished:
    checkout, warnings = open_checkout(job.engine.root)
    for warning in warnings:
        display.line(f"warning: {warning.message}. {warning.fix}", style="yellow")
    with display.phase("NeMo RL") as say:

        def doing(activity: str) -> None:
            say(activity)
            report.doing(activity)

        files, package = run_files(job, output=run.path, on_progress=doing)
        return await train_on_nemo_rl(
            job, plan, files, checkout=checkout, package=package, run=run, on_progress=doing, on_step=report.show
        )
