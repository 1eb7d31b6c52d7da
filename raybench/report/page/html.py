"""What the page's template takes: texts of anybody, links to trials, tables of DataFrames."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from raybench.results.study import Study
from raybench.spec.text import clean, shorten

MISSING = "-"
DIGITS = 4
"""Of a number."""
LONGEST = 400
"""Characters of a cell; the files hold the whole text."""


def own(content: object) -> Markup:
    """Return any text, escaped; one whose letters may run from right to left disturbs none around
    it. What is Markup stays as it is."""
    if isinstance(content, Markup):
        return content
    safe = escape(clean(str(content)))
    return safe if safe.isascii() else Markup("<bdi>{}</bdi>").format(safe)


def trial_link(results: Study, trial: str, study: str, words: str = "trial ") -> Markup:
    """Return a link to a trial; `study` begins the ids of its study."""
    link = Markup('<a href="#{}-t{}" data-study="{}" data-trial="{}">{}{}</a>')
    place = list(results.runs).index(trial)
    return link.format(study, place, study, clean(trial), words, own(trial))


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    caption: str
    heads: Sequence[tuple[str, bool]]
    """Titles, and whether a column is of numbers."""
    rows: Sequence[Sequence[str]]
    ids: Sequence[str] = ()
    """Of the rows, where they can be jumped to."""


def table_of(frame: pd.DataFrame, caption: str, *, most: int = 100, rest: str = "") -> Table:
    """Return the first `most` rows; the caption says how many there are, `rest` where."""
    first = frame.head(most)
    if len(frame) > most:
        where = f"; {rest} holds all" if rest else ""
        caption = f"{caption}: the first {most:,} of {len(frame):,} rows{where}"
    heads = [(str(name), pd.api.types.is_numeric_dtype(frame[name])) for name in frame.columns]
    columns = [_texts(first[name]) for name in first.columns]
    return Table(caption, heads, list(zip(*columns, strict=True)))


def _texts(column: pd.Series) -> list[str]:
    """Return a column's cells; its numbers have as many decimals as the largest needs."""
    if pd.api.types.is_float_dtype(column):
        sizes = column.abs()[np.isfinite(column) & (column != 0)]
        if len(sizes) and sizes.max() < 1e7 and sizes.min() >= sizes.max() / 1e5:
            decimals = min(max(DIGITS - 1 - math.floor(math.log10(sizes.max())), 0), 5)
            # A zero added: what rounds to nothing has no sign.
            rounded = column.round(decimals) + 0.0
            return [f"{one:,.{decimals}f}" if math.isfinite(one) else MISSING for one in rounded]
    return [shown(value) for value in column]


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
