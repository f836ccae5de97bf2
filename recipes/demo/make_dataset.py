"""Writes the demo's rows: ``python recipes/demo/make_dataset.py`` -> dataset/training.jsonl, dataset/validation.jsonl.

Each row asks for a list of two to five things. Validation asks for things that training never mentions, and repeats
each of its prompts: Gym scores one response per row, so the repeats make the mean steadier.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path

SEED = 0
NUM_VALIDATION_THINGS = 8
NUM_VALIDATION_REPEATS = 8
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5}
THINGS = """
animals artists beaches berries birds boats books bridges buildings capitals cars cheeses cities clothes colors
countries dances deserts desserts dogs drinks explorers fabrics festivals fish flowers foods fruits games gemstones
herbs hobbies holidays insects instruments inventors islands jobs lakes languages machines metals mountains movies
mushrooms nuts oceans painters planets plants poets rivers rooms sauces sciences scientists seasons shapes shoes
songs soups spices sports tools toys trees vegetables vehicles
""".split()  # noqa: SIM905 (68 words read better than 68 lines)


def dataset_rows() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The training rows and the validation rows, the same on every call."""
    things = list(THINGS)
    generator = random.Random(SEED)
    generator.shuffle(things)
    training = rows(things[NUM_VALIDATION_THINGS:])
    generator.shuffle(training)
    return training, rows(things[:NUM_VALIDATION_THINGS]) * NUM_VALIDATION_REPEATS


def rows(things: Iterable[str]) -> list[dict[str, object]]:
    """One row for each thing and number."""
    return [
        {
            "responses_create_params": {"input": [{"role": "user", "content": prompt(number, thing)}]},
            "agent_ref": {"type": "responses_api_agents", "name": "numbered_list_agent"},
            "num_items": count,
        }
        for thing in things
        for number, count in NUMBERS.items()
    ]


def prompt(number: str, thing: str) -> str:
    return f"Write a numbered list of {number} {thing}, like '1. name'."


def jsonl(items: Iterable[dict[str, object]]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


if __name__ == "__main__":
    folder = Path(__file__).parent / "dataset"
    for name, items in zip(("training", "validation"), dataset_rows(), strict=True):
        (folder / f"{name}.jsonl").write_text(jsonl(items))
