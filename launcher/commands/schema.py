"""``grpo schema``: JSON Schemas for editors and other programs."""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo schema``."""
    parser.add_argument("what", choices=("job", "recipe", "manifest", "row"), help="what to describe")


def run(options: argparse.Namespace) -> int:
    """Print one JSON Schema."""
    from launcher.json_schemas import SCHEMAS  # --help needs no pydantic

    print(json.dumps(SCHEMAS[options.what](), indent=1))
    return 0
