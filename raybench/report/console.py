"""The terminal: one kind of console for all commands, and lines and tables that stay whole."""

import io
import re
import textwrap
import threading
from collections.abc import Sequence
from typing import Any, Self, TextIO

import pandas as pd
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from raybench.spec.text import clean

MIN_TEXT = 30
"""Columns that a text which may take several lines gets, before other columns are left out."""


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


def print_table(
    console: Console,
    cells: pd.DataFrame,
    title: str,
    *,
    drop: Sequence[str] = (),
    wrap: Sequence[str] = (),
    right: Sequence[str] = (),
    below: str = "",
) -> None:
    """Print a table of texts, the lines `below`, an empty line; no head, no cell is ever cut.

    Where the terminal is too narrow, columns of `drop` are left out, the first of them first;
    those of `wrap` take several lines. Columns of `right` are aligned there.
    """
    widths = fit(cells, console.width, drop=drop, wrap=wrap)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    # Of a terminal narrower than what may not be left out, lines are longer, not cut.
    needed = sum(widths.values()) + len(widths) - 1
    table.width = needed if needed > console.width else None
    for name, width in widths.items():
        table.add_column(
            Text("\n".join(_head(name, cells[name]))),
            justify="right" if name in right else "left",
            width=width,
            no_wrap=name not in wrap,
            overflow="fold",
        )
    for row in cells[list(widths)].itertuples(index=False):
        table.add_row(*(Text(cell) for cell in row))
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table, crop=False)
    for line in below.splitlines():
        say(console, line)
    console.print()


def fit(
    cells: pd.DataFrame, width: int, *, drop: Sequence[str], wrap: Sequence[str]
) -> dict[str, int]:
    """Return the columns that fit `width` side by side, and how wide each is."""
    natural = {
        str(name): max(map(cell_len, [*_head(str(name), cells[name]), *cells[name]]), default=0)
        for name in cells.columns
    }
    least = {name: min(wide, MIN_TEXT) if name in wrap else wide for name, wide in natural.items()}
    for name in drop:
        if sum(least.values()) + len(least) - 1 <= width:
            break
        least.pop(name, None)
    room = width - (sum(least.values()) + len(least) - 1)
    for name in wrap:
        if name in least and room > 0:
            more = min(room, natural[name] - least[name])
            least[name] += more
            room -= more
    return least


def _head(name: str, column: pd.Series) -> list[str]:
    """Return a head's lines: no wider than the column needs anyway."""
    widest = max([*map(cell_len, column), *map(cell_len, name.split())], default=1)
    return textwrap.wrap(name, min(widest, MIN_TEXT), break_on_hyphens=False) or [""]


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
