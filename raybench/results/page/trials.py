"""The table of trials: its best rows as they are, all of them as data for the script."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from raybench.core.text import clean
from raybench.results.load import StudyResults
from raybench.results.page.columns import Column, columns_of, order_of
from raybench.results.page.html import Html, element, isolated, text
from raybench.results.page.links import row_of
from raybench.results.page.tables import MISSING, number, scrolled
from raybench.results.page.trial_data import data_block, details_json, rows_json

MOST = 50
"""Rows that stand there without a script."""


def trials_part(results: StudyResults, study: str) -> tuple[Html, Html]:
    """Return the table, and its data: the last thing of a page, so that it is seen before."""
    columns, order = columns_of(results), order_of(results)
    first = order[:MOST]
    caption = f"The {len(first)} best of {len(order):,} runs"
    if len(first) == len(order):
        caption = f"All {len(order)} runs, best first"
    heads = [
        element("th", isolated(one.title), scope="col", class_=_class(one.kind)) for one in columns
    ]
    table = element(
        "table",
        element("caption", element("span", text(caption))),
        element("thead", element("tr", *heads)),
        element("tbody", *(_row(columns, place, study) for place in first)),
    )
    part = element(
        "div",
        element("div", class_="controls", hidden=True),
        scrolled(table, "Trials"),
        element("div", class_="pager", hidden=True),
        class_="trials",
        data_study=study,
    )
    rows = data_block(f"{study}-rows", rows_json(results, columns, order))
    details = data_block(f"{study}-details", details_json(results, order))
    return part, Html(rows + "\n" + details)


def _row(columns: Sequence[Column], place: int, study: str) -> Html:
    name, *rest = columns
    head = element("th", isolated(clean(str(name.cells[place]))), scope="row")
    cells = [
        element("td", isolated(_shown(one.cells[place], one.kind)), class_=_class(one.kind))
        for one in rest
    ]
    return element("tr", head, *cells, id=row_of(place, study))


def _class(kind: str) -> str | None:
    return None if kind == "text" else "number"


def _shown(value: Any, kind: str) -> str:
    """Return a cell as the script writes it (`cell` in js/cells.js)."""
    if value is None or pd.isna(value):
        return MISSING
    if kind == "text":
        return str(value)
    if kind == "count":
        return f"{int(value):,}"
    if kind == "seconds":
        return f"{value:,.2f}"
    if kind == "share":
        return f"{100 * value:.1f} %"
    return f"{value:.3g}" if kind == "rate" else number(float(value))
