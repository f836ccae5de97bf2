"""What a command imports, which is what it costs to answer."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "transformers", "vllm", "nemo_automodel")


def imported(arguments: list[str]) -> set[str]:
    code = (
        "import sys; from launcher.cli import main; status = main(sys.argv[1:]); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr); sys.exit(status)"
    )
    answer = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return set(answer.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["check", "recipe=demo"], ["explain", "training.seed", "recipe=demo"],
                                       ["schema", "job"], ["check", "--config-only", "recipe=moe_nemo_rl"]],
                         ids=lambda a: a[0])  # fmt: skip
def test_commands_that_only_check_import_no_engine(arguments: list[str]) -> None:
    assert not imported(arguments) & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["train", "--help"], ["explain", "R08"]],
                         ids=" ".join)  # fmt: skip
def test_help_and_explanations_of_defaults_import_no_hydra(arguments: list[str]) -> None:
    assert not imported(arguments) & {*HEAVY, "hydra", "omegaconf"}


def test_help_imports_no_pydantic() -> None:
    assert "pydantic" not in imported(["--help"])
