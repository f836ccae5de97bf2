"""What a Ray actor printed, kept in a file of the run, so that its death can be told with its own last words.

Ray reports "the actor died"; the cause (out of memory, a failed assertion in a library) is on the actor's stderr.
"""

import os
import sys
from pathlib import Path

NUM_LAST_LINES = 20
TAIL_BYTES = 16 * 1024


def redirect_output(log_file: Path) -> None:
    """Send this process's stdout and stderr, and those of its children, to ``log_file`` from now on."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)


def last_words(log_file: Path) -> str:
    """The end of an actor's output, indented, with where the rest is."""
    if not log_file.exists():
        return f"it printed nothing ({log_file} does not exist)"
    with log_file.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-NUM_LAST_LINES:]
    return "\n".join([f"its last output ({log_file}):", *(f"  {line}" for line in lines or ["(none)"])])
