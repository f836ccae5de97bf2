"""Words that may come next on a ``grpo`` command line.

Groups and recipes are read from their folders and settings from the schema; only for its own plugins is Hydra, slow to
import, asked.
"""

from collections.abc import Iterable, Iterator, Sequence

from launcher.paths import config_roots, group_choices

_HYDRA = ("hydra/sweeper=", "hydra/launcher=", "hydra.sweep.dir=")
"""Hydra's own settings that a sweep is most often given."""
JOB_COMMANDS = frozenset({"train", "check", "eval", "explain", "compile", "submit"})


def candidates(
    words: Sequence[str], *, commands: Iterable[str], options: Iterable[str], argument: Iterable[str] | None = None
) -> list[str]:
    """Completions of the last word; none where a file belongs.

    Args:
        words: after ``grpo``, the last one unfinished, possibly empty.
        commands: subcommands.
        options: flags and fixed words of the subcommand that ``words`` names.
        argument: what the flag before the last word takes; None when no flag waits for its argument.

    Example:
        candidates(["train", "backend=d"], ...) == ["backend=dtensor"]
    """
    current = words[-1] if words else ""
    if len(words) <= 1:
        found: Iterable[str] = commands
    elif argument is not None:
        found = argument
    elif current.startswith("-") or words[0] not in JOB_COMMANDS:
        found = options
    elif words[0] == "explain" and "=" not in current and not _names_something(words[1:-1]):
        found = _names(current)
    else:
        found = _job_words(current, sweeps=words[0] == "train")
    return sorted(word for word in set(found) if word.startswith(current))


def _names_something(words: Sequence[str]) -> bool:
    return any("=" not in word and not word.startswith(("-", "~")) for word in words)


def _job_words(current: str, *, sweeps: bool) -> Iterator[str]:
    key, equals, value = current.partition("=")
    sign = key[: len(key) - len(key.lstrip("+~"))]
    key = key.lstrip("+~")
    if equals:
        before = value[: value.rfind(",") + 1]  # earlier values of a sweep
        for choice in _values(key):
            if choice not in before.split(","):
                yield f"{sign}{key}={before}{choice}"
        return
    for name in _keys(key):
        yield sign + (name.rstrip("=.") if sign == "~" else name)
    if sweeps:
        yield from _HYDRA


def _names(typed: str) -> Iterator[str]:
    """What ``grpo explain`` explains, and the groups of a job to explain it in."""
    from launcher.rules import RULES
    from rl.metric_docs import metric_names  # a table without imports of its own

    groups = group_choices(config_roots())
    for key in _keys(typed):
        yield key if key.endswith(".") or key.removesuffix("=") in groups else key.removesuffix("=")
    yield from (rule.code for rule in RULES)
    yield from (name for name in metric_names() if not any(mark in name for mark in "<*"))


def _keys(typed: str) -> Iterator[str]:
    """Groups, and settings one section deeper than what is typed."""
    from launcher.setting_docs import settings

    if "." not in typed:
        yield from (f"{group}=" for group in group_choices(config_roots()))
    depth = typed.count(".")
    for key, setting in settings().items():
        if key.count(".") == depth:
            yield f"{key}." if setting.is_section else f"{key}="


def _values(key: str) -> Iterator[str]:
    from launcher.setting_docs import settings

    groups = group_choices(config_roots())
    if key in groups:
        yield from groups[key]
        return
    if key in ("hydra/sweeper", "hydra/launcher"):
        from launcher.compose import Composer
        from launcher.hydra_app import config_loader  # slow, and alone in knowing what plugins provide

        yield from config_loader(Composer(config_roots())).get_group_options(key)
        return
    setting = settings().get(key)
    if setting is None:
        return
    yield from setting.choices
    if setting.type == "true or false":
        yield from ("true", "false")
    if "null" in setting.type:
        yield "null"
