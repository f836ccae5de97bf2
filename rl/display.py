"""What a person sees while a run goes on, on stderr: phases with elapsed time, one line per step, an ETA.

``open_display`` gives a live display on a terminal and plain lines everywhere else (a log file, CI).
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

HEARTBEAT_S = 15.0
"""A plain display repeats a phase that is still going on this often."""

type Say = Callable[[str], None]
"""Tells the display what a phase is doing right now ("installing 159 packages")."""


class Display(Protocol):
    """Where progress goes. Safe to use from several threads and asyncio tasks."""

    def phase(self, name: str) -> AbstractContextManager[Say]:
        """Show ``name`` with its elapsed time while the block runs; phases may overlap."""
        ...

    def line(self, text: str, *, style: str = "") -> None:
        """Print lines that stay; ``style`` is a rich style, used on a terminal only."""
        ...

    def steps(self, done: int, total: int, doing: str) -> None:
        """Show how far training is, and what it is doing now."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def open_display(stream: TextIO | None = None) -> Display:
    """A live display if ``stream`` (default stderr) is a terminal, else plain lines."""
    stream = sys.stderr if stream is None else stream
    return TerminalDisplay(stream) if stream.isatty() else PlainDisplay(stream)


class PlainDisplay:
    """Lines with the time since the start; a phase prints when it starts, every 15 s, and when it is done."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._started = time.monotonic()
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[Say]:
        started, detail, over = time.monotonic(), "", threading.Event()

        def say(text: str) -> None:
            nonlocal detail
            detail = text

        def beat() -> None:
            while not over.wait(HEARTBEAT_S):
                self.line(f"{name}: {detail or 'still going on'} ({time.monotonic() - started:.0f} s)")

        self.line(f"{name} ...")
        heart = threading.Thread(target=beat, daemon=True)
        heart.start()
        try:
            yield say
            self.line(f"{name}: done in {time.monotonic() - started:.1f} s")
        finally:
            over.set()
            heart.join()

    def line(self, text: str, *, style: str = "") -> None:
        with self._lock:
            self._stream.write(f"[{time.monotonic() - self._started:6.1f} s] {text}\n")
            self._stream.flush()

    def steps(self, done: int, total: int, doing: str) -> None:
        """Plain output has a line per step already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing to stop."""


class TerminalDisplay:
    """Spinners for the phases that run now and a bar for the steps, below the lines that stay."""

    def __init__(self, stream: TextIO):
        self._console = Console(file=stream, highlight=False)
        self._progress = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}", style="dim"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._steps: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    @contextmanager
    def phase(self, name: str) -> Iterator[Say]:
        started = time.monotonic()
        task = self._progress.add_task(name, total=None, detail="")
        try:
            yield lambda text: self._progress.update(task, detail=text)
            self.line(f"✓ {name} {time.monotonic() - started:.1f} s", style="green")
        finally:
            self._progress.remove_task(task)

    def line(self, text: str, *, style: str = "") -> None:
        self._progress.console.print(Text(text, style=style), soft_wrap=True)

    def steps(self, done: int, total: int, doing: str) -> None:
        if self._steps is None:
            self._steps = self._progress.add_task("training", total=total, detail=doing)
        self._progress.update(self._steps, completed=done, total=total, detail=doing)

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()
