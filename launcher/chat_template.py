"""A job's own chat template: a Jinja file or the text itself, found and read before anything starts."""

import importlib.util
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.schema.problems import LauncherError, Problem

if TYPE_CHECKING:
    from jinja2 import Environment


def chat_template_text(setting: str | None) -> str | None:
    """The template itself, whether the job gives a Jinja file or text.

    Raises:
        LauncherError: the setting is a path, by its looks, and no such file exists.
    """
    if setting is None or "{" in setting:
        return setting
    try:
        return Path(setting).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        message = f"{setting!r} is neither a template, as it has no {{, nor a file that can be read ({error})"
        raise LauncherError([_problem(message, "give the path of a Jinja file, or the template itself")]) from None


def chat_template_problems(setting: str | None) -> tuple[Problem, ...]:
    """What is wrong with a job's chat template; its syntax is looked at where Jinja is installed."""
    try:
        text = chat_template_text(setting)
    except LauncherError as error:
        return error.problems
    if text is None or importlib.util.find_spec("jinja2") is None:
        return ()
    from jinja2 import TemplateSyntaxError

    try:
        chat_environment().parse(text)
    except TemplateSyntaxError as error:
        return (_problem(f"is no valid template: line {error.lineno}: {error.message}", "fix the template"),)
    return ()


def chat_environment() -> "Environment":
    """Jinja as transformers sets it up for chat templates. Needs jinja2, which comes with the engine."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}``, with which transformers marks what the assistant writes: no more than its content."""

        tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    return environment


def _problem(message: str, fix: str) -> Problem:
    return Problem(code="chat-template", path="model.chat_template", message=message, fix=fix)
