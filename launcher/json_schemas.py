"""JSON Schemas of what people write: a job, a recipe, an environment's manifest, a prompt row."""

from collections.abc import Callable
from typing import Any

from launcher.schema.job import JobConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = r"\$\{.+\}"


def job_schema() -> dict[str, Any]:
    """A job JSON, complete: what ``grpo check --job`` takes. References may be plain strings."""
    schema = JobConfig.model_json_schema()
    for name in ("model", "environment"):
        field = schema["properties"][name]
        description = field.pop("description")
        schema["properties"][name] = {"anyOf": [{"type": "string"}, field], "description": description}
    return {"$schema": DIALECT, **schema}


def recipe_schema() -> dict[str, Any]:
    """A recipe: a part of a job, a ``defaults`` list, and ``${...}`` wherever a value may stand."""
    schema = job_schema()
    schema["title"] = "Recipe"
    schema["description"] = "Choices of groups and the settings in which an experiment differs from the defaults."
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)
        for name, field in section.get("properties", {}).items():
            section["properties"][name] = _or_reference(field)
    entry = {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": ["string", "null"]}}]}
    schema["properties"]["defaults"] = {
        "type": "array",
        "items": entry,
        "description": "Groups to choose from, as in `- override /backend: dtensor`, and `_self_`.",
    }
    schema["properties"]["hydra"] = {"type": "object", "description": "Hydra's own settings, such as a sweeper."}
    return schema


def manifest_schema() -> dict[str, Any]:
    """``nemo-environment.yaml``."""
    from launcher.schema.manifest import MANIFEST

    return {"$schema": DIALECT, **MANIFEST.json_schema()}


def row_schema() -> dict[str, Any]:
    """One line of training.jsonl or validation.jsonl."""
    from launcher.schema.rows import ROW

    return {"$schema": DIALECT, **ROW.json_schema()}


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "job": job_schema,
    "recipe": recipe_schema,
    "manifest": manifest_schema,
    "row": row_schema,
}


def _or_reference(field: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in field.items() if key in ("description", "default", "title")}
    rest = {key: value for key, value in field.items() if key not in kept}
    options = rest.pop("anyOf", None) or [rest]
    return {**kept, "anyOf": [*options, {"type": "string", "pattern": _REFERENCE}]}
