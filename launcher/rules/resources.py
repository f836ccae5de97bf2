"""Rules about files, devices and what the chosen engine can do."""

from collections.abc import Iterator

from launcher.facts import Facts
from launcher.rules.base import Finding
from launcher.rules.gaps import GAPS
from launcher.schema.job import JobConfig

HOPPER = (9, 0)


def references_lead_somewhere(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Model, dataset and environment must exist and be what they are used as: a FileSet used as an environment has
    purpose ``environment`` or ``generic``, one used as a dataset ``dataset`` or ``generic``. A package must declare
    the format that ``environment.format`` asks for.
    """
    for problem in facts.unreachable:
        yield Finding(path=problem.path, message=problem.message, fix=problem.fix, severity=problem.severity)
    wanted, found = job.environment.format, facts.environment.format if facts.environment else None
    if wanted is not None and found is not None and wanted != found:
        yield Finding(
            path="environment.format",
            message=f"the package declares {found}, and the job asks for {wanted}",
            fix=f"set environment.format={found}, or give another package",
        )


def automodel_has_its_hardware(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """The automodel backend uses Transformer Engine, which needs a GPU of compute capability 9.0 (Hopper) or newer.
    On a CPU it runs stock modules with Automodel's LoRA, without Triton.
    """
    device = facts.device
    if job.training.policy_backend != "automodel" or device is None:
        return
    if device.kind == "cpu":
        yield Finding(
            path="training.policy_backend",
            message="automodel on a CPU runs stock modules, with Automodel's LoRA and without Triton",
            fix="nothing to do; backend=dtensor runs the same modules for full weights",
            severity="warning",
        )
        if job.training.automodel_kwargs and job.engine.name == "local":
            yield Finding(
                path="training.automodel_kwargs",
                message=f"has no effect on a CPU, where stock modules run ({', '.join(job.training.automodel_kwargs)})",
                fix="leave training.automodel_kwargs out, or train on a GPU",
            )
    elif device.compute_capability is not None and device.compute_capability < HOPPER:
        major, minor = device.compute_capability
        yield Finding(
            path="training.policy_backend",
            message=f"automodel needs Transformer Engine, which needs Hopper (9.0) or newer; {device.name} is "
            f"{major}.{minor}",
            fix="choose backend=dtensor",
        )


def device_is_here(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """cluster.device=cuda needs a GPU on the machine that trains. Everything else can be checked without one, so this
    is a warning.
    """
    if facts.has_no_cuda and job.engine.name == "local":
        yield Finding(
            path="cluster.device",
            message="cuda is asked for, and this machine has no CUDA device",
            fix="train on a machine with a GPU, or choose cluster=cpu",
            severity="warning",
        )


def nemo_rl_takes_the_sampling(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """On its Gym path NeMo RL refuses top_k and ignores max_rollout_turns."""
    if job.engine.name != "nemo_rl":
        return
    if job.training.top_k is not None:
        yield Finding(
            path="training.top_k",
            message="NeMo RL refuses top_k with Gym environments",
            fix="leave training.top_k out, or choose engine=local",
        )
    if job.training.max_rollout_turns is not None:
        yield Finding(
            path="training.max_rollout_turns",
            message="NeMo RL ignores max_rollout_turns with Gym environments",
            fix="set the limit in the agent's own config, or choose engine=local",
        )


def engine_implements_it(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A setting that the chosen engine would not act on is refused, never ignored."""
    values = job.model_dump()
    for gap in GAPS:
        if gap.engine != job.engine.name:
            continue
        value = values
        for part in gap.key.split("."):
            value = value[part] if isinstance(value, dict) else None  # a section that is null
        if gap.refused(value):
            yield Finding(
                path=gap.key,
                message=f"engine={gap.engine} does not implement {gap.what}",
                fix=f"choose engine={gap.implemented_by}, or change {gap.key}"
                if gap.implemented_by
                else f"change {gap.key}: no engine here implements it",
            )


def tools_have_a_parser(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A model writes tool calls as text in its own syntax: without a parser for it, no call would ever be recognised.
    An environment that expects parsed reasoning likewise needs a reasoning parser; without one it sees plain text.
    """
    if facts.num_rows_with_tools and job.model.tool_call_parser is None:
        yield Finding(
            path="model.tool_call_parser",
            message=f"is not set, and {facts.num_rows_with_tools} rows carry tools: no call would be recognised",
            fix="set the parser of the model's family, such as model.tool_call_parser=hermes",
        )
    if facts.environment and facts.environment.uses_reasoning_parser and job.model.reasoning_parser is None:
        yield Finding(
            path="model.reasoning_parser",
            message="is not set, and the environment's policy model has uses_reasoning_parser: true",
            fix="set the parser of the model's family, or ignore this for a model that does not reason",
            severity="warning",
        )


def agent_limits_turns(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """max_rollout_turns is written into the agent's own limit of turns, so every agent must have one."""
    if job.training.max_rollout_turns is None or facts.environment is None:
        return
    for instance, implementation in facts.environment.agents_without_turn_limit.items():
        yield Finding(
            path="training.max_rollout_turns",
            message=f"agent {instance} ({implementation}) has no limit of turns to set",
            fix="leave training.max_rollout_turns out, or use an agent that has one, such as simple_agent",
        )


def sandbox_is_available(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A sandbox needs a cluster that has OpenSandbox and the claim of the storage that holds environment and dataset.
    Both are settings of the cluster's operator.
    """
    sandbox = job.sandbox
    if sandbox.enabled and not sandbox.cluster_capable:
        yield Finding(
            path="sandbox.cluster_capable",
            message="OpenSandbox is not yet available on this cluster",
            fix="have the operator install it, then set sandbox.cluster_capable=true, or set sandbox.enabled=false",
        )
    if sandbox.enabled and sandbox.job_storage_pvc_claim is None:
        yield Finding(
            path="sandbox.job_storage_pvc_claim",
            message="Sandboxed GRPO requires the job-storage PVC claim name",
            fix="set sandbox.job_storage_pvc_claim, or sandbox.enabled=false",
        )
    if sandbox.public_dns_allow and not sandbox.allow_internet:
        yield Finding(
            path="sandbox.public_dns_allow",
            message="has no effect without sandbox.allow_internet",
            fix="set sandbox.allow_internet=true, or drop the hosts",
        )
