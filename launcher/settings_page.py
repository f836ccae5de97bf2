"""docs/settings.md: every setting, group and rule, written out of the code that defines them."""

from collections.abc import Iterator, Mapping

from launcher.paths import config_roots, group_choices
from launcher.rules import RULES
from launcher.setting_docs import Setting, settings

_HEAD = """\
# Settings

Written by `make golden` from the schema; `grpo explain KEY recipe=NAME` adds a job's value and where it came from.

Later wins: defaults of the schema, choices of groups, the recipe, a job JSON (`--job`), the command line.
`key=value` sets, `+key=value` and `++key=value` mean the same, `~key` puts back the default, and `${other.key}` and
`${oc.env:NAME}` refer to other settings and to environment variables. Strings of a job JSON are data.
"""


def settings_page() -> str:
    """The page as Markdown."""
    known = settings()
    sections = ["", *(key for key, setting in known.items() if setting.is_section)]
    parts = [_HEAD, _groups_table()]
    for section in sections:
        title = f"`{section}`" if section else "Top level"
        meaning = f"{known[section].meaning}\n\n" if section else ""
        parts.append(f"## {title}\n\n{meaning}" + "\n".join(_table(known, section)) + "\n")
    parts.append("## Rules\n\n`grpo explain CODE` says why. All are checked, and all problems reported, at once.\n")
    parts.append(
        "\n".join(["| Rule | What holds |", "|---|---|", *(f"| {r.code} | {r.title} |" for r in RULES)]) + "\n"
    )
    return "\n".join(parts)


def _groups_table() -> str:
    rows = [
        f"| `{group}` | {', '.join(f'`{choice}`' for choice in choices)} |"
        for group, choices in sorted(group_choices(config_roots()[-1:]).items())
    ]
    how = "`group=choice` on the command line, `- override /group: choice` in a recipe."
    return "\n".join(["## Groups", "", how, "", "| Group | Choices |", "|---|---|", *rows, ""])


def _table(known: Mapping[str, Setting], section: str) -> Iterator[str]:
    yield "| Setting | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    for key, setting in known.items():
        if key.rpartition(".")[0] == section and not setting.is_section:
            default = "required" if setting.required else f"`{_literal(setting.default)}`"
            yield f"| `{key.rpartition('.')[2]}` | {_type(setting)} | {default} | {setting.meaning} |"


def _type(setting: Setting) -> str:
    if setting.choices:
        nullable = ", or null" if "null" in setting.type else ""
        return ", ".join(f"`{choice}`" for choice in setting.choices) + nullable
    return setting.type + (f", {setting.bound}" if setting.bound else "")


def _literal(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)
