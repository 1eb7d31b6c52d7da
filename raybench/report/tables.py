"""The tables printed at the end of a study: numbers in their units, columns that fit."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from raybench.report.console import print_table, wrapped
from raybench.results.analyses import ledger_totals as ledger_totals
from raybench.results.ranking import ranked as ranked
from raybench.results.store import ERRORS_FOLDER
from raybench.results.study import Study
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.text import clean, shorten

NUMBERS = re.compile(rf"\S*\b{ERRORS_FOLDER}/\S+|0x[0-9a-fA-F]+|\d+(?:\.\d+)?")

LONGEST_CAUSE = 2000
"""Characters of a message by which causes are distinguished."""


def cause_of(failure: str, message: str | None) -> str:
    """Return the same text for failures of one cause, whatever numbers (sizes, pids, the trial's
    own file) their messages hold."""
    return f"{failure}: {NUMBERS.sub('#', (message or '')[:LONGEST_CAUSE])}"


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the distinct causes of failed runs, the most frequent first.

    Columns: failure, runs (how many), for example (the first one's message).
    """
    failed = trials[trials["state"] == "failed"]
    rows: dict[str, dict[str, str | int]] = {}
    for failure, message in zip(failed["failure"], failed["message"], strict=True):
        row = rows.setdefault(
            cause_of(failure, message),
            {"failure": failure, "runs": 0, "for example": message or "no message"},
        )
        row["runs"] = int(row["runs"]) + 1
    table = pd.DataFrame(rows.values(), columns=["failure", "runs", "for example"])
    return table.sort_values("runs", ascending=False, kind="stable", ignore_index=True)


BATCH_STATISTICS = (
    "The model has batch normalisation over each worker's own samples, so what it learns depends "
    "on the batch per worker too, and predictions (~) for other splits are rough. "
    "--set search.factorise=false --fresh samples workers like the rest."
)


def best_runs(trials: pd.DataFrame, number: int, metric: Metric) -> pd.DataFrame:
    """Return the best runs of the search that measured anything."""
    begun = trials[trials[metric.best_column].notna() | (trials["state"] == "failed")]
    return ranked(begun).head(number)


def predictions(results: Study, *, number: int = 6) -> pd.DataFrame:
    """Return the fastest splits that no run has measured, by the step-time model.

    Columns: trial (whose learning curve is carried over), configuration, "seconds ~" and
    "worker s ~" to the target; the `~` says predicted.
    """
    run = {results.label(spec) for spec in results.specs.values()}
    rows = []
    for row in results.predictions.to_dict("records"):
        if row["trial"] not in results.specs:
            continue  # its run was lost
        seconds = float(row["time_to_target_s"])
        split = {key: row[key] for key in ("framework", "num_workers", "batch_size_per_worker")}
        label = results.label(results.specs[row["trial"]].model_copy(update=split))
        if label not in run:
            rows.append((row["trial"], label, seconds, seconds * row["num_workers"]))
    table = pd.DataFrame(rows, columns=["trial", "configuration", "seconds ~", "worker s ~"])
    best = table.sort_values("seconds ~", kind="stable").head(number)
    return best.reset_index(drop=True)


def _telling_layout(runs: pd.DataFrame) -> dict[str, str]:
    """Return the columns of what runs were on that tell them apart, by their titles.

    A run that failed may have had no workers: it says nothing. What a run waited for says
    why it is on other hosts than others.
    """
    trained = runs[runs["state"] != "failed"]
    found = {}
    if len(set(trained["num_nodes"].dropna())) > 1:
        found["hosts"] = "num_nodes"
    if len(set(trained["accelerators"].fillna(""))) > 1:
        found["GPUs"] = "accelerators"
    if "hosts" in found and trained["waited_for"].notna().any():
        found["waited for"] = "waited_for"
    return found


SECONDS = "{:.2f}"
FORMATS = {
    "samples/s": "{:,.0f}",
    "learning rate": "{:.3g}",
    "share": "{:.0%}",
}
WRAPPED = ("configuration", "for example", "waited for")
"""Columns that may take several lines."""
SHARE, OTHER = "{:.1%}", "{:.4g}"
"""Formats of a metric that is a share, and of others."""
DROPPED = (
    "train s",
    "whole run s",
    "samples/s",
    "waited for",
    "search s",
    "search {metric}",
    "global batch",
    "test {metric}",
    "worker-s",
)
"""Columns that a narrow terminal does not show, the first of them first."""
MARK = "*"
MARK_SAYS = f"{MARK} interpolated: where the line between two evaluations crosses the target"
DISTURBED = "!"
DISTURBED_SAYS = (
    f"{DISTURBED} disturbed: others had the cores for a quarter of its training or more"
)
Marked = Mapping[str, Sequence[bool]]
"""Which cells of a column have a MARK."""
MISSING = "-"
"""Stands for a value that is missing, and for seconds that are infinite: too few runs hit."""
LONGEST = 400
"""Characters of one cell; the files hold the whole text."""


def print_frame(
    console: Console,
    frame: pd.DataFrame,
    title: str,
    *,
    below: str = "",
    metric: Metric = ACCURACY,
    marked: Marked = MappingProxyType({}),
    is_explained: bool = True,
) -> None:
    """Print a table, a line `below`, an empty line; numbers right, missing values as a dash.

    `metric` says how columns of its name are written; cells that are `marked` get a MARK, which a
    line below explains (`is_explained`).
    """
    own = SHARE if metric.is_share else OTHER
    kinds = ("best", "median", "search", "test")
    formats = FORMATS | {f"{kind} {metric.words}": own for kind in kinds}
    cells = pd.DataFrame(
        {name: [_cell(value, formats.get(str(name))) for value in frame[name]] for name in frame}
    )
    for name, are_marked in marked.items():
        if name in cells and any(are_marked):
            cells[name] = [
                text + (MARK if is_marked and text != MISSING else " ")
                for text, is_marked in zip(cells[name], are_marked, strict=True)
            ]
    is_disturbed = "trial" in cells and cells["trial"].str.endswith(DISTURBED).any()
    says = [MARK_SAYS] if is_explained and has_marks(marked) else []
    says += [DISTURBED_SAYS] if is_disturbed else []
    below = "\n".join(filter(None, [below, *says]))
    below = "\n".join(line for one in below.splitlines() for line in wrapped(one, console.width))
    numeric = [name for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    drop = [name.format(metric=metric.words) for name in DROPPED]
    print_table(console, cells, title, drop=drop, wrap=WRAPPED, right=numeric, below=below)


def has_marks(marked: Marked) -> bool:
    """Return whether any cell has a MARK."""
    return any(any(are_marked) for are_marked in marked.values())


def of_runs(
    runs: pd.DataFrame, trials: pd.DataFrame, *, metric: Metric = ACCURACY, is_brief: bool = False
) -> pd.DataFrame:
    """Return a table of runs for a terminal: one column for the configuration.

    `is_brief` leaves out what follows from the configuration, and what is measured beside times.
    """
    table = {"trial": with_disturbed(runs["trial"], trials), "configuration": brief(runs["config"])}
    table |= {} if is_brief else {"global batch": runs["global_batch_size"]}
    table |= {title: runs[key] for title, key in _telling_layout(runs).items()}
    if runs["crossed_s"].notna().any():  # else nobody reached it, or none is asked for
        table["s to target"] = runs["crossed_s"]
        table["worker-s"] = runs["num_workers"] * runs["crossed_s"]
    table[f"best {metric.words}"] = runs[metric.best_column]
    if not is_brief:
        table |= {"samples/s": runs["samples_per_s"], "train s": runs["train_s"]}
    return pd.DataFrame(table | {"whole run s": runs["wall_s"]})


def with_disturbed(names: pd.Series, trials: pd.DataFrame) -> pd.Series:
    """Return names of trials, marked where others disturbed a run of theirs that is kept."""
    runs = trials[trials["is_disturbed"].eq(True).fillna(False)]
    found = {*runs["trial"], *runs["source"].dropna()}
    return names.where(~names.isin(found), names + DISTURBED)


def marks_of_runs(runs: pd.DataFrame) -> Marked:
    """Return which of `of_runs`' times are interpolated."""
    marks = runs["is_interpolated"].eq(True).fillna(False).tolist()
    return dict.fromkeys(("s to target", "worker-s"), marks)


def of_race(table: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the part of `confirmed` that a race is decided by, for a terminal."""
    rows = table.to_dict("records")
    return pd.DataFrame(
        {
            "trial": with_disturbed(table["trial"], trials),
            "configuration": brief(table["config"]),
            "reached": [f"{row['hits']} of {row['runs']}" for row in rows],
            "expected s": _finite(table["expected_s"]),
            "90 % interval": _ranges(rows, "expected_low_s", "expected_high_s", SECONDS),
            "worker-s": _finite(table["expected_s"] * table["num_workers"]),
            "search s": table["search_s"],
        }
    )


def with_alone(cells: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return `of_race` with the time of the runs alone in place of the search's.

    Seconds of those that did not run alone are missing.
    """
    alone = _finite(table["printed_s"]).where(table["is_alone"].astype(bool))
    return cells.drop(columns="search s").assign(**{"alone s": alone})


def of_confirmed(table: pd.DataFrame, *, is_timed: bool, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Return `confirmed` for a terminal; `is_timed`: judged by the time to a target."""
    rows = table.to_dict("records")
    head = {
        "trial": table["trial"],
        "configuration": brief(table["config"]),
        "reached" if is_timed else "finished": [
            f"{row['new_hits']} of {row['new_runs']}" for row in rows
        ],
    }
    if is_timed:
        has_misses = (table["new_hits"] < table["new_runs"]).any()
        middle = {
            "median s": _finite(table["median_s"]),
            **({"expected s": _finite(table["printed_s"])} if has_misses else {}),
            "90 % interval": _ranges(rows, "interval_low_s", "interval_high_s", SECONDS),
            "worker-s": _finite(table["worker_seconds_to_target"]),
            "search s": table["search_s"],
        }
    else:
        name, form = metric.name, SHARE if metric.is_share else OTHER
        middle = {
            f"median {metric.words}": _finite(table[f"median_{name}"]),
            "90 % interval": _ranges(rows, f"interval_low_{name}", f"interval_high_{name}", form),
            f"search {metric.words}": table[f"search_{name}"],
        }
    return pd.DataFrame(head | middle | {f"test {metric.words}": table[metric.test_column]})


def marks_of_confirmed(table: pd.DataFrame) -> Marked:
    """Return which seconds of `of_race` and `of_confirmed` have an interpolated time in them."""
    marks = table["is_interpolated"].eq(True).tolist()
    return dict.fromkeys(("median s", "expected s", "worker-s", "alone s"), marks)


def _finite(seconds: pd.Series) -> pd.Series:
    """Return seconds without those that are infinite."""
    return seconds.where(np.isfinite(seconds))


def _ranges(rows: list[dict[Any, Any]], low: str, high: str, form: str) -> list[str]:
    """Return two columns as `0.85 - 1.96`; a dash where nothing bounds it."""
    return [
        f"{form.format(row[low])} - {form.format(row[high])}"
        if math.isfinite(row[high])
        else MISSING
        for row in rows
    ]


def brief(labels: pd.Series) -> pd.Series:
    """Return labels of configurations with the longer framework's name abbreviated."""
    return labels.astype(object).str.replace(r"^tensorflow ", "tf ", regex=True)


def _cell(value: Any, form: str | None) -> str:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return MISSING
    if form is not None:
        text = form.format(value)
        return "0%" if text == "-0%" else text
    if isinstance(value, float):
        return SECONDS.format(value)
    return shorten(clean(str(value)), LONGEST)
