"""Datasets: found on disk, read as a stream, checked row by row.

training.jsonl --(readline, bounded)--> line --(json)--> row --(schema.rows, the environment's agents)--> faults
                                                          `--> read_rows, for those who train on it
Memory does not grow with the rows but for what finds repeated lines: 8 bytes a row.
"""

import stat
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from launcher.row_faults import RowExpectations, RowFault, parse_row, row_faults
from launcher.schema.problems import LauncherError, Problem
from launcher.schema.rows import PromptRow

MAX_ROW_BYTES = 16 * 2**20
"""A longer line is reported and ends the check of its file."""
MAX_PROBLEMS = 1000
"""Problems kept of one file; the rest is counted."""
MAX_TRACKED_ROWS = 50_000_000
"""Rows among which repeated lines are looked for: 600 MB of memory at most."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetFiles:
    """The files of a dataset: a folder's ``training.jsonl`` and ``validation.jsonl``, or one file by itself."""

    training: Path
    validation: Path | None
    """None when there is no validation.jsonl: validation is off."""
    is_folder: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLengths:
    """Characters of prompt text per row.

    Example:
        PromptLengths(p50=82, p99=410, max=1200)
    """

    p50: int
    p99: int
    max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RowReport:
    """What a check of one file found."""

    path: Path
    num_rows: int
    """Lines that hold something."""
    num_bad_rows: int
    agents: Mapping[str, int]
    """Agent instance -> rows routed to it."""
    num_rows_with_tools: int
    prompt_characters: PromptLengths
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        """The object that ``grpo data check --json`` prints for a file."""
        lengths = self.prompt_characters
        return {
            "path": str(self.path),
            "rows": self.num_rows,
            "bad_rows": self.num_bad_rows,
            "agents": dict(self.agents),
            "rows_with_tools": self.num_rows_with_tools,
            "prompt_characters": {"p50": lengths.p50, "p99": lengths.p99, "max": lengths.max},
        }


def find_dataset(path: Path) -> DatasetFiles:
    """Training and validation file of a dataset.

    Args:
        path: a folder that holds ``training.jsonl``, or one file of rows.

    Raises:
        LauncherError: nothing is there, or it is neither.
    """
    if path.is_dir():
        training = path / "training.jsonl"
        if not training.is_file():
            found = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
            fix = "put the rows into training.jsonl (and unseen ones into validation.jsonl) at the top of the folder"
            raise _missing(path, f"a dataset needs training.jsonl; the folder holds {found}", fix)
        validation = path / "validation.jsonl"
        return DatasetFiles(training=training, validation=validation if validation.is_file() else None, is_folder=True)
    _require_regular_file(path)
    return DatasetFiles(training=path, validation=None, is_folder=False)


def count_rows(path: Path) -> int:
    """Number of lines of ``path`` that hold something, without looking at what they hold."""
    with open_rows(path) as file:
        return sum(1 for line in row_lines(file) if not line.isspace())


def read_rows(path: Path) -> Iterator[tuple[int, PromptRow]]:
    """Yield the rows of ``path`` with their 1-based line numbers, one at a time.

    Raises:
        LauncherError: at the first line that is not a row Gym would take, with file:line and all faults of that line.
    """
    with open_rows(path) as file:
        for number, line in enumerate(row_lines(file), start=1):
            row, faults = _check_line(line, number, expected=None)
            if row is None or faults:
                raise LauncherError(fault.as_problem(f"{path}:{number}") for fault in faults)
            yield number, row


def check_rows(path: Path, *, expected: RowExpectations | None = None, find_repeated: bool = True) -> RowReport:
    """Check every row of ``path``.

    Args:
        path: a JSONL file.
        expected: what the environment demands of a row; None checks what every environment demands.
        find_repeated: warn about lines that occur twice. Off for validation files, where a row is repeated on purpose.

    Returns:
        A report with every fault of every bad row, ``MAX_PROBLEMS`` of them at most.
    """
    tally = _Tally(path=path)
    repeated = _RepeatedLines() if find_repeated else None
    with open_rows(path) as file:
        for number, line in enumerate(row_lines(file), start=1):
            row, faults = _check_line(line, number, expected=expected)
            if row is not None:
                tally.count(row)
            if faults:
                tally.add(number, faults)
            if repeated is not None and not faults:
                repeated.add(line if line.endswith(b"\n") else line + b"\n")
    if repeated is not None:
        for problem in repeated.problems(path):
            tally.keep(problem)
    return tally.report()


def _check_line(
    line: bytes, number: int, *, expected: RowExpectations | None
) -> tuple[PromptRow | None, list[RowFault]]:
    """The row on a line, None when there is no telling, and the line's faults."""
    faults: list[RowFault] = []
    if number == 1 and line.startswith(BYTE_ORDER_MARK):
        line = line[len(BYTE_ORDER_MARK) :]
        faults.append(
            RowFault("row-bom", "the file starts with a byte order mark", "save the file as UTF-8 without BOM")
        )
    if line.endswith(b"\r\n"):
        faults.append(RowFault("row-crlf", "the line ends in CRLF", "save the file with Unix line ends (LF)"))
    elif len(line) >= MAX_ROW_BYTES and not line.endswith(b"\n"):
        message = f"the line is longer than {MAX_ROW_BYTES // 2**20} MiB; nothing after it was checked"
        return None, [*faults, RowFault("row-too-long", message, "split or drop the row")]
    if line.isspace() or not line:
        return None, [*faults, RowFault("row-blank", "the line is blank", "delete the line")]
    row, syntax = parse_row(line)
    if row is None:
        return None, faults + syntax
    return row, faults + syntax + row_faults(row, expected)


def open_rows(path: Path) -> BinaryIO:
    _require_regular_file(path)
    return path.open("rb")


def _require_regular_file(path: Path) -> None:
    """A pipe or a device would block or never end."""
    fix = "give a JSONL file or a folder with training.jsonl"
    try:
        is_regular = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise _missing(path, f"cannot be read: {error.strerror}", fix) from None
    except ValueError as error:  # a NUL character in the path
        raise _missing(path, f"cannot be read: {error}", fix) from None
    if not is_regular:
        raise _missing(path, "is not a regular file", fix)


def _missing(path: Path, message: str, fix: str) -> LauncherError:
    return LauncherError([Problem(code="dataset-missing", path=str(path), message=message, fix=fix)])


def row_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their ends; one that reaches ``MAX_ROW_BYTES`` is cut there and is the last."""
    for line in iter(partial(file.readline, MAX_ROW_BYTES), b""):
        yield line
        if len(line) >= MAX_ROW_BYTES and not line.endswith(b"\n"):
            return


@dataclass(kw_only=True, slots=True)
class _Tally:
    """Adds up a report."""

    path: Path
    num_rows: int = 0
    num_bad_rows: int = 0
    num_rows_with_tools: int = 0
    agents: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    num_dropped: int = 0
    num_crlf: int = 0

    def count(self, row: PromptRow) -> None:
        """Count a row that is an object, right or not."""
        self.num_rows += 1
        agent, params = row.get("agent_ref"), row.get("responses_create_params")
        if isinstance(agent, dict) and isinstance(agent.get("name"), str):
            self.agents[agent["name"]] += 1
        if isinstance(params, dict):
            self.lengths[_rounded(_num_characters(params.get("input")))] += 1
            self.num_rows_with_tools += bool(params.get("tools"))

    def add(self, number: int, faults: list[RowFault]) -> None:
        """Keep a line's faults; CRLF, which every line of a file tends to have, is told once."""
        self.num_bad_rows += 1
        for fault in faults:
            if fault.code == "row-crlf":
                self.num_crlf += 1
                if self.num_crlf > 1:
                    continue
            self.keep(fault.as_problem(f"{self.path}:{number}"))

    def keep(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        else:
            self.num_dropped += 1

    def report(self) -> RowReport:
        if self.num_crlf > 1:
            message = f"{self.num_crlf} lines end in CRLF; the first is given above"
            self._add_about_file("row-crlf", message, "save the file with Unix line ends (LF)")
        if self.num_dropped:
            message = f"{self.num_dropped} more faults; {self.num_bad_rows} bad rows in all"
            self._add_about_file("row-more", message, "correct those listed and check again")
        if not self.num_rows and not self.problems:
            self._add_about_file("dataset-empty", "holds no row", "add at least one prompt row")
        return RowReport(
            path=self.path,
            num_rows=self.num_rows,
            num_bad_rows=self.num_bad_rows,
            agents=dict(self.agents.most_common()),
            num_rows_with_tools=self.num_rows_with_tools,
            prompt_characters=_quantiles(self.lengths),
            problems=tuple(self.problems),
        )

    def _add_about_file(self, code: str, message: str, fix: str) -> None:
        self.problems.append(Problem(code=code, path=str(self.path), message=message, fix=fix))


class _RepeatedLines:
    """Finds lines that occur more than once: 8 bytes a line, and a second look at the file when there are any.

    ``hash`` is keyed anew in each process, so nobody can prepare collisions, and a chance one is ruled out by
    comparing the lines themselves.
    """

    def __init__(self) -> None:
        self._num_lines = 0
        self._buckets = [_Bucket() for _ in range(256)]

    def add(self, line: bytes) -> None:
        if self._num_lines < MAX_TRACKED_ROWS:
            key = hash(line)
            self._buckets[key & 255].add(key)
        self._num_lines += 1

    def problems(self, path: Path) -> Iterator[Problem]:
        if self._num_lines > MAX_TRACKED_ROWS:
            message = f"repeated rows were looked for among the first {MAX_TRACKED_ROWS:,} rows only"
            yield _repeated(str(path), message, fix="split the file to have all of it looked at")
        suspects = {key for bucket in self._buckets for key in bucket.repeated()}
        if not suspects:
            return
        first_seen: dict[bytes, int] = {}
        with open_rows(path) as file:
            for number, line in enumerate(row_lines(file), start=1):
                text = line if line.endswith(b"\n") else line + b"\n"
                if hash(text) not in suspects:
                    continue
                first = first_seen.setdefault(text, number)
                if first != number:
                    fix = "delete it, unless the row is meant to be trained on more often"
                    yield _repeated(f"{path}:{number}", f"is the same row as line {first}", fix)


class _Bucket:
    """64-bit numbers in pages of 4 KiB: one array would be copied, and held twice, each time it grows."""

    PAGE = 512

    def __init__(self) -> None:
        self._full: list[bytes] = []
        self._page = array("q", bytes(8 * self.PAGE))
        self._used = 0

    def add(self, value: int) -> None:
        self._page[self._used] = value
        self._used += 1
        if self._used == self.PAGE:
            self._full.append(self._page.tobytes())
            self._used = 0

    def repeated(self) -> list[int]:
        values = array("q", b"".join(self._full))
        values.extend(self._page[: self._used])
        if len(set(values)) == len(values):
            return []
        return [value for value, count in Counter(values).items() if count > 1]


def _repeated(path: str, message: str, fix: str) -> Problem:
    return Problem(code="row-repeated", path=path, message=message, fix=fix, severity="warning")


def _num_characters(prompt: Any) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    total = 0
    for item in prompt if isinstance(prompt, list) else ():
        match item:
            case {"content": str(text)} | {"output": str(text)} | {"arguments": str(text)}:
                total += len(text)
            case {"content": list(parts)}:
                total += sum(
                    len(part["text"]) for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)
                )
    return total


def _rounded(length: int) -> int:
    """Lengths beyond 4096 rounded to 64, which bounds how many different ones are counted."""
    return length if length < 4096 else (length + 32) // 64 * 64


def _quantiles(lengths: Counter[int]) -> PromptLengths:
    total = lengths.total()
    if not total:
        return PromptLengths(p50=0, p99=0, max=0)
    quantiles: list[int] = []
    seen = 0
    ordered = sorted(lengths.items())
    for share in (0.5, 0.99):
        seen = 0
        for length, count in ordered:
            seen += count
            if seen >= share * total:
                quantiles.append(length)
                break
    return PromptLengths(p50=quantiles[0], p99=quantiles[1], max=ordered[-1][0])
