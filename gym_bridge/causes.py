"""What the last words of a server or of uv mean for the package, and what to do: one phrase, or none. Pure."""

import re

_MISSING_MODULE = re.compile(r"ModuleNotFoundError\W+No module named \\*'([\w.]+)")
_NO_INDEX = re.compile(
    r"Failed to fetch|error sending request|dns error|failed to lookup address|operation timed out|Could not connect",
    re.IGNORECASE,
)
_INSTALL_CAUSES = (
    (
        re.compile(r"no wheels with a matching (platform|Python)"),
        "a wheel was built for another platform or Python: build wheels/ again for this one",
    ),
    (
        re.compile(r"requirements are unsatisfiable"),
        "the versions that are asked for exclude each other, or wheels/ holds two versions of one project: "
        "clear it and vendor again",
    ),
)


def missing_module(text: str) -> str:
    """Of a server that could not import something."""
    found = _MISSING_MODULE.search(text)
    if found is None:
        return ""
    return (
        f"the server's environment lacks {found[1]!r}: name its project in the requirements.txt of the server's "
        "folder, and vendor it where the package has wheels/"
    )


def failed_install(text: str) -> str:
    """Of an installation that uv gave up."""
    if _NO_INDEX.search(text):
        return (
            "no package index answered: check the network, the proxy and UV_DEFAULT_INDEX, or vendor what the server "
            "requires (grpo env vendor)"
        )
    return next((cause for pattern, cause in _INSTALL_CAUSES if pattern.search(text)), "")
