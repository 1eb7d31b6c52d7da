"""The terminal: one kind of console for all commands, and lines and tables that stay whole."""

import io
import re
import threading
from collections.abc import Sequence
from typing import Any, Self, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from raybench.spec.text import clean


class WholeLines(Console):
    """A console on which one thread at a time prints.

    Rich draws a screen and writes it in two steps. A line that another thread prints between them
    is written where the screen was before, and stands beside its last line.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.turn = threading.RLock()

    def __enter__(self) -> Self:
        self.turn.acquire()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self.turn.release()


def make_console(file: TextIO) -> Console:
    """Return a console on `file` that reads no text as markup.

    What the file's encoding cannot hold is written as an escape, not an error.
    """
    if isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="backslashreplace")
    return WholeLines(file=file, markup=False, emoji=False, highlight=False)


def say(console: Console, text: str) -> None:
    """Print one line, however long, as it is: no markup, no control characters."""
    console.print(Text(clean(text)), soft_wrap=True)


BLANK = re.compile(r" (?!(?:%|s|ms|min|h)(?!\w))")
"""A blank at which a line may end: not that between a number and its unit."""
WIDEST = 100
"""Columns of a line of text; longer ones are hard to read."""


def say_wrapped(console: Console, text: str, *, style: str = "") -> None:
    """Print a paragraph in lines as wide as the console, or WIDEST; no word is cut."""
    for line in wrapped(clean(text), min(console.width, WIDEST)):
        console.print(Text(line, style=style), soft_wrap=True)


def wrapped(text: str, width: int) -> list[str]:
    """Return lines of at most `width` columns, but for words that are longer by themselves.

    Columns are those of a terminal: some letters take two.
    """
    lines, line = [], ""
    for word in BLANK.split(text):
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line]


LINE = 90
"""Columns of a line in a notebook."""


class Sentences(tuple[str, ...]):
    """Sentences that a notebook shows, and `print` prints, as paragraphs."""

    def __repr__(self) -> str:
        return "\n".join(line for one in self for line in wrapped(clean(one), LINE))

    __str__ = __repr__


def say_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print a pair a line, the second ones below each other: a command, however long."""
    width = max((cell_len(first) for first, _ in pairs), default=0)
    for first, second in pairs:
        say(console, f"{first}:{' ' * (width - cell_len(first))} {second}")
