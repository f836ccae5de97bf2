"""What a check reads of the files a job refers to, and what it says about them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.checking import check_job
from launcher.gathering import FactReader
from launcher.paths import config_roots
from launcher.schema.job import JobConfig

MakeJob = Callable[[dict[str, Any]], JobConfig]
DEMO = config_roots()[-1] / "recipes" / "demo"


@pytest.fixture(autouse=True)
def no_filesets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRPO_FILES_ROOT", str(tmp_path / "filesets"))
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))


def row(**parameters: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "hello"}], **parameters},
        "agent_ref": {"type": "responses_api_agents", "name": "numbered_list_agent"},
    }


def write_rows(folder: Path, rows: list[object], name: str = "training.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(item) + "\n" for item in rows))
    return folder


def test_rows_are_counted_and_checked(make_job: MakeJob, tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "data", [row(), {"no": "prompt"}, row(input=[{"role": "user", "content": "bye"}])])
    write_rows(folder, [row()], "validation.jsonl")
    gathered = FactReader().gather(make_job({"dataset": str(folder), "environment.name": str(DEMO / "environment")}))
    facts = gathered.facts
    assert (facts.num_training_rows, facts.num_validation_rows, facts.num_rows_with_tools) == (3, 1, 0)
    assert {problem.path for problem in gathered.problems} == {f"{folder}/training.jsonl:2"}
    assert facts.environment is not None
    assert (facts.environment.format, facts.environment.agents_without_turn_limit) == ("native-v1", {})


def test_rows_of_an_agent_that_the_environment_lacks(make_job: MakeJob, tmp_path: Path) -> None:
    other = row() | {"agent_ref": {"type": "responses_api_agents", "name": "numbered_lsit_agent"}}
    folder = write_rows(tmp_path / "data", [other])
    gathered = FactReader().gather(make_job({"dataset": str(folder), "environment.name": str(DEMO / "environment")}))
    assert ["numbered_lsit_agent" in problem.message for problem in gathered.problems] == [True]


def test_rows_with_tools(make_job: MakeJob, tmp_path: Path) -> None:
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": True}
    folder = write_rows(tmp_path / "data", [row(tools=[tool])])
    gathered = FactReader().gather(make_job({"dataset": str(folder), "environment.name": str(DEMO / "environment")}))
    assert gathered.facts.num_rows_with_tools == 1


def test_what_is_not_there_is_reported_of_all_references_at_once(tmp_path: Path) -> None:
    checked = check_job(["recipe=demo", "dataset=./nowhere", "environment.name=./nothing", "model.name=./no-model"])
    assert sorted(p.path for p in checked.problems if p.code == "R23") == ["dataset", "environment", "model"]


def test_a_broken_key_is_not_looked_for(make_job: MakeJob) -> None:
    facts = FactReader().gather(make_job({}), skip={"dataset", "environment", "model.name"}).facts
    assert facts.unreachable == ()


def test_a_package_of_another_format_than_the_job_says() -> None:
    checked = check_job(["recipe=demo", "environment=wheels"])
    assert [(p.code, p.path) for p in checked.problems] == [("R23", "environment.format")]


def test_a_package_with_faults_of_its_own(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "nemo-environment.yaml").write_text("format: native-v2\n")
    checked = check_job(["recipe=demo", f"environment.name={package}"])
    assert not checked.valid
    assert any("native-v2" in problem.message for problem in checked.problems)


def test_config_only_looks_at_no_file() -> None:
    checked = check_job(["recipe=demo", "dataset=./nowhere", "environment.name=./nothing"], config_only=True)
    assert checked.valid
    assert checked.plan is None


def test_each_thing_is_read_once_however_many_jobs_name_it(make_job: MakeJob, tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "data", [row()])
    reader = FactReader()
    job = make_job({"dataset": str(folder), "environment.name": str(DEMO / "environment")})
    before = reader.gather(job)
    (folder / "training.jsonl").unlink()
    assert reader.gather(job) == before


def test_the_size_of_a_model_is_read_from_its_files(make_job: MakeJob, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    facts = FactReader().gather(make_job({"model.name": str(model)}), skip={"dataset", "environment"}).facts
    assert facts.model is not None
    assert facts.model.config == {"model_type": "llama"}
