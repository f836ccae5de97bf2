"""What all tests share: files of expected text under tests/golden, rewritten with ``--golden``."""

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite tests/golden with what the code says now")


@pytest.fixture
def same_as_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a file under tests/golden, or write it there."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.is_file(), f"tests/golden/{name} is missing; `make golden` writes it"
        assert text == file.read_text(encoding="utf-8"), (
            f"tests/golden/{name} differs; `make golden` accepts the change"
        )

    return compare
