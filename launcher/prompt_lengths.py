"""How many tokens the prompts of a dataset have, as the model's own tokenizer and chat template write them.

rows --(sample)--> messages --(chat template)--> text --(tokenizers)--> lengths

Needs ``tokenizers`` and ``jinja2``, which come with the engine; transformers, seconds to import, is not needed.
What was measured is remembered by the identity of the files: checking the same job again costs nothing.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.chat_template import chat_environment, chat_template_text
from launcher.references import cache_folder

LARGEST_SAMPLE = 2000
LONGEST_TIME_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLengths:
    """Prompt tokens of some rows.

    Example:
        TokenLengths(p50=38, p99=44, max=44, num_rows=240, num_all_rows=240, num_without_room=0)
    """

    p50: int
    p99: int
    max: int
    num_rows: int
    """Rows looked at."""
    num_all_rows: int
    num_without_room: int
    """Rows looked at whose prompt fills max_seq_length: nothing could be generated."""


def can_tokenize(folder: Path) -> bool:
    """Whether the tokenizer of a model folder can be used here."""
    packages = all(importlib.util.find_spec(name) is not None for name in ("tokenizers", "jinja2"))
    return packages and (folder / "tokenizer.json").is_file()


def prompt_lengths(
    rows: Path, folder: Path, *, num_rows: int, max_seq_length: int, chat_template: str | None
) -> TokenLengths | None:
    """Measure the prompts of a file, or a sample of them spread over the file.

    Args:
        rows: a JSONL file whose rows are right.
        folder: model folder with tokenizer.json.
        num_rows: rows of the file.
        max_seq_length: tokens of prompt and response together.
        chat_template: the job's own, path or text; None takes the tokenizer's.

    Returns:
        None when there is no row, or the template refuses them all.
    """
    memory = _memory_file(rows, folder, chat_template)
    lengths = _remembered(memory)
    if lengths is None:
        lengths = _measured(rows, folder, num_rows=num_rows, chat_template=chat_template)
        _remember(memory, lengths)
    if not lengths:
        return None
    return TokenLengths(
        p50=lengths[(len(lengths) - 1) // 2],
        p99=lengths[(len(lengths) - 1) * 99 // 100],
        max=lengths[-1],
        num_rows=len(lengths),
        num_all_rows=num_rows,
        num_without_room=sum(length >= max_seq_length for length in lengths),
    )


def _measured(rows: Path, folder: Path, *, num_rows: int, chat_template: str | None) -> list[int]:
    from tokenizers import Tokenizer  # with the engine only

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    render = _ChatTemplate(folder, chat_template)
    lengths: list[int] = []
    deadline = time.monotonic() + LONGEST_TIME_S
    for line in _sample(rows, num_rows):
        text = render(json.loads(line)["responses_create_params"])
        if text is not None:
            lengths.append(len(tokenizer.encode(text, add_special_tokens=False).ids))
        if time.monotonic() > deadline:
            break
    return sorted(lengths)


def _memory_file(rows: Path, folder: Path, chat_template: str | None) -> Path:
    """Where the lengths of these rows under this tokenizer are kept; another file when any of them changes."""
    identity = [chat_template]
    for file in (rows, folder / "tokenizer.json", folder / "tokenizer_config.json", folder / "chat_template.jinja"):
        if file.is_file():
            stat = file.stat()
            identity += [str(file.resolve()), str(stat.st_size), str(stat.st_mtime_ns)]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    return cache_folder() / "prompt-lengths" / f"{name}.json"


def _remembered(file: Path) -> list[int] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, list) and all(isinstance(length, int) for length in found) else None


def _remember(file: Path, lengths: list[int]) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to fail a check
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(lengths), encoding="utf-8")
        temporary.replace(file)


def _sample(rows: Path, num_rows: int) -> Iterator[bytes]:
    """All rows, or ``LARGEST_SAMPLE`` of them at even distances in the file."""
    with rows.open("rb") as file:
        if num_rows <= LARGEST_SAMPLE:
            yield from (line for line in file if line.strip())
            return
        size = os.fstat(file.fileno()).st_size
        for index in range(LARGEST_SAMPLE):
            file.seek(size * index // LARGEST_SAMPLE)
            if index:
                file.readline()  # the rest of a row
            if line := file.readline():
                yield line


class _ChatTemplate:
    """A model's chat template, rendered as transformers renders it."""

    def __init__(self, folder: Path, own: str | None):
        from jinja2 import TemplateSyntaxError

        config = _read_json(folder / "tokenizer_config.json")
        source = chat_template_text(own) if own is not None else _template_text(folder, config)
        self._template = None
        self._is_broken = False
        try:
            self._template = chat_environment().from_string(source) if source else None
        except TemplateSyntaxError:
            self._is_broken = True
        self._variables = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}

    def __call__(self, parameters: Mapping[str, Any]) -> str | None:
        """Text of a row's prompt; None when the template refuses it."""
        from jinja2 import TemplateError

        if self._is_broken:
            return None
        messages = _messages(parameters)
        if self._template is None:
            return "\n".join(message["content"] for message in messages)
        try:
            return self._template.render(
                messages=messages, tools=parameters.get("tools"), add_generation_prompt=True, **self._variables
            )
        except TemplateError:
            return None


def _messages(parameters: Mapping[str, Any]) -> list[dict[str, str]]:
    """Chat messages of a Responses request."""
    items = parameters.get("input", [])
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages = [{"role": "system", "content": text}] if (text := parameters.get("instructions")) else []
    for item in items:
        content = item.get("content", item.get("output", ""))
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        messages.append({"role": item.get("role", "tool"), "content": str(content)})
    return messages


def _template_text(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _token_text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
