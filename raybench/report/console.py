"""The console on which all commands print: lines, paragraphs, and tables of strings with formatted
cells and as many columns as fit."""

import io
import math
import numbers
import re
import string
import textwrap
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TextIO

import pandas as pd
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from raybench.spec.metric import Metric
from raybench.spec.text import clean, seconds_text, shorten


class WholeLines(Console):
    """A console on which only one thread prints at a time.

    Rich writes a live screen in two steps. Without the lock `turn`, a line that another thread
    prints between these steps would appear beside the last line of the screen.
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
"""Pattern of a space at which a line may break: any space except that between a number and its
unit."""
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
    """Tuple of sentences that is displayed as wrapped paragraphs (`repr` and `str`)."""

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


MISSING, MARK = "-", "*"
"""MISSING: text for a missing or infinite value. MARK: suffix of an interpolated value."""
LONGEST_CELL = 400
"""Maximum number of characters in a cell; files such as trials.csv contain the whole text."""


class _Formatter(string.Formatter):
    """Formats a cell; the format `s` of a number means seconds (`seconds_text`)."""

    def format_field(self, value: Any, form: str) -> str:
        is_seconds = form == "s" and isinstance(value, numbers.Real)
        return seconds_text(float(value)) if is_seconds else format(value, form)


class _Missing:
    def __format__(self, form: str) -> str:
        return MISSING


CellFormat = str | Callable[[Mapping[Any, Any]], str]
"""Type of a cell format: a format string such as `{low:.2f} - {high:.2f}`, or a function from a row
of data to the text of the cell, for column names that a format string cannot contain. In a format
string, `s` is the format of seconds (see `seconds_text`)."""


def texts(frame: pd.DataFrame, forms: Mapping[str, CellFormat]) -> pd.DataFrame:
    """Format a DataFrame as a table of strings, without columns that have no values.

    Args:
        frame: Data with the same rows as the table; NaN and infinity are missing values.
        forms: Format of each column of the table, keyed by its title.
    """
    is_known = frame.notna() & ~frame.isin([math.inf, -math.inf])
    missing: Any = _Missing()
    rows = frame.astype(object).where(is_known, missing).to_dict("records")
    cells = {name: [_text(form, row) for row in rows] for name, form in forms.items()}
    return without_unknown(pd.DataFrame(cells, dtype=object))


def without_unknown(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the columns in which all values are missing, from a table of strings."""
    return table[[name for name in table if not table[name].str.strip().isin([MISSING, ""]).all()]]


def _text(form: CellFormat, row: Mapping[Any, Any]) -> str:
    values = defaultdict(_Missing, row)
    text = form(values) if callable(form) else _Formatter().vformat(form, (), values)
    if callable(form) or " - " in form:  # an interval with a missing end is missing
        text = re.sub(r"\S+ - -|- - \S+", MISSING, text.replace(" (- - -)", ""))
    replacements = {"-0%": "0%", MISSING + MARK: f"{MISSING} "}
    return replacements.get(text) or shorten(clean(text), LONGEST_CELL)


WRAPPED = (
    *("configuration", "for example", "waited for", "series", "claim", "published", "here"),
    *("made from", "with"),
)
"""Columns whose cells may be wrapped."""
MIN_TEXT = 30
"""Minimum width of a column of WRAPPED; other columns are dropped if there is less space."""
LEFT = ("trial", "90 % interval", *WRAPPED)
NUMERIC = re.compile(r"[\d.,%*()~ -]*")
"""Pattern of numeric cells. A column whose cells all match is right-aligned, unless its title is in
LEFT."""
DROPPED = (
    *("train s", "total s", "samples/s", "waited for", "search ", "global batch", "test "),
    *("worker-s", "alone s"),
)
"""Titles of columns that are dropped on a narrow terminal, in this order; a title that ends with a
space is a prefix."""
MARK_SAYS = f"{MARK} interpolated: where the line between two evaluations crosses the target"
MARKED = ("s to target", "worker-s", "median s", "expected s", "alone s")
DISTURBED = "!"
DISTURBED_SAYS = (
    f"{DISTURBED} disturbed: for at least a quarter of its training time, others used the cores"
)


def print_frame(
    console: Console,
    frame: pd.DataFrame,
    title: str,
    *,
    below: str = "",
    drop: Sequence[str] = DROPPED,
    is_explained: bool = True,
) -> None:
    """Print a table of strings, the lines below it, and an empty line. No cell is truncated.

    Args:
        console: Where to print.
        frame: Table of strings.
        title: Line above the table.
        below: Lines below the table.
        drop: Titles of columns that are dropped on a narrow terminal, in this order; a title that
            ends with a space is a prefix.
        is_explained: Whether a line below the table explains MARK, if it occurs in a cell.
    """
    cells = frame.astype(str)
    notes = [*below.splitlines(), *([MARK_SAYS] if is_explained and has_marks(cells) else [])]
    if "trial" in cells and cells["trial"].str.endswith(DISTURBED).any():
        notes.append(DISTURBED_SAYS)
    widths = {str(name): _least_width(str(name), cells[name]) for name in cells}
    dropped = [column for title in drop for column in widths if _has_title(column, title)]
    for name in dict.fromkeys(dropped):
        if sum(widths.values()) + len(widths) - 1 > console.width:
            del widths[name]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    # If the terminal is still too narrow, lines are longer than the terminal and not truncated.
    needed = sum(widths.values()) + len(widths) - 1
    table.width = needed if needed > console.width else None
    for name, width in widths.items():
        is_right = name not in LEFT and all(map(NUMERIC.fullmatch, cells[name]))
        table.add_column(
            Text("\n".join(_head(name, cells[name]))),
            justify="right" if is_right else "left",
            min_width=width,
            no_wrap=name not in WRAPPED,
            overflow="fold",
        )
    for row in cells[list(widths)].itertuples(index=False):
        table.add_row(*(Text(cell) for cell in row))
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table, crop=False)
    for line in notes:
        for part in wrapped(line, console.width):
            say(console, part)
    console.print()


def _has_title(column: str, title: str) -> bool:
    """Return whether a column has a title; a title that ends with a space is a prefix."""
    return column == title or (title.endswith(" ") and column.startswith(title))


def _least_width(name: str, column: pd.Series) -> int:
    """Return the minimum width of a column: the width of its longest cell, or less if its cells may
    be wrapped."""
    natural = max(map(cell_len, [*_head(name, column), *column]), default=0)
    return min(natural, MIN_TEXT) if name in WRAPPED else natural


def _head(name: str, column: pd.Series) -> list[str]:
    """Break the title of a column into lines that are no wider than its cells, or than the longest
    word of the title."""
    widest = max([*map(cell_len, column), *map(cell_len, name.split())], default=1)
    return textwrap.wrap(name, min(widest, MIN_TEXT), break_on_hyphens=False) or [""]


def has_marks(cells: pd.DataFrame) -> bool:
    """Return whether a table of strings contains an interpolated time (MARK)."""
    return any(cells[name].str.endswith(MARK).any() for name in MARKED if name in cells)


def value_form(metric: Metric, *columns: str) -> CellFormat:
    """Return the format for the metric value in a column, or for an interval in two columns."""
    form = ".1%" if metric.is_share else ".4g"
    return lambda row: " - ".join(format(row[column], form) for column in columns)
