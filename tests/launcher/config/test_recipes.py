"""Every recipe and group choice that ships, and the job JSONs of the published document."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.checking import Checker, check_job
from launcher.cli import main
from launcher.json_schemas import SCHEMAS
from launcher.paths import config_roots, group_choices

ROOT = config_roots()[-1]
CHOICES = group_choices([ROOT])
RECIPES = CHOICES["recipe"]
FULL = {
    "model": "default/qwen3-0.6b",
    "dataset": "default/ascii-tree-env-dataset",
    "environment": "default/ascii-tree-env",
    "training": {
        "type": "grpo", "epochs": 1, "learning_rate": 1e-6, "max_seq_length": 2048, "batch_size": 32,
        "micro_batch_size": 1, "num_generations_per_prompt": 8, "temperature": 1.0,
        "parallelism": {"num_nodes": 1, "num_gpus_per_node": 1},
    },
    "output": {"name": "qwen3-0.6b-ascii-tree"},
}  # fmt: skip
ADAPTER = FULL | {
    "training": {
        "type": "grpo", "finetuning_type": "lora", "lora": {"rank": 16, "alpha": 32, "dropout": 0.0}, "epochs": 1,
        "batch_size": 32, "num_generations_per_prompt": 8,
    },
}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_resolves_to_its_golden_config(recipe: str, same_as_golden: Callable[[str, str], None]) -> None:
    checked = check_job([f"recipe={recipe}"], config_only=True)
    assert [problem for problem in checked.problems if problem.code != "R30"] == []
    same_as_golden(f"recipes/{recipe}.yaml", checked.resolved.to_yaml().replace(f"{ROOT}/", ""))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_holds_only_differences(recipe: str) -> None:
    from launcher.origins import dotted, leaves, value_at
    from launcher.validation import defaults
    from launcher.yaml_files import read_yaml

    tree = read_yaml(ROOT / "recipes" / f"{recipe}.yaml").tree
    same = [dotted(path) for path, value in leaves(tree) if value_at(defaults(), path) == value]
    assert same == []


def test_every_choice_of_every_group_composes() -> None:
    checker = Checker()
    for group, choices in CHOICES.items():
        for choice in choices if group != "recipe" else ():
            checked = checker.check(["recipe=demo", f"{group}={choice}"], config_only=True)
            assert [p for p in checked.problems if p.code in ("unknown-key", "wrong-type", "missing-key")] == []


@pytest.mark.parametrize("job", [FULL, ADAPTER], ids=["all weights", "adapter"])
def test_a_published_job_json_is_taken_unchanged(
    job: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))
    checked = check_job(["engine=nemo_rl"], job_json=file, config_only=True)
    assert checked.problems == ()
    training = checked.resolved.job.training
    assert training.policy_backend == "automodel"
    assert training.batching_strategy == "dynamic"
    assert (training.learning_rate, training.temperature, training.ref_policy_kl_penalty) == (1e-6, 1.0, 0.0)
    assert (training.max_seq_length, training.sequence_length_round) == (2048, 64)
    assert (training.overlong_filtering, training.val_at_start) == (False, False)
    assert main(["check", "--job", str(file), "--config-only", "engine=nemo_rl"]) == 0
    assert capsys.readouterr().out == "The configuration is valid.\n"


def test_the_recipes_schema_is_up_to_date(request: pytest.FixtureRequest) -> None:
    file = ROOT / "recipes" / "recipe.schema.json"
    text = json.dumps(SCHEMAS["recipe"](), indent=1) + "\n"
    if request.config.getoption("--golden"):
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "`make golden` writes it anew"


@pytest.mark.parametrize("recipe", RECIPES)
def test_editors_are_told_the_schema(recipe: str) -> None:
    head = (ROOT / "recipes" / f"{recipe}.yaml").read_text().splitlines()[:2]
    assert head == ["# @package _global_", "# yaml-language-server: $schema=recipe.schema.json"]
