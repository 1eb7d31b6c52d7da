"""Sentences on a terminal: lines end between words, and commands stay whole to be copied."""

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from raybench.core.text import clean
from raybench.results.console import say

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


def say_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print a pair a line, the second ones below each other: a command, however long."""
    width = max((cell_len(first) for first, _ in pairs), default=0)
    for first, second in pairs:
        say(console, f"{first}:{' ' * (width - cell_len(first))} {second}")
