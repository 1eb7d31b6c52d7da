"""A DataFrame as an HTML table: numbers in few digits, heads that a screen reader tells."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from raybench.core.text import clean, shorten
from raybench.results.page.html import Html, element, isolated, text

MISSING = "-"
DIGITS = 4
"""Of a number."""
LONGEST = 400
"""Characters of a cell; the files hold the whole text."""


def frame_table(frame: pd.DataFrame, caption: str, *, most: int = 100, rest: str = "") -> Html:
    """Return a table of the first `most` rows, which says how many there are; `rest`: where."""
    first = frame.head(most)
    more = len(frame) - len(first)
    where = f"; {rest} holds all" if rest else ""
    words = f"{caption}: the first {most:,} of {len(frame):,} rows{where}" if more else caption
    is_number = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns]
    heads = [
        element("th", isolated(name), scope="col", class_="number" if numeric else None)
        for name, numeric in zip(frame.columns, is_number, strict=True)
    ]
    columns = [_texts(first[name]) for name in first.columns]
    rows = [element("tr", *_row(cells, is_number)) for cells in zip(*columns, strict=True)]
    return scrolled(
        element(
            "table",
            element("caption", element("span", isolated(words))),
            element("thead", element("tr", *heads)),
            element("tbody", *rows),
        ),
        words,
    )


def scrolled(table: Html, label: str) -> Html:
    """Return a table in a frame that scrolls sideways, by keys too."""
    return element("div", table, class_="scroll", role="region", tabindex=0, aria_label=label)


def _row(cells: Sequence[str], is_number: Sequence[bool]) -> list[Html]:
    """Return a row's cells; the first is its head."""
    head, *rest = cells
    return [
        element("th", isolated(head), scope="row"),
        *(
            element("td", isolated(cell), class_="number" if numeric else None)
            for cell, numeric in zip(rest, is_number[1:], strict=True)
        ),
    ]


def _texts(column: pd.Series) -> list[str]:
    """Return a column's cells; its numbers have as many decimals as the largest needs."""
    if not pd.api.types.is_float_dtype(column):
        return [shown(value) for value in column]
    sizes = column.abs()[np.isfinite(column) & (column != 0)]
    if sizes.empty or sizes.max() >= 1e7 or sizes.min() < sizes.max() / 1e5:
        return [shown(value) for value in column]
    decimals = min(max(DIGITS - 1 - math.floor(math.log10(sizes.max())), 0), 5)
    # A zero added: what rounds to nothing has no sign.
    rounded = column.round(decimals) + 0.0
    return [f"{one:,.{decimals}f}" if math.isfinite(one) else MISSING for one in rounded]


def shown(value: Any) -> str:
    """Return a single value: four digits of a number, a dash where nothing is known."""
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return number(float(value))
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return shorten(clean(str(value)), LONGEST)


def number(value: float) -> str:
    """Return four digits of a number, whole ones from a thousand on; a dash of infinity."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{DIGITS}g}"


def notes(lines: Sequence[str]) -> Html:
    """Return sentences as a list."""
    if not lines:
        return Html("")
    return element("ul", *(element("li", isolated(line)) for line in lines), class_="notes")


def code(content: str, **attributes: str | None) -> Html:
    """Return a command or a file, to copy; one that is too wide scrolls, by keys too."""
    return element("pre", element("code", text(content), dir="ltr"), tabindex=0, **attributes)
