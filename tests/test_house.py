"""Rules of the house that a reader relies on: who imports whom, and what importing costs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(file for package in ("launcher", "gym_bridge", "rl") for file in (ROOT / package).rglob("*.py"))
HEAVY = ("torch", "ray", "vllm", "transformers", "nemo_automodel")
RUNS_ELSEWHERE = {ROOT / "gym_bridge" / "host.py"}
"""Runs under Gym's own Python, where none of our packages exist."""


def imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom(module=str(module)):
            yield module


def at_import_time(tree: ast.Module) -> Iterator[str]:
    """Modules that importing this file imports: those outside functions and of no ``if TYPE_CHECKING`` block."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield from imported(node)
        waiting += ast.iter_child_nodes(node)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file: Path) -> None:
    """launcher.schema <- gym_bridge <- rl; the rest of launcher imports rl only inside functions, and nothing heavy."""
    tree = ast.parse(file.read_text())
    anywhere = {module for node in ast.walk(tree) for module in imported(node)}
    at_once = set(at_import_time(tree))
    package = file.relative_to(ROOT).parts[0]
    if file in RUNS_ELSEWHERE:
        assert not [module for module in anywhere if within(module, "launcher", "rl", "gym_bridge")]
    elif file.is_relative_to(ROOT / "launcher" / "schema"):
        assert not [
            m for m in anywhere if within(m, "launcher", "gym_bridge", "rl") and not within(m, "launcher.schema")
        ]
    elif package == "launcher":
        assert not [module for module in at_once if within(module, *HEAVY)]
        assert not [module for module in at_once if within(module, "rl") and not within(module, "rl.nemo_rl")]
    elif package == "gym_bridge":
        assert not [module for module in at_once if within(module, *HEAVY, "rl")]
        assert not [m for m in anywhere if within(m, "launcher") and not within(m, "launcher.schema")]


@pytest.mark.parametrize(
    "command", ["--help", "check recipe=demo", "explain R08", "env validate recipes/demo/environment"]
)
def test_the_launcher_imports_no_engine(command: str) -> None:
    script = (
        "import sys, launcher.cli\n"
        f"status = launcher.cli.main({command.split()!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else status)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_files_can_be_read_in_one_sitting() -> None:
    tables = {"launcher/environment/gym_facts.py", "rl/metric_table.py"}
    long = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in FILES}
    assert not {name: lines for name, lines in long.items() if lines > 400 and name not in tables}
