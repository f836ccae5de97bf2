"""Which linear layers LoRA adapts, decided by name as NeMo Automodel does, so that it can be said before the run."""

import re
from collections.abc import Iterable, Mapping, Sequence

_NOT_LINEAR = re.compile(r"(embed|wte|wpe|norm|ln_|rotary)")
NEVER_ADAPTED = "lm_head"


def linear_modules(tensors: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """Linear layers of a model, with (out, in) features, from names and shapes of its tensors.

    Example:
        linear_modules({"model.layers.0.mlp.up_proj.weight": (1536, 576), "model.norm.weight": (576,)})
        == {"model.layers.0.mlp.up_proj": (1536, 576)}
    """
    found: dict[str, tuple[int, int]] = {}
    for name, shape in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and len(shape) == 2 and not _NOT_LINEAR.search(module.rpartition(".")[2]):
            found[module] = (shape[0], shape[1])
    return found


def adapted_modules(
    names: Iterable[str], *, target_modules: Sequence[str] | None, exclude_modules: Sequence[str] | None
) -> list[str]:
    """The linear layers that get an adapter.

    Args:
        names: all linear layers.
        target_modules: only those that match one of these.
        exclude_modules: all but those that match one of these.
    """
    candidates = [name for name in names if name.rpartition(".")[2] != NEVER_ADAPTED]
    if target_modules:
        return [name for name in candidates if any(matches(pattern, name) for pattern in target_modules)]
    return [name for name in candidates if not any(matches(pattern, name) for pattern in exclude_modules or ())]


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern names a module: its last part, its whole name, or its whole name with ``*`` for any text."""
    if pattern in (name, name.rpartition(".")[2]):
        return True
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
