"""The console on which all commands print, and functions that print lines and paragraphs on it."""

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
    """A console on which only one thread prints at a time.

    Rich writes a live screen in two steps. Without the lock `turn`, a line that another thread
    prints between the two would appear beside the last line of the screen.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
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
    """Return a console that prints to a file, without interpreting markup.

    Characters that the encoding of the file does not support are written as escapes.
    """
    if isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="backslashreplace")
    return WholeLines(file=file, markup=False, emoji=False, highlight=False)


def say(console: Console, text: str) -> None:
    """Print one line of any length, with control characters removed."""
    console.print(Text(clean(text)), soft_wrap=True)


BREAK = re.compile(r" (?!(?:%|s|ms|min|h)(?!\w))")
"""Matches a space at which a line may break; there is no break between a number and its unit."""
PARAGRAPH_WIDTH = 100
"""Maximum width of a paragraph, in terminal columns."""


def say_wrapped(console: Console, text: str, *, style: str = "") -> None:
    """Print a paragraph wrapped at the width of the console, at most PARAGRAPH_WIDTH."""
    for line in wrapped(clean(text), min(console.width, PARAGRAPH_WIDTH)):
        console.print(Text(line, style=style), soft_wrap=True)


def wrapped(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width` terminal columns; only single words may be
    longer."""
    lines, line = [], ""
    for word in BREAK.split(text):
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line]


NOTEBOOK_WIDTH = 90
"""Maximum width of a line in a notebook, in columns."""


class Sentences(tuple[str, ...]):
    """List of sentences that is displayed as wrapped paragraphs (`repr` and `str`)."""

    def __repr__(self) -> str:
        return "\n".join(
            line for sentence in self for line in wrapped(clean(sentence), NOTEBOOK_WIDTH)
        )

    __str__ = __repr__


def say_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print one pair per line, with the second items aligned."""
    width = max((cell_len(label) for label, _ in pairs), default=0)
    for label, text in pairs:
        say(console, f"{label}:{' ' * (width - cell_len(label))} {text}")
