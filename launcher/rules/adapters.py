"""Rules about LoRA, policy backends and model overrides."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.facts import Facts
from launcher.lora_modules import NEVER_ADAPTED, linear_modules, matches
from launcher.model_facts import default_config
from launcher.rules.base import Finding
from launcher.schema.job import JobConfig
from launcher.suggest import did_you_mean


def lora_block_has_lora(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """``training.lora`` configures an adapter, and only finetuning_type=lora trains one. The other way round is fine:
    lora without a block means all defaults.
    """
    if job.training.lora is not None and job.training.finetuning_type == "all_weights":
        yield Finding(
            path="training.lora",
            message="is given, and finetuning_type is all_weights, which trains no adapter",
            fix="set training.finetuning_type=lora, or drop training.lora (~training.lora)",
        )


def triton_has_whole_adapters(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """The Triton LoRA kernels cannot take adapter weights that tensor parallelism has sharded."""
    lora, size = job.training.lora, job.training.parallelism.tensor_parallel_size
    if lora is not None and lora.use_triton and size > 1:
        yield Finding(
            path="training.lora.use_triton",
            message=f"does not go with tensor_parallel_size {size}: the kernels cannot take sharded adapters",
            fix="leave training.lora.use_triton out, or set training.parallelism.tensor_parallel_size=1",
        )


def dtensor_suffices(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """The dtensor backend runs stock modules: it has no LoRA, no expert parallel, and takes no automodel_kwargs."""
    training = job.training
    if training.policy_backend != "dtensor":
        return
    conflicts = []
    if training.finetuning_type == "lora":
        conflicts.append("finetuning_type: lora")
    if training.parallelism.expert_parallel_size > 1:
        conflicts.append(f"parallelism.expert_parallel_size: {training.parallelism.expert_parallel_size}")
    if training.automodel_kwargs:
        conflicts.append("automodel_kwargs")
    if conflicts:
        yield Finding(
            path="training.policy_backend",
            message=f"dtensor does not support {', '.join(conflicts)}",
            fix="choose backend=automodel, or drop these settings",
        )


def router_loss_is_set_once(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """router_aux_loss_coef is written as a top-level key of the model config, where hf_config_overrides may write the
    same key. A nested key (``text_config.router_aux_loss_coef``) is another one, for models that read it there.
    """
    training = job.training
    if training.router_aux_loss_coef is not None and "router_aux_loss_coef" in (training.hf_config_overrides or {}):
        yield Finding(
            path="training.router_aux_loss_coef",
            message="is also a top-level key of training.hf_config_overrides",
            fix="keep one of the two; use hf_config_overrides when the model nests the key",
        )


def router_loss_has_routers(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """router_aux_loss_coef is for mixtures of experts, and is read at the top level of the model's config. A model that
    lacks the key there would absorb it in silence.
    """
    coefficient = job.training.router_aux_loss_coef
    if coefficient is None or facts.model is None or _has_key(facts.model.config, "router_aux_loss_coef"):
        return
    parts = {name: part for name, part in facts.model.config.items() if isinstance(part, Mapping)}
    nested = [name for name, part in parts.items() if _has_key(part, "router_aux_loss_coef")]
    model_type = facts.model.config.get("model_type", "no model_type")
    yield Finding(
        path="training.router_aux_loss_coef",
        message=f"is no top-level key of the model's config ({model_type})"
        + ("" if nested else ": it has no routers to balance"),
        fix=f"set training.hf_config_overrides.{nested[0]}.router_aux_loss_coef={coefficient:g} instead"
        if nested
        else "leave it out (~training.router_aux_loss_coef), or train a mixture of experts",
    )


def _has_key(config: Mapping[str, Any], key: str) -> bool:
    return key in config or key in default_config(str(config.get("model_type")))


def module_lists_match(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """target_modules names the linear layers to adapt, exclude_modules those to leave alone; one or neither.

    A pattern is the last part of a module's name, or a whole name with ``*``. One that matches nothing is a typo, and
    would silently train less than was asked for. The output head, ``lm_head``, is never adapted.
    """
    lora = job.training.lora
    if lora is None:
        return
    if lora.target_modules is not None and lora.exclude_modules is not None:
        yield Finding(
            path="training.lora.exclude_modules",
            message="is set together with target_modules",
            fix="keep target_modules to name what is adapted, or exclude_modules to name what is not",
        )
    if lora.target_modules == ():
        yield Finding(
            path="training.lora.target_modules",
            reads=("training.lora.target_modules",),
            message="is empty: no layer would be adapted, and nothing trained",
            fix="name layers, or leave it out to adapt every linear layer but lm_head",
        )
    for pattern in lora.target_modules or ():
        if matches(pattern, NEVER_ADAPTED):
            yield Finding(
                path="training.lora.target_modules",
                reads=("training.lora.target_modules",),
                message=f"{pattern!r} matches {NEVER_ADAPTED}, which is never adapted: it is often tied to the "
                "embedding, and samplers load no adapter for it",
                fix="name other layers, or leave both lists out to adapt every linear layer but lm_head",
            )
    names = linear_modules(facts.model.tensors) if facts.model is not None and facts.model.tensors else None
    if not names:
        return
    for key, patterns in (("target_modules", lora.target_modules), ("exclude_modules", lora.exclude_modules)):
        for pattern in patterns or ():
            if not any(matches(pattern, name) for name in (*names, NEVER_ADAPTED)):
                yield Finding(
                    path=f"training.lora.{key}",
                    reads=(f"training.lora.{key}", "model"),
                    message=f"{pattern!r} matches none of the model's {len(names)} linear layers "
                    f"({_counts(patterns or (), list(names))})",
                    fix=f"use one of {', '.join(_last_parts(list(names)))}, or a pattern with *",
                )


def overrides_name_config_keys(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """hf_config_overrides changes keys that the model's config has; another key would be ignored in silence."""
    if facts.model is not None:
        yield from _unknown_keys(job.training.hf_config_overrides or {}, facts.model.config, at="")


def _unknown_keys(overrides: Mapping[str, Any], config: Mapping[str, Any], *, at: str) -> Iterator[Finding]:
    for key, value in overrides.items():
        known, nested = config, config.get(key)
        if isinstance(value, Mapping) and isinstance(nested, Mapping) and "model_type" in nested:
            yield from _unknown_keys(value, nested, at=f"{at}{key}.")
            continue
        if key not in known:
            known = {**default_config(str(config.get("model_type"))), **config}
        if key not in known:
            yield Finding(
                path="training.hf_config_overrides",
                message=f"{at}{key} is no key of the model's config ({config.get('model_type', 'no model_type')})",
                fix=did_you_mean(key, known, otherwise="see the model's config.json for its keys", prefix=at),
            )


def adapters_stay_apart(job: JobConfig, facts: Facts) -> Iterator[Finding]:
    """GRPO exports the adapter as it is and does not merge it into the weights."""
    if job.training.finetuning_type == "lora_merged":
        yield Finding(
            path="training.finetuning_type",
            message="lora_merged: GRPO does not merge adapters at export",
            fix="set training.finetuning_type=lora and merge afterwards, or all_weights",
        )


def _counts(patterns: Sequence[str], names: Sequence[str]) -> str:
    return ", ".join(f"{pattern}: {sum(matches(pattern, name) for name in names)}" for pattern in patterns)


def _last_parts(names: Sequence[str]) -> list[str]:
    return sorted({re.split(r"\.", name)[-1] for name in names})[:12]
