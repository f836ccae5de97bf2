"""Reading a job JSON: strict JSON, its strings taken as data."""

import json
from pathlib import Path

from launcher.schema.problems import LauncherError, Problem
from launcher.yaml_files import YamlFile, key_lines, read_text


def read_job_json(path: Path) -> YamlFile:
    """Read a job as the platform takes it.

    Raises:
        LauncherError: with ``file:line`` when the file is not one JSON object, or a key stands twice in it.
    """
    text = read_text(path)
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise LauncherError([_problem(f"{path}:{error.lineno}", f"is not valid JSON: {error.msg}")]) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or nesting without end
        raise LauncherError([_problem(str(path), "holds a number or nesting too large to be meant")]) from None
    if not isinstance(tree, dict):
        raise LauncherError([_problem(f"{path}:1", "is not a JSON object")])
    return YamlFile(path=path, tree=tree, lines=key_lines(text.replace("\t", " "), path=path))


def _problem(path: str, message: str) -> Problem:
    fix = 'write {"model": ..., "dataset": ..., "environment": ..., "training": {"type": "grpo"}}'
    return Problem(code="bad-file", path=path, message=message, fix=fix)
