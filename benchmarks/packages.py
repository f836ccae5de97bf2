"""How fast packages and rows are checked, and in how much memory.

    python benchmarks/packages.py [--rows 400000] [--gigabytes 1]

Prints seconds to validate a package of 10,000 files, rows checked per second on one core (in processor time) beside
``json.loads`` of the same lines, and the memory that a large file takes per row.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.dataset import check_rows
from launcher.environment.package import check_package
from launcher.environment.scaffold import scaffold_package
from launcher.row_faults import RowExpectations

NUM_FILES = 10_000
LINE_BYTES = 300
EXPECTED = RowExpectations(agents=frozenset({"lists_agent"}), verifiers_agents=frozenset(), vf_env_id=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--measure-memory", nargs=2, metavar="FILE", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_memory:
        print(*peak_growth(options.measure_memory))
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        validate_package(scratch)
        check_speed(scratch, options.rows)
        check_memory(scratch, options.gigabytes)


def validate_package(scratch: Path) -> None:
    """A scaffold with 10,000 more files."""
    package = Path(scaffold_package("lists", format="native-v1", into=scratch).package)
    for index in range(NUM_FILES):
        path = package / "resources_servers/lists/data" / f"{index % 100:02}" / f"{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    began = time.process_time()
    problems = check_package(package)
    seconds = time.process_time() - began
    assert not problems
    command = [sys.executable, "-c", "from launcher.cli import main; main()", "env", "validate", str(package)]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - began
    print(f"package of {NUM_FILES:,} files: {seconds:.2f} s; the whole command {whole:.2f} s (goal: 1 s)")


def check_speed(scratch: Path, num_rows: int) -> None:
    path = write_rows(scratch / "speed.jsonl", num_rows)
    lines = path.read_bytes().splitlines()
    began = time.process_time()
    for line in lines:
        json.loads(line)
    parsing = time.process_time() - began
    began = time.process_time()
    report = check_rows(path, expected=EXPECTED)
    checking = time.process_time() - began
    assert report.num_rows == num_rows
    assert not report.problems
    print(f"rows of {LINE_BYTES} bytes: {num_rows / checking:,.0f} a second on one core (goal: 80,000)")
    print(f"  {checking / parsing:.2f} times json.loads of the same lines ({num_rows / parsing:,.0f} a second)")
    path.unlink()


def check_memory(scratch: Path, gigabytes: float) -> None:
    num_rows = int(gigabytes * 1e9 / (LINE_BYTES + 1))
    half = write_rows(scratch / "half.jsonl", num_rows // 2)
    whole = write_rows(scratch / "whole.jsonl", num_rows)
    command = [sys.executable, __file__, "--measure-memory", str(half), str(whole)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grown_half, grown = (int(word) for word in output.split())
    per_row = (grown - grown_half) / (num_rows - num_rows // 2)
    print(
        f"file of {whole.stat().st_size / 1e9:.2f} GB, {num_rows:,} rows: {grown / 1e6:.0f} MB more than a small file"
    )
    print(f"  {per_row:.1f} bytes for each row more (goal: 8)")


def peak_growth(paths: Sequence[Path]) -> list[int]:
    """Bytes that the check of each file adds to the peak of a process that has checked a small file before."""
    check_rows(write_rows(paths[0].with_name("small.jsonl"), 1000), expected=EXPECTED)
    before = peak_bytes()
    grown = []
    for path in paths:
        check_rows(path, expected=EXPECTED)
        grown.append(peak_bytes() - before)
    return grown


def peak_bytes() -> int:
    """Peak of this process's own memory. ``getrusage`` would count what its parent had before it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def write_rows(path: Path, num_rows: int) -> Path:
    """Distinct rows of exactly ``LINE_BYTES`` bytes."""
    with path.open("w") as file:
        for index in range(num_rows):
            text = f"Write a numbered list of {index} things, like '1. name'."
            row = {
                "responses_create_params": {"input": [{"role": "user", "content": text}]},
                "agent_ref": {"type": "responses_api_agents", "name": "lists_agent"},
                "num_items": index,
                "note": "",
            }
            row["note"] = "x" * (LINE_BYTES - len(json.dumps(row)))
            file.write(json.dumps(row) + "\n")
    return path


if __name__ == "__main__":
    main()
