"""The tables of a study as they are printed: numbers in their units, columns that fit."""

from typing import Any

import pandas as pd
from rich.console import Console

from raybench.core.metric import ACCURACY, Metric
from raybench.core.text import clean, shorten
from raybench.results.console import print_table

SECONDS = "{:.2f}"
FORMATS = {
    "samples/s": "{:,.0f}",
    "learning rate": "{:.3g}",
    "share": "{:.0%}",
}
LAYOUT = ("hosts", "GPUs", "waited for")
"""Columns of what runs were on, in tables of runs that it tells apart."""
WRAPPED = ("configuration", "for example", "waited for")
"""Columns that may take several lines."""
SHARE, OTHER = "{:.1%}", "{:.4g}"
"""Formats of a metric that is a share, and of others."""
DROPPED = (
    "train s",
    "end to end s",
    "samples/s",
    "waited for",
    "in search s",
    "in search {metric}",
    "global batch",
    "test {metric}",
    "worker s to target",
)
"""Columns that a narrow terminal does not show, the first of them first."""
LONGEST = 400
"""Characters of one cell; the files hold the whole text."""


def print_frame(
    console: Console, frame: pd.DataFrame, title: str, *, below: str = "", metric: Metric = ACCURACY
) -> None:
    """Print a table, a line `below`, an empty line; numbers right, missing values as a dash.

    `metric` says how columns of its name are written.
    """
    own = SHARE if metric.is_share else OTHER
    kinds = ("best", "median", "in search", "test")
    formats = FORMATS | {f"{kind} {metric.words}": own for kind in kinds}
    cells = pd.DataFrame(
        {name: [_cell(value, formats.get(str(name))) for value in frame[name]] for name in frame}
    )
    numeric = [name for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    drop = [name.format(metric=metric.words) for name in DROPPED]
    print_table(console, cells, title, drop=drop, wrap=WRAPPED, right=numeric, below=below)


def of_runs(
    frame: pd.DataFrame, trials: pd.DataFrame, *, metric: Metric = ACCURACY
) -> pd.DataFrame:
    """Return a table of runs (`top`) for a terminal: one column for the configuration."""
    label, best = trials.set_index("trial")["config"], f"best {metric.words}"
    kept = ["target after s", "worker s to target", best, "samples/s", "train s"]
    if frame["target after s"].isna().all():
        kept = kept[2:]  # nobody reached it, or none is asked for
    head = {"trial": frame["trial"], "configuration": brief(frame["trial"].map(label))}
    own = [name for name in LAYOUT if name in frame]
    return pd.concat(
        [pd.DataFrame(head), frame[["global batch", *own]], frame[[*kept, "end to end s"]]], axis=1
    )


def of_confirmed(table: pd.DataFrame, *, is_timed: bool, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Return `confirmed` for a terminal; `is_timed`: judged by the time to a target."""
    rows = table.to_dict("records")
    head = {
        "trial": table["trial"],
        "configuration": brief(table["config"]),
        "reached" if is_timed else "finished": [f"{row['hits']} of {row['runs']}" for row in rows],
    }
    if is_timed:
        middle = {
            "median s": table["median_s"],
            "range s": [f"{row['low_s']:.2f} - {row['high_s']:.2f}" for row in rows],
            "worker s to target": table["worker_seconds_to_target"],
            "in search s": table["search_s"],
        }
    else:
        name, form = metric.name, SHARE if metric.is_share else OTHER
        ranges = [
            (form.format(row[f"low_{name}"]), form.format(row[f"high_{name}"])) for row in rows
        ]
        middle = {
            f"median {metric.words}": table[f"median_{name}"],
            "range": [" - ".join(ends) for ends in ranges],
            f"in search {metric.words}": table[f"search_{name}"],
        }
    return pd.DataFrame(head | middle | {f"test {metric.words}": table[metric.test_column]})


def brief(labels: pd.Series) -> pd.Series:
    """Return labels of configurations with the longer framework's name abbreviated."""
    return labels.astype(object).str.replace(r"^tensorflow ", "tf ", regex=True)


def _cell(value: Any, form: str | None) -> str:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "-"
    if form is not None:
        text = form.format(value)
        return "0%" if text == "-0%" else text
    if isinstance(value, float):
        return SECONDS.format(value)
    return shorten(clean(str(value)), LONGEST)
