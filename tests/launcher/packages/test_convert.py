"""Conversion of a hub's environment, against an index on loopback; the real ``verifiers`` is in e2e/test_offline.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher import cli
from launcher.commands import convert
from launcher.environment.convert_examples import LoadRequest, hub_examples
from launcher.environment.convert_rows import prompt_rows, split_rows
from launcher.environment.package import check_package
from launcher.environment.pure_wheel import pure_wheel
from launcher.environment.wheels import Target
from launcher.filesets import FileSetStore
from launcher.schema.problems import LauncherError
from tests.launcher.packages.conftest import Index

VERIFIERS = """
import importlib

class Environment:
    def __init__(self, examples):
        self.examples = examples

    def get_dataset(self, n=-1, seed=None):
        examples = self.examples if seed is None else self.examples[::-1]
        return Table(examples[:n] if n > 0 else examples)

class Table(list):
    @property
    def column_names(self):
        return list(self[0])

def load_environment(name, **arguments):
    return importlib.import_module(name.replace("-", "_")).load_environment(**arguments)
"""
ENVIRONMENT = """
import os
import verifiers

def load_environment(word="owl", seconds=0):
    import time
    time.sleep(seconds)
    assert "WANDB_API_KEY" not in os.environ
    return verifiers.Environment([
        {"prompt": [{"role": "user", "content": f"Spell {word} {i} times."}], "answer": str(i), "example_id": i}
        for i in range(10)
    ])
"""


@pytest.fixture
def hub(index: Index) -> Index:
    """The index with a stand-in for ``verifiers``, and two releases of an environment with different closures."""
    both = {"spelling.py": ENVIRONMENT, "spelling_hard.py": ENVIRONMENT}
    for wheel in (
        pure_wheel("verifiers", "0.1.14", {"verifiers.py": VERIFIERS}),
        pure_wheel("verifiers", "0.1.13", {"verifiers.py": VERIFIERS}),
        pure_wheel("spelling", "0.1.0", {"spelling.py": ENVIRONMENT}, requires=["verifiers", "letters<2"]),
        pure_wheel("spelling", "0.2.0", both, requires=["verifiers", "letters>=2"]),
        pure_wheel("letters", "1.0", {"letters.py": ""}),
        pure_wheel("letters", "2.0", {"letters.py": ""}),
    ):
        index.add(*wheel)
    return index


def arguments(hub: Index, tmp_path: Path, *more: str) -> list[str]:
    return [
        "--hub-id", "acme/spelling", "--index-url", hub.url, "--out-dir", str(tmp_path / "pkg"),
        "--dataset-dir", str(tmp_path / "rows"), *more,
    ]  # fmt: skip


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("no_keys")
def test_the_published_tree_for_both_architectures(
    hub: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--hub-version", "0.1.0", "--validation-fraction", "0.1", "--arch", "x86_64", "--arch", "aarch64")
    status = convert.main(arguments(hub, tmp_path, *more))
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert status == 0
    assert printed.err.splitlines()[-1].startswith("next: grpo train recipe=demo environment=adapter_wheels ")
    assert (answer["valid"], answer["format"], answer["name"]) == (True, "adapter-wheels-v1", "spelling")
    assert (answer["hub_version"], answer["num_training_rows"], answer["num_validation_rows"]) == ("0.1.0", 9, 1)

    package = tmp_path / "pkg"
    written = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {path for path in written if not path.startswith("wheels/")} == {
        "nemo-environment.yaml", "configs/policy_model.yaml", "configs/verifiers_agent.yaml",
    }  # fmt: skip
    assert "wheels/spelling-0.1.0-py3-none-any.whl" in written
    manifest = yaml.safe_load((package / "nemo-environment.yaml").read_text())
    assert manifest["metadata"] == {
        "name": "spelling", "hub_id": "acme/spelling", "hub_version": "0.1.0", "vf_env_id": "spelling",
        "adapter_agent": "verifiers_agent",
    }  # fmt: skip
    for arch in ("x86_64", "aarch64"):
        assert not [p for p in check_package(package, target=Target(arch=arch)) if p.severity == "error"]
    first = rows_of(tmp_path / "rows" / "training.jsonl")[0]
    assert first == {
        "task_idx": 0, "vf_env_id": "spelling", "question": "Spell owl 0 times.", "answer": "0", "task": "spelling",
        "responses_create_params": {"input": [{"role": "user", "content": "Spell owl 0 times."}]},
        "agent_ref": {"type": "responses_api_agents", "name": "verifiers_agent"}, "example_id": 0, "info": {},
    }  # fmt: skip
    assert rows_of(tmp_path / "rows" / "validation.jsonl")[0]["task_idx"] == 9


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is in our environment, which the environment that is loaded asserts not to see."""
    monkeypatch.setenv("WANDB_API_KEY", "secret")


def test_a_new_version_in_the_same_folder_leaves_nothing_of_the_old_one(hub: Index, tmp_path: Path) -> None:
    assert convert.main(arguments(hub, tmp_path, "--hub-version", "0.1.0", "--validation-fraction", "0.5")) == 0
    assert (tmp_path / "pkg" / "wheels" / "letters-1.0-py3-none-any.whl").is_file()
    (tmp_path / "pkg" / "wheels" / "stray-1.0-py3-none-any.whl").write_bytes(b"")
    (tmp_path / "pkg" / "README.md").write_text("mine")
    assert cli.main(["env", "convert", *arguments(hub, tmp_path, "--hub-version", "0.2.0")]) == 0
    wheels = {path.name.split("-py3")[0] for path in (tmp_path / "pkg" / "wheels").iterdir()}
    assert {"spelling-0.2.0", "letters-2.0"} <= wheels
    assert not wheels & {"spelling-0.1.0", "letters-1.0", "stray-1.0"}
    assert (tmp_path / "pkg" / "README.md").read_text() == "mine"
    assert not (tmp_path / "rows" / "validation.jsonl").exists()


def test_every_other_flag_acts(
    hub: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_FILES_ROOT", str(tmp_path / "files"))
    more = (
        "--vf-env-id", "spelling-hard", "--vf-env-args", '{"word": "bee"}', "--dataset-size", "4",
        "--dataset-seed", "1",
        "--verifiers-version", "0.1.13", "--environment-name", "bees", "--dataset-name", "bee-rows",
        "--workspace", "team", "--upload",
    )  # fmt: skip
    assert convert.main(arguments(hub, tmp_path, *more)) == 0
    printed = capsys.readouterr()
    assert "--hub-version: was not given, so the index chose 0.2.0" in printed.err
    answer = json.loads(printed.out)
    assert (answer["environment"], answer["dataset"]) == ("team/bees", "team/bee-rows")
    assert (tmp_path / "pkg" / "wheels" / "verifiers-0.1.13-py3-none-any.whl").is_file()
    rows = rows_of(tmp_path / "rows" / "training.jsonl")
    assert [row["question"] for row in rows] == [f"Spell bee {i} times." for i in (9, 8, 7, 6)]
    assert {row["vf_env_id"] for row in rows} == {"spelling-hard"}
    agent = yaml.safe_load((tmp_path / "pkg" / "configs" / "verifiers_agent.yaml").read_text())
    assert agent["verifiers_agent"]["responses_api_agents"]["verifiers_agent"]["vf_env_args"] == {"word": "bee"}
    uploaded = FileSetStore().get("bees", workspace="team")
    assert (uploaded.purpose, "nemo-environment.yaml" in uploaded.files) == ("environment", True)
    assert list(FileSetStore().get("bee-rows", workspace="team").files) == ["training.jsonl"]


def test_a_closure_of_one_s_own_is_taken_as_it_is(hub: Index, tmp_path: Path) -> None:
    assert convert.main(arguments(hub, tmp_path, "--hub-version", "0.1.0")) == 0
    made = (tmp_path / "pkg" / "wheels").rename(tmp_path / "made")
    more = ("--hub-version", "0.1.0", "--wheels-dir", str(made))
    assert convert.main(arguments(hub, tmp_path, *more)) == 0
    assert {path.name for path in made.iterdir()} == {path.name for path in (tmp_path / "pkg" / "wheels").iterdir()}


def test_a_closure_of_another_version_is_refused(
    hub: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    name, content = pure_wheel("spelling", "0.1.0", {"spelling.py": ""})
    (made / name).write_bytes(content)
    assert convert.main(arguments(hub, tmp_path, "--hub-version", "0.2.0", "--wheels-dir", str(made))) == 1
    assert "holds 0.1.0 of spelling, and the rows are made from 0.2.0" in capsys.readouterr().err
    assert not (tmp_path / "pkg").exists()


def test_an_environment_that_does_not_load_is_told_in_its_own_words(hub: Index, tmp_path: Path) -> None:
    request = LoadRequest(project="spelling", vf_env_id="spelling", vf_env_args={"no": 1}, size=-1, seed=None)
    with pytest.raises(LauncherError, match=r"(?s)load_environment\('spelling'\) failed.*unexpected keyword argument"):
        hub_examples(request, ["spelling==0.1.0"], index_url=hub.url, wheels=None, scratch=tmp_path)


def test_an_environment_that_hangs_is_ended(hub: Index, tmp_path: Path) -> None:
    request = LoadRequest(project="spelling", vf_env_id="spelling", vf_env_args={"seconds": 600}, size=1, seed=None)
    with pytest.raises(LauncherError, match="gave no dataset within 2 s"):
        hub_examples(request, ["spelling==0.1.0"], index_url=hub.url, wheels=None, scratch=tmp_path, load_timeout_s=2.0)


def test_a_version_that_is_not_on_the_index_changes_nothing(
    hub: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert.main(arguments(hub, tmp_path, "--hub-version", "9.9")) == 1
    assert "spelling==9.9, verifiers==0.1.14 cannot be installed here" in capsys.readouterr().err
    assert not (tmp_path / "pkg").exists()


def test_a_folder_of_something_else_is_not_written_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "thesis.tex").write_text("")
    flags = ["--hub-id", "a/b", "--out-dir", str(tmp_path / "pkg"), "--dataset-dir", str(tmp_path / "rows")]
    assert convert.main(flags) == 1
    assert "holds no adapter-wheels-v1 package" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hub-id", "a/b"], "a conversion needs --out-dir, --dataset-dir"),
        (["--hub-id", "ascii-tree"], "it is OWNER/NAME"),
        (["--validation-fraction", "1"], "allowed: 0 to below 1"),
        (["--dataset-size", "0"], "allowed: 1 or more, or -1 for all"),
        (["--vf-env-args", "[1]"], "it is a JSON object of keyword arguments"),
        (["--vf-env-args", "{"], "--vf-env-args is no JSON"),
    ],
)
def test_wrong_usage(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [] if "needs" in message else ["--hub-id", "a/b", "--out-dir", "o", "--dataset-dir", "d"]
    assert convert.main([*folders, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("num_rows", "fraction", "split"),
    [(10, 0.0, (10, 0)), (10, 0.1, (9, 1)), (10, 0.01, (9, 1)), (2, 0.99, (1, 1)), (1, 0.5, (1, 0)), (0, 0.5, (0, 0))],
)
def test_the_split_never_empties_training(num_rows: int, fraction: float, split: tuple[int, int]) -> None:
    training, validation = split_rows([{"i": i} for i in range(num_rows)], validation_fraction=fraction)
    assert (len(training), len(validation)) == split


def test_what_datasets_may_hold() -> None:
    prompt = [{"role": "system", "content": "Be brief.", "name": None}, {"role": "user", "content": "Two plus two?"}]
    examples = [{"prompt": prompt, "answer": 4, "info": '{"hard": false}', "task": "sum"}, {"prompt": "Say hello."}]
    first, second = prompt_rows(examples, vf_env_id="sums")
    assert first["responses_create_params"]["input"][0] == {"role": "system", "content": "Be brief."}
    assert (first["question"], first["answer"], first["info"]) == ("Two plus two?", "4", {"hard": False})
    assert second["responses_create_params"]["input"] == [{"role": "user", "content": "Say hello."}]
    assert (second["answer"], second["task"], second["example_id"], second["info"]) == ("", "sums", 1, {})
