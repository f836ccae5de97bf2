"""Rules about ranks and what can be combined."""

from collections.abc import Iterator
from math import gcd

from launcher.compile import data_parallel_size, num_ranks, vllm_tensor_parallel_size
from launcher.facts import Facts, ModelFacts
from launcher.rules.base import Finding, nearest_divisors, nearest_multiples
from launcher.schema.job import JobConfig
from launcher.tensor_plan import heads, known_plan, uneven_heads, uneven_width, why_not


def packing_suits_the_model(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """sequence_packing concatenates rollouts into one row. Context parallel would cut that row across rollouts, and
    models with images need positions that packing does not keep.
    """
    if job.training.batching_strategy != "sequence_packing":
        return
    size = job.training.parallelism.context_parallel_size
    if size > 1:
        yield Finding(
            path="training.batching_strategy",
            message=f"sequence_packing does not go with context_parallel_size {size}",
            fix="set training.batching_strategy=dynamic, or training.parallelism.context_parallel_size=1",
        )
    if facts.model is not None and is_multimodal(facts.model):
        yield Finding(
            path="training.batching_strategy",
            message=f"sequence_packing does not go with a multimodal model ({facts.model.config.get('model_type')})",
            fix="set training.batching_strategy=dynamic",
        )


def is_multimodal(model: ModelFacts) -> bool:
    """Whether a model config has a part for images, sound or video."""
    return any(key in model.config for key in ("vision_config", "audio_config", "video_config", "visual"))


def ranks_divide(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Ranks form groups of tensor_parallel_size × context_parallel_size; the number of groups is the data-parallel
    size. The experts of a mixture are spread inside it, so expert_parallel_size must divide it.
    """
    layout = job.training.parallelism
    ranks, unit = num_ranks(job.training), layout.tensor_parallel_size * layout.context_parallel_size
    if ranks % unit:
        yield Finding(
            path="training.parallelism",
            message=f"{ranks} ranks ({layout.num_nodes} nodes × {layout.num_gpus_per_node}) are not divisible by "
            f"tensor × context parallel ({layout.tensor_parallel_size} × {layout.context_parallel_size} = {unit})",
            fix=f"use {nearest_multiples(ranks, unit)} ranks, or lower tensor_parallel_size or context_parallel_size",
        )
        return
    data_parallel = data_parallel_size(job.training)
    if data_parallel % layout.expert_parallel_size:
        yield Finding(
            path="training.parallelism.expert_parallel_size",
            message=f"{layout.expert_parallel_size} does not divide the data-parallel size ({data_parallel})",
            fix="set training.parallelism.expert_parallel_size="
            + nearest_divisors(layout.expert_parallel_size, data_parallel),
        )


def sampler_fits_a_node(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """A sampler spans GPUs of one node, and all GPUs are divided into samplers of the same size."""
    training = job.training
    size, per_node = vllm_tensor_parallel_size(training), training.parallelism.num_gpus_per_node
    ranks = num_ranks(training)
    path = "training.vllm_tensor_parallel_size"
    if size > per_node:
        yield Finding(
            path=path,
            message=f"{size} is above num_gpus_per_node ({per_node})",
            fix=f"set {path}={per_node} or less",
        )
    elif ranks % size:
        yield Finding(
            path=path,
            message=f"{size} does not divide the {ranks} GPUs in all",
            fix=f"set {path}={nearest_divisors(size, ranks)}",
        )


def tensor_parallel_suits_the_model(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Each rank of a tensor group computes whole attention heads, with the key-value heads that they read, and an equal
    part of the feed-forward width; each rank of a sampler whole heads. engine=local splits a model as transformers'
    plan for it says, which can need more than engine=local has (experts, latent attention).
    """
    if facts.model is None or (counts := heads(facts.model.config)) is None:
        return
    size, path = job.training.parallelism.tensor_parallel_size, "training.parallelism.tensor_parallel_size"
    if (uneven := uneven_heads(facts.model.config, size)) is not None:
        yield Finding(path=path, message=uneven, fix=f"set {path}={nearest_divisors(size, gcd(*counts))}")
    elif size > 1 and job.engine.name == "local":
        plan = known_plan(str(facts.model.config.get("model_type")))
        reason = why_not(plan) if plan is not None else None
        if (reason := reason or uneven_width(facts.model.config, size)) is not None:
            yield Finding(path=path, message=reason, fix=f"choose engine=nemo_rl, or set {path}=1")
    sampler, (attention, key_value) = job.training.vllm_tensor_parallel_size, counts
    if sampler is not None and (attention % sampler or (key_value % sampler and sampler % key_value)):
        yield Finding(
            path="training.vllm_tensor_parallel_size",
            message=f"{sampler} does not divide the model's {attention} attention heads, or neither divides nor is a "
            f"multiple of its {key_value} key-value heads",
            fix=f"set training.vllm_tensor_parallel_size={nearest_divisors(sampler, gcd(*counts))}",
        )


def context_parallel_without_sequence_parallel(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """Context and sequence parallel both split the sequence; with tensor parallel they would split it twice."""
    layout = job.training.parallelism
    if layout.context_parallel_size > 1 and layout.sequence_parallel and layout.tensor_parallel_size > 1:
        yield Finding(
            path="training.parallelism.sequence_parallel",
            message=f"does not go with context_parallel_size {layout.context_parallel_size} at tensor_parallel_size "
            f"{layout.tensor_parallel_size}",
            fix="set training.parallelism.sequence_parallel=false, or context_parallel_size=1",
        )


def engine_spans_the_nodes(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """engine=local is one machine; engine=nemo_rl runs on a Ray cluster of many."""
    nodes = job.training.parallelism.num_nodes
    if nodes > 1 and job.engine.name == "local":
        yield Finding(
            path="training.parallelism.num_nodes",
            message=f"{nodes} nodes, and engine=local is one machine",
            fix="choose engine=nemo_rl, or set training.parallelism.num_nodes=1",
        )


def no_pipeline(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """No policy backend splits the layers of a model into a pipeline: the ranks would train as replicas instead."""
    size = job.training.parallelism.pipeline_parallel_size
    if size > 1:
        yield Finding(
            path="training.parallelism.pipeline_parallel_size",
            message=f"{size}: no policy backend implements a pipeline",
            fix="set training.parallelism.pipeline_parallel_size=1 and use tensor or expert parallel",
        )
