"""What ``grpo check`` prints besides problems: adapter, memory, prompt tokens."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from launcher.facts import ModelFacts
from launcher.lora_modules import adapted_modules, linear_modules, matches
from launcher.memory import activation_bytes, adapter_parameters, architecture, memory_estimate
from launcher.model_facts import model_facts
from launcher.prompt_lengths import prompt_lengths
from launcher.schema.job import JobConfig
from launcher.schema.problems import LauncherError
from launcher.settings_page import settings_page

MakeJob = Callable[[dict[str, Any]], JobConfig]
CONFIG = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 4,
          "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 100}  # fmt: skip
TENSORS = {
    "model.embed_tokens.weight": (100, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_proj.bias": (8,),
    "model.layers.0.mlp.down_proj.weight": (8, 16),
    "model.layers.0.input_layernorm.weight": (8,),
    "lm_head.weight": (100, 8),
}
MODEL = ModelFacts(config=CONFIG, tensors=TENSORS)


def write_safetensors(file: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    header = json.dumps(
        {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
    )
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode())


def test_shapes_are_read_from_headers_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a.weight": (2, 3)})
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"b.weight": (4,)})
    facts = model_facts(tmp_path)
    assert facts.tensors == {"a.weight": (2, 3), "b.weight": (4,)}
    assert facts.config == CONFIG


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no config.json"),
        ({"config.json": "["}, "cannot be read"),
        ({"config.json": "[]"}, "no JSON object"),
        ({"config.json": "{}", "model.safetensors": "short"}, "broken weight file, model.safetensors"),
    ],
)
def test_a_broken_model_folder(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(LauncherError, match=words):
        model_facts(tmp_path)


def test_linear_layers_are_told_from_embeddings_and_norms() -> None:
    assert list(linear_modules(TENSORS)) == [
        "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("q_proj", True), ("*.q_proj", True), ("*_proj", True), ("model.layers.0.self_attn.q_proj", True),
     ("proj", False), ("*.layers.1.*", False), ("q.proj", False)],
)  # fmt: skip
def test_patterns_of_modules(pattern: str, expected: bool) -> None:
    assert matches(pattern, "model.layers.0.self_attn.q_proj") is expected


def test_adapted_modules() -> None:
    names = list(linear_modules(TENSORS))
    every = adapted_modules(names, target_modules=None, exclude_modules=None)
    assert every == names[:2], "the output head is never adapted unless asked for by name"
    assert adapted_modules(names, target_modules=["q_proj"], exclude_modules=None) == names[:1]
    assert adapted_modules(names, target_modules=None, exclude_modules=["q_proj"]) == names[1:2]


def test_adapter_parameters_are_rank_times_in_plus_out(make_job: MakeJob) -> None:
    job = make_job({"training.finetuning_type": "lora", "training.lora": {"rank": 4}})
    assert adapter_parameters(job.training, MODEL) == 4 * (8 + 8) + 4 * (16 + 8)


def test_activations_worked_by_hand(make_job: MakeJob) -> None:
    sizes = architecture(CONFIG)
    assert sizes is not None
    assert (sizes.hidden, sizes.intermediate, sizes.key_value, sizes.layers, sizes.vocabulary) == (8, 16, 4, 3, 100)
    training = make_job({}).training
    kept = activation_bytes(training, sizes, 10, low_precision=True)
    assert kept == 10 * 3 * (30 * 8 + 4 * 4 + 8 * 16)
    checkpointed = make_job({"training.activation_checkpointing": True}).training
    assert activation_bytes(checkpointed, sizes, 10, low_precision=True) == 10 * (4 * 8 * 3 + 384)


def test_a_mixture_counts_the_experts_at_work() -> None:
    sizes = architecture({**CONFIG, "moe_intermediate_size": 6, "num_experts_per_tok": 2})
    assert sizes is not None
    assert sizes.intermediate == 12


def test_memory_names_its_largest_part_and_what_makes_it_smaller(make_job: MakeJob) -> None:
    few = memory_estimate(make_job({}), ModelFacts(config=CONFIG, tensors={"w.weight": (10**5, 10**4)}), "cuda")
    assert few is not None
    assert few.dominant == "optimizer state"
    assert "lora" in few.knob
    assert few.terms["optimizer state"] == 8 * 10**9
    assert few.terms["gradients"] == 4 * 10**9, "without long sequences the peak is at the end of the backward pass"
    sharded = memory_estimate(
        make_job({"training.parallelism.num_gpus_per_node": 4}),
        ModelFacts(config=CONFIG, tensors={"w.weight": (10**5, 10**4)}),
        "cuda",
    )
    assert sharded is not None
    assert sharded.terms["optimizer state"] == 2 * 10**9
    assert memory_estimate(make_job({}), ModelFacts(config={}, tensors=TENSORS), "cuda") is None


def test_the_plan_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "recipe=demo", "--json", "training.max_steps=3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["valid"], report["plan"]["num_steps"]) == (True, 3)
    assert report["plan"]["formulas"]["num_steps"].endswith("at most max_steps = 3")


def word_tokenizer(folder: Path, template: str | None) -> None:
    """A tokenizer whose tokens are words."""
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))


def row(text: str) -> str:
    return json.dumps({"responses_create_params": {"input": [{"role": "user", "content": text}]}}) + "\n"


def test_prompt_tokens_are_counted_behind_the_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    word_tokenizer(tmp_path, "{% for m in messages %}<{{ m.role }}> {{ m.content }} </s> {% endfor %}<assistant>")
    file = tmp_path / "rows.jsonl"
    file.write_text(row("one") + row("one two three") + row("a b c d e f"))
    for _ in range(2):  # the second time from memory
        lengths = prompt_lengths(file, tmp_path, num_rows=3, max_seq_length=9, chat_template=None)
        assert lengths is not None
        assert (lengths.p50, lengths.p99, lengths.max, lengths.num_rows) == (6, 6, 9, 3)  # words + 3
        assert lengths.num_without_room == 1
    own = prompt_lengths(file, tmp_path, num_rows=3, max_seq_length=9, chat_template="{{ messages[0].content }}")
    assert own is not None
    assert own.max == 6


def test_a_large_file_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    word_tokenizer(tmp_path, None)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(row(f"word{n}") for n in range(5000)))
    lengths = prompt_lengths(file, tmp_path, num_rows=5000, max_seq_length=9, chat_template=None)
    assert lengths is not None
    assert lengths.num_all_rows == 5000
    assert 0 < lengths.num_rows <= 2000
    assert lengths.max == 1


def test_a_template_that_refuses_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    word_tokenizer(tmp_path, "{{ raise_exception('no') }}")
    file = tmp_path / "rows.jsonl"
    file.write_text(row("one"))
    assert prompt_lengths(file, tmp_path, num_rows=1, max_seq_length=9, chat_template=None) is None


def test_the_page_of_settings_is_up_to_date(request: pytest.FixtureRequest) -> None:
    file = Path(__file__).parents[3] / "docs" / "settings.md"
    if request.config.getoption("--golden"):
        file.write_text(settings_page(), encoding="utf-8")
    assert file.read_text(encoding="utf-8") == settings_page(), "`make golden` writes it anew"
