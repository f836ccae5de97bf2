"""Words that may come next on a ``grpo`` command line.

Groups and recipes are read from their folders and settings from the schema; Hydra, slow to import, is not needed.
"""

from collections.abc import Iterable, Iterator, Sequence

from launcher.paths import config_roots, group_choices

JOB_COMMANDS = frozenset({"train", "check", "eval", "explain", "compile", "submit"})


def candidates(words: Sequence[str], *, commands: Iterable[str], options: Iterable[str]) -> list[str]:
    """Completions of the last word.

    Args:
        words: after ``grpo``, the last one unfinished, possibly empty.
        commands: subcommands.
        options: flags and fixed words of the subcommand that ``words`` names.

    Example:
        candidates(["train", "backend=d"], ...) == ["backend=dtensor"]
    """
    current = words[-1] if words else ""
    if len(words) <= 1:
        found: Iterable[str] = commands
    elif current.startswith("-") or words[0] not in JOB_COMMANDS:
        found = options
    else:
        found = _job_words(current)
    return sorted(word for word in set(found) if word.startswith(current))


def _job_words(current: str) -> Iterator[str]:
    key, equals, value = current.partition("=")
    sign = key[: len(key) - len(key.lstrip("+~"))]
    key = key.lstrip("+~")
    if equals:
        before = value[: value.rfind(",") + 1]  # earlier values of a sweep
        for choice in _values(key):
            yield f"{sign}{key}={before}{choice}"
    else:
        for name in _keys(key):
            yield sign + (name.rstrip("=.") if sign == "~" else name)


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
    setting = settings().get(key)
    if setting is None:
        return
    yield from setting.choices
    if setting.type == "true or false":
        yield from ("true", "false")
    if "null" in setting.type:
        yield "null"
