"""Last words -> what they mean."""

import pytest

from gym_bridge.causes import failed_install, missing_module


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'scorer.rules'",
        "ModuleNotFoundError(\"No module named 'scorer.rules'\")",
        "Hit an exception: b'\"ModuleNotFoundError(\\\"No module named \\'scorer.rules\\'\\\")\"'",
    ],
)
def test_a_module_that_is_missing_is_named_however_often_the_error_was_quoted(text: str) -> None:
    assert missing_module(text).startswith("the server's environment lacks 'scorer.rules': name its project in the req")


@pytest.mark.parametrize("text", ["", "ValueError: No module named sense", "ModuleNotFoundError"])
def test_other_words_name_no_module(text: str) -> None:
    assert missing_module(text) == ""


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("error: Failed to fetch: `http://127.0.0.1:9/simple/x/`", "no package index answered"),
        ("  Caused by: dns error: failed to lookup address information", "no package index answered"),
        (
            "x has no wheels with a matching platform tag (e.g., `manylinux_2_36_x86_64`)",
            "a wheel was built for another",
        ),
        ("we can conclude that your requirements are unsatisfiable.", "the versions that are asked for exclude each"),
        ("error: Distribution not found at: file:///no-such.whl", ""),
    ],
)
def test_what_uv_gives_up_for(words: str, cause: str) -> None:
    found = failed_install(words)
    assert found.startswith(cause)
    assert bool(found) == bool(cause)
