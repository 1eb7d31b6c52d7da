"""A DataFrame as an HTML table: numbers in few digits, heads that a screen reader tells."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from raybench.core.text import shorten
from raybench.results.page.html import Html, element, isolated, text

MISSING = "-"
LONGEST = 400
"""Characters of a cell; the files hold the whole text."""


def frame_table(frame: pd.DataFrame, caption: str, *, most: int = 100, rest: str = "") -> Html:
    """Return a table of the first `most` rows, which says how many there are; `rest`: where."""
    shown = frame.head(most)
    more = len(frame) - len(shown)
    where = f"; {rest} holds all" if rest else ""
    words = f"{caption}: the first {most:,} of {len(frame):,} rows{where}" if more else caption
    is_number = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns]
    heads = [
        element("th", isolated(name), scope="col", class_="number" if numeric else None)
        for name, numeric in zip(frame.columns, is_number, strict=True)
    ]
    rows = [
        element("tr", *_cells(row, is_number)) for row in shown.itertuples(index=False, name=None)
    ]
    return scrolled(
        element(
            "table",
            element("caption", isolated(words)),
            element("thead", element("tr", *heads)),
            element("tbody", *rows),
        ),
        words,
    )


def scrolled(table: Html, label: str) -> Html:
    """Return a table in a frame that scrolls sideways, by keys too."""
    return element("div", table, class_="scroll", role="region", tabindex=0, aria_label=label)


def _cells(row: Sequence[Any], is_number: Sequence[bool]) -> list[Html]:
    cells = [
        element("td", isolated(shown(value)), class_="number" if numeric else None)
        for value, numeric in zip(row[1:], is_number[1:], strict=True)
    ]
    return [element("th", isolated(shown(row[0])), scope="row"), *cells]


def shown(value: Any) -> str:
    """Return a cell's text: four digits of a number, a dash where nothing is known."""
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return number(float(value))
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return shorten(str(value), LONGEST)


def number(value: float) -> str:
    """Return four digits of a number, thousands apart; a dash of what is infinite."""
    if not math.isfinite(value):
        return MISSING
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        digits = 0 if abs(value) >= 1000 else 3 - max(math.floor(math.log10(abs(value) or 1)), 0)
        if abs(value) < 1:
            return f"{value:.4g}"
        return f"{value:,.{digits}f}"
    return f"{value:.4g}"


def notes(lines: Sequence[str]) -> Html:
    """Return sentences as a list."""
    if not lines:
        return Html("")
    return element("ul", *(element("li", isolated(line)) for line in lines), class_="notes")


def code(content: str, **attributes: str | None) -> Html:
    """Return a command or a file, to copy; one that is too wide scrolls, by keys too."""
    return element("pre", element("code", text(content), dir="ltr"), tabindex=0, **attributes)
