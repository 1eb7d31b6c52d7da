"""HTML of text that may hold anything: what is no `Html` yet is escaped on its way in. Tables of
DataFrames, links to trials."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NewType

import numpy as np
import pandas as pd

from raybench.results.load import StudyResults
from raybench.spec.text import clean, shorten

Html = NewType("Html", str)
"""Text that a browser may be given as it is; `text` and `element` make it."""
VOID = ("meta", "link", "input", "br")
"""Elements without an end."""
NOTHING = Html("")


def text(content: object) -> Html:
    """Return any text, escaped; control characters and marks of direction go."""
    return Html(escape(clean(str(content))))


def element(tag: str, *children: Html, **attributes: str | int | bool | None) -> Html:
    """Return `<tag ...>children</tag>`.

    Of attributes' names a last `_` goes, others are `-`: `class_`, `aria_label`. True is an
    attribute without a value; False and None are none.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.removesuffix("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{text(value)}"')
    if tag in VOID:
        return Html(f"<{' '.join(words)}>")
    return Html(f"<{' '.join(words)}>{''.join(children)}</{tag}>")


def join(parts: Iterable[Html], between: str = "\n") -> Html:
    """Return parts one after another; `between` is escaped."""
    return Html(text(between).join(parts) if between.strip() else between.join(parts))


def paragraphs(lines: Iterable[str], **attributes: str | None) -> Html:
    """Return a paragraph a line."""
    return join(element("p", isolated(line), **attributes) for line in lines)


def isolated(content: object) -> Html:
    """Return a text whose letters may run from right to left, and disturb none around it."""
    safe = text(content)
    return safe if safe.isascii() else element("bdi", safe)


def section(name: str, title: str, *children: Html, level: int = 2) -> Html:
    """Return a part of the page that has a heading and can be jumped to; nothing if empty."""
    if not any(children):
        return NOTHING
    heading = element(f"h{level}", isolated(title), id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def folded(summary: str, *children: Html, is_open: bool = False) -> Html:
    """Return what is shown on demand, without a script too."""
    return element("details", element("summary", text(summary)), *children, open=is_open)


def definitions(pairs: Iterable[tuple[str, Html]], class_: str | None = None) -> Html:
    """Return names and what they are."""
    rows = [
        element("div", element("dt", isolated(name)), element("dd", content))
        for name, content in pairs
    ]
    return element("dl", *rows, class_=class_) if rows else NOTHING


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


def row_of(trial_id: int, study: str) -> str:
    """Return the id of a row of the table of trials."""
    return f"{study}-t{trial_id}"


def trial_link(results: StudyResults, trial: str, study: str, words: str = "trial ") -> Html:
    """Return a link to a trial of this study."""
    place = list(results.runs).index(trial)
    name = join([text(words), isolated(trial)], "")
    return element("a", name, href=f"#{row_of(place, study)}", data_study=study, data_trial=trial)


def trial_links(results: StudyResults, trials: Sequence[str], study: str) -> Html:
    """Return links to some trials, after one another."""
    return join([trial_link(results, trial, study, "") for trial in trials], ", ")
