"""The tables of a study as they are printed: numbers in their units, columns that fit."""

from typing import Any

import pandas as pd
from rich.console import Console

from raybench.core.text import clean, shorten
from raybench.results.console import print_table

SECONDS = "{:.2f}"
FORMATS = {
    "best accuracy": "{:.1%}",
    "median accuracy": "{:.1%}",
    "in search accuracy": "{:.1%}",
    "test accuracy": "{:.1%}",
    "samples/s": "{:,.0f}",
    "learning rate": "{:.3g}",
    "share": "{:.0%}",
}
LAYOUT = ("hosts", "GPUs", "waited for")
"""Columns of what runs were on, in tables of runs where it differs."""
WRAPPED = ("configuration", "for example", "waited for")
"""Columns that may take several lines."""
DROPPED = (
    "train s",
    "end to end s",
    "samples/s",
    "waited for",
    "in search s",
    "in search accuracy",
    "global batch",
    "test accuracy",
    "worker s to target",
)
"""Columns that a narrow terminal does not show, the first of them first."""
LONGEST = 400
"""Characters of one cell; the files hold the whole text."""


def print_frame(console: Console, frame: pd.DataFrame, title: str, *, below: str = "") -> None:
    """Print a table, a line `below`, an empty line; numbers right, missing values as a dash."""
    cells = pd.DataFrame({name: _cells(str(name), frame[name]) for name in frame.columns})
    numeric = [name for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    print_table(console, cells, title, drop=DROPPED, wrap=WRAPPED, right=numeric, below=below)


def of_runs(frame: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return a table of runs (`top`) for a terminal: one column for the configuration."""
    label = trials.set_index("trial")["config"]
    kept = ["target after s", "worker s to target", "best accuracy", "samples/s", "train s"]
    if frame["target after s"].isna().all():
        kept = kept[2:]  # nobody reached it, or none is asked for
    head = {"trial": frame["trial"], "configuration": brief(frame["trial"].map(label))}
    own = [name for name in LAYOUT if name in frame]
    return pd.concat(
        [pd.DataFrame(head), frame[["global batch", *own]], frame[[*kept, "end to end s"]]], axis=1
    )


def of_confirmed(table: pd.DataFrame, *, is_timed: bool) -> pd.DataFrame:
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
        middle = {
            "median accuracy": table["median_accuracy"],
            "range": [f"{row['low_accuracy']:.1%} - {row['high_accuracy']:.1%}" for row in rows],
            "in search accuracy": table["search_accuracy"],
        }
    return pd.DataFrame(head | middle | {"test accuracy": table["test_accuracy"]})


def brief(labels: pd.Series) -> pd.Series:
    """Return labels of configurations with the longer framework's name abbreviated."""
    return labels.astype(object).str.replace(r"^tensorflow ", "tf ", regex=True)


def _cells(name: str, column: pd.Series) -> list[str]:
    return [_cell(name, value) for value in column]


def _cell(name: str, value: Any) -> str:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "-"
    if name in FORMATS:
        text = FORMATS[name].format(value)
        return "0%" if text == "-0%" else text
    if isinstance(value, float):
        return SECONDS.format(value)
    return shorten(clean(str(value)), LONGEST)
