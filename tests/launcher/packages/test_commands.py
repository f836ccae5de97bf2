"""The commands as a user types them: what is printed where, and the exit status."""

import json
from pathlib import Path

import pytest

from launcher import cli
from launcher.commands import convert

PUBLISHED_FULL = {
    "model": "default/qwen3-0.6b", "dataset": "default/ascii-tree-env-dataset", "environment": "default/ascii-tree-env",
    "training": {
        "type": "grpo", "epochs": 1, "learning_rate": 1e-6, "max_seq_length": 2048, "batch_size": 32,
        "micro_batch_size": 1, "num_generations_per_prompt": 8, "temperature": 1.0,
        "parallelism": {"num_nodes": 1, "num_gpus_per_node": 1},
    },
    "output": {"name": "qwen3-0.6b-ascii-tree"},
}  # fmt: skip
PUBLISHED_LORA = {
    "model": "default/qwen3-0.6b", "dataset": "default/ascii-tree-env-dataset", "environment": "default/ascii-tree-env",
    "training": {
        "type": "grpo", "finetuning_type": "lora", "lora": {"rank": 16, "alpha": 32, "dropout": 0.0},
        "epochs": 1, "batch_size": 32, "num_generations_per_prompt": 8,
    },
    "output": {"name": "qwen3-0.6b-ascii-tree"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_FILES_ROOT", str(tmp_path / "filesets"))
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def grpo(capsys, *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_validate_prints_the_published_line(native, capsys):
    root = str(native({}))
    line = '{"valid": true, "format": "native-v1", "name": "lists"}\n'
    status, out, err = grpo(capsys, "env", "validate", root)
    assert (status, out) == (0, line)
    assert "network: needs a package index at start" in err
    assert convert.main(["--validate-only", root]) == 0
    assert capsys.readouterr().out == line


def test_validate_reports_all_problems_with_status_1(native, capsys):
    root = str(native({"data.jsonl": "", "pyproject.toml": ""}))
    status, out, err = grpo(capsys, "env", "validate", root)
    assert (status, out) == (1, "")
    assert "Prompt JSONL must not live in the environment package" in err
    assert "editable checkout" in err
    status, out, err = grpo(capsys, "env", "validate", root, "--json")
    assert (status, err) == (1, "")
    assert [problem["code"] for problem in json.loads(out)["problems"]] == ["rows-in-package", "root-pyproject"]
    assert convert.main(["--validate-only", root]) == 1


def test_wrong_usage_is_status_2(native, capsys):
    root = str(native({}))
    for arguments in (
        ("env",), ("env", "validate"), ("env", "validate", root, "--arch", "riscv"), ("files",),
        ("files", "list", "a/b/c"), ("files", "create", "x"), ("data",),
        ("env", "validate", root, "--arch", "x86_64", "--glibc", "2.5"),
    ):  # fmt: skip
        assert grpo(capsys, *arguments)[0] == 2, arguments
    assert convert.main([]) == 2


def test_new_validate_and_check_follow_each_other(tmp_path, capsys):
    for format in ("native-v1", "wheels-v1", "adapter-wheels-v1"):
        name = f"lists-{format}"
        status, out, _ = grpo(capsys, "env", "new", name, "--format", format, "--json")
        written = json.loads(out)
        assert status == 0
        assert grpo(capsys, "env", "validate", written["package"])[0] == 0
        status, out, _ = grpo(capsys, "data", "check", written["dataset"], "--env", written["package"], "--json")
        assert (status, [file["rows"] for file in json.loads(out)["files"]]) == (0, [60, 24])


def test_vendoring_a_native_package_is_refused(native, capsys):
    status, _, err = grpo(capsys, "env", "vendor", str(native({})), "--arch", "x86_64")
    assert status == 1
    assert "set format: wheels-v1 first" in err


def test_files_from_create_to_delete(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "training.jsonl").write_text("{}\n")
    assert grpo(capsys, "files", "create", "rows", "--workspace", "team", "--purpose", "dataset")[0] == 0
    status, out, _ = grpo(capsys, "files", "upload", "./data", "rows", "--workspace", "team")
    assert status == 0
    assert "uploaded the folder ./data itself, as data/" in out
    assert "write ./data/" in out
    status, out, _ = grpo(capsys, "files", "upload", "./data/", "team/rows", "--replace")
    assert "uploaded the contents of ./data/: 1 files, 0 sent, 1 there already" in out
    status, out, _ = grpo(capsys, "files", "list", "team/rows", "--json")
    assert list(json.loads(out)["files"]) == ["training.jsonl"]
    status, out, _ = grpo(capsys, "files", "list")
    assert "team/rows" in out
    assert grpo(capsys, "files", "download", "team/rows", "copy")[0] == 0
    assert (tmp_path / "copy" / "training.jsonl").read_text() == "{}\n"
    assert grpo(capsys, "files", "delete", "team/rows")[0] == 0
    status, _, err = grpo(capsys, "files", "list", "team/rows")
    assert (status, "no such FileSet" in err) == (1, True)


def test_data_check_says_where_and_corrects_into_a_copy(tmp_path, native, capsys):
    good = {
        "responses_create_params": {"input": "hi"},
        "agent_ref": {"type": "responses_api_agents", "name": "lists_agent"},
    }
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(good) + "\r\n" + json.dumps({**good, "agent_ref": "lists_agent"}) + "\n")
    status, out, err = grpo(capsys, "data", "check", "rows.jsonl", "--env", str(native({})))
    assert (status, "rows.jsonl:1: the line ends in CRLF" in err, "2 rows, 2 bad" in out) == (1, True, True)
    status, out, _ = grpo(capsys, "data", "check", "rows.jsonl", "--env", str(native({})), "--fix", "fixed.jsonl")
    assert status == 0
    assert "corrected: agent_ref written as an object: 1" in out
    assert grpo(capsys, "data", "check", "fixed.jsonl")[0] == 0


def test_a_fileset_validates_like_its_folder(native, capsys):
    for changes, status in (({}, 0), ({"data.jsonl": ""}, 1)):
        root = native(changes)
        grpo(capsys, "files", "create", "env", "--purpose", "environment", "--exist-ok")
        grpo(capsys, "files", "upload", f"{root}/", "env", "--replace")
        folder, fileset = (grpo(capsys, "env", "validate", place, "--json") for place in (str(root), "env"))
        assert (folder[0], fileset[0]) == (status, status)
        assert folder[1] == fileset[1]


@pytest.fixture
def published_filesets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FileSets under the names of the published job, the model's as small as a model folder can be."""
    status, out, _ = grpo(capsys, "env", "new", "ascii-tree", "--format", "adapter-wheels-v1", "--json")
    assert status == 0
    written = json.loads(out)
    model = tmp_path / "model"
    model.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100, "intermediate_size": 64,
        "max_position_embeddings": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer.json").write_text("{}")
    tensor = b'{"model.embed_tokens.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    (model / "model.safetensors").write_bytes(len(tensor).to_bytes(8, "little") + tensor)
    for name, purpose, folder in (
        ("qwen3-0.6b", "model", str(model)),
        ("ascii-tree-env-dataset", "dataset", written["dataset"]),
        ("ascii-tree-env", "environment", written["package"]),
    ):
        assert (
            grpo(capsys, "files", "create", name, "--workspace", "default", "--purpose", purpose, "--exist-ok")[0] == 0
        )
        assert grpo(capsys, "files", "upload", f"{folder}/", name, "--workspace", "default")[0] == 0


def job_problems(tmp_path: Path, capsys, job: dict[str, object]) -> set[str]:
    (tmp_path / "job.json").write_text(json.dumps(job))
    _, out, _ = grpo(capsys, "check", "--job", "job.json", "cluster.device=cpu", "--json")
    return {problem["message"] for problem in json.loads(out)["problems"] if problem["severity"] == "error"}


@pytest.mark.parametrize("job", [PUBLISHED_FULL, PUBLISHED_LORA])
def test_the_published_jobs_are_right_as_they_stand(tmp_path, capsys, published_filesets, job):
    assert job_problems(tmp_path, capsys, job) == set()


def test_filesets_of_the_wrong_purpose_are_refused_by_name(tmp_path, capsys, published_filesets):
    swapped = {**PUBLISHED_FULL, "environment": "ascii-tree-env-dataset", "dataset": "ascii-tree-env"}
    messages = "\n".join(job_problems(tmp_path, capsys, swapped))  # each may end with the line that set the reference
    assert (
        "Environment fileset 'default/ascii-tree-env-dataset' has purpose 'dataset'; expected purpose='environment'"
        in messages
    )
    assert "Dataset fileset 'default/ascii-tree-env' has purpose 'environment'; expected purpose='dataset'" in messages
