"""Numbers that others computed are of use only where a test compares ours with them."""

from pathlib import Path

TESTS = Path(__file__).parent


def test_every_file_of_vectors_is_read_by_a_test() -> None:
    tests = "\n".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    vectors = {file.name for file in (TESTS / "vectors").iterdir()}
    assert len(vectors) >= 21
    assert {name for name in vectors if f'"{name}"' not in tests} == set()
