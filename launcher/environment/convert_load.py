"""Loads a ``verifiers`` environment and writes its dataset down. Runs in a throw-away environment, never in ours.

stdin {"vf_env_id", "vf_env_args", "size", "seed", "project", "rows"} --> one JSON line per example in the file ``rows``
                                                                      --> stdout's last line {"version": ...}
"""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("prompt", "example_id", "answer", "task", "info")


def main() -> None:
    request = json.load(sys.stdin)
    import verifiers  # type: ignore[import-not-found]

    environment = verifiers.load_environment(request["vf_env_id"], **request["vf_env_args"])
    dataset = dataset_of(environment, size=request["size"], seed=request["seed"])
    columns = [column for column in COLUMNS if column in dataset.column_names]
    with Path(request["rows"]).open("w", encoding="utf-8") as file:
        for example in dataset:
            file.write(json.dumps({column: example[column] for column in columns}, default=str) + "\n")
    print(json.dumps({"version": importlib.metadata.version(request["project"])}))


def dataset_of(environment: Any, *, size: int, seed: int | None) -> Any:
    """The training examples; an environment that only evaluates has none, and gives those."""
    try:
        return environment.get_dataset(n=size, seed=seed)
    except ValueError:
        return environment.get_eval_dataset(n=size, seed=seed)


if __name__ == "__main__":
    main()
