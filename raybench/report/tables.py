"""The tables printed at the end of a study: numbers in their units, columns that fit."""

import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from raybench.report.console import say, wrapped
from raybench.results.analyses import ledger_totals as ledger_totals
from raybench.results.ranking import ranked as ranked
from raybench.results.store import ERRORS_FOLDER, LOGS_FOLDER
from raybench.results.study import Study
from raybench.spec.metric import Metric
from raybench.spec.run import RunSpec
from raybench.spec.text import clean, shorten

NUMBERS = re.compile(rf"\S*\b(?:{ERRORS_FOLDER}|{LOGS_FOLDER})/\S+|0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


def cause_of(failure: str, message: str | None) -> str:
    """Return the same text for failures of one cause, whatever numbers (sizes, pids, the trial's
    own file) the first 2,000 characters of their messages hold."""
    return f"{failure}: {NUMBERS.sub('#', (message or '')[:2000])}"


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the distinct causes of failed runs, the most frequent first.

    Columns: failure, runs (how many), for example (the first one's message).
    """
    failed = trials[trials["state"] == "failed"]
    causes = map(cause_of, failed["failure"], failed["message"])
    told = failed.assign(cause=list(causes), message=failed["message"].fillna("no message"))
    found = told.groupby("cause", sort=False).agg(
        failure=("failure", "first"),
        runs=("trial", "size"),
        **{"for example": ("message", "first")},
    )
    return found.sort_values("runs", ascending=False, kind="stable", ignore_index=True)


MOST_PREDICTED = 6
BATCH_STATISTICS = (
    "The model has batch normalisation over each worker's own samples, so what it learns depends "
    "on the batch per worker too, and predictions (~) for other splits are rough. "
    "--set search.factorise=false --fresh samples workers like the rest."
)


def predictions(results: Study) -> pd.DataFrame:
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
        split = {str(key): one for key, one in row.items() if key in RunSpec.model_fields}
        label = results.label(results.specs[row["trial"]].model_copy(update=split))
        if label not in run:
            rows.append((row["trial"], label, seconds, seconds * row["num_workers"]))
    table = pd.DataFrame(rows, columns=["trial", "configuration", "seconds ~", "worker s ~"])
    return table.sort_values("seconds ~", kind="stable", ignore_index=True).head(MOST_PREDICTED)


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


MISSING, MARK = "-", "*"
"""Stand for a value that is missing (and for seconds that are infinite: too few runs hit), and
behind an interpolated one."""
LONGEST = 400
"""Characters of one cell; the files hold the whole text."""


class _Missing:
    def __format__(self, form: str) -> str:
        return MISSING


Form = str | Callable[[Mapping[Any, Any]], str]
"""Makes a cell of a row: a format string (`{low:.2f} - {high:.2f}`), or a function, for columns
whose names a format string cannot have."""


def texts(frame: pd.DataFrame, forms: Mapping[str, Form]) -> pd.DataFrame:
    """Return columns by their titles, each the text that a form makes of a row. Columns of which
    nothing is known are left out."""
    known = frame.notna() & ~frame.isin([math.inf, -math.inf])
    missing: Any = _Missing()
    rows = frame.astype(object).where(known, missing).to_dict("records")
    cells = {name: [_text(form, row) for row in rows] for name, form in forms.items()}
    return without_unknown(pd.DataFrame(cells, dtype=object))


def without_unknown(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of texts without the columns of dashes alone."""
    return table[[name for name in table if not table[name].str.strip().isin([MISSING, ""]).all()]]


def _text(form: Form, row: Mapping[Any, Any]) -> str:
    known = defaultdict(_Missing, row)
    text = form(known) if callable(form) else form.format_map(known)
    if callable(form) or " - " in form:  # of an interval without an end nothing is said
        text = re.sub(r"\S+ - -|- - \S+", MISSING, text.replace(" (- - -)", ""))
    rare = {"-0%": "0%", MISSING + MARK: f"{MISSING} "}
    return rare.get(text) or shorten(clean(text), LONGEST)


WRAPPED = (
    *("configuration", "for example", "waited for", "series", "claim", "published", "here"),
    *("made from", "with"),
)
"""Columns that may take several lines."""
MIN_TEXT = 30
"""Columns of the terminal that such a text gets, before other columns are left out."""
LEFT = ("trial", "90 % interval", *WRAPPED)
NUMERIC = re.compile(r"[\d.,%*()~ -]*")
"""A column of such texts is aligned right, unless it is one of LEFT."""
DROPPED = (
    *("train s", "whole run s", "samples/s", "waited for", "search ", "global batch", "test "),
    "worker-s",
)
"""Beginnings of the columns that a narrow terminal does not show, the first of them first."""
MARK_SAYS = f"{MARK} interpolated: where the line between two evaluations crosses the target"
MARKED = ("s to target", "worker-s", "median s", "expected s", "alone s")
DISTURBED = "!"
DISTURBED_SAYS = (
    f"{DISTURBED} disturbed: others had the cores for a quarter of its training or more"
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
    """Print a table of texts, a line `below`, an empty line; no head, no cell is ever cut. A line
    below explains a MARK (`is_explained`).

    Where the terminal is too narrow, columns that begin like those of `drop` are left out, the
    first of them first; those of WRAPPED take several lines.
    """
    cells = frame.astype(str)
    says = [*below.splitlines(), *([MARK_SAYS] if is_explained and has_marks(cells) else [])]
    if "trial" in cells and cells["trial"].str.endswith(DISTURBED).any():
        says.append(DISTURBED_SAYS)
    dropped = [one for begin in drop for one in map(str, cells) if one.startswith(begin)]
    widths = fit(cells, console.width, drop=dropped)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    # Of a terminal narrower than what may not be left out, lines are longer, not cut.
    needed = sum(widths.values()) + len(widths) - 1
    table.width = needed if needed > console.width else None
    for name, width in widths.items():
        is_right = name not in LEFT and all(map(NUMERIC.fullmatch, cells[name]))
        table.add_column(
            Text("\n".join(_head(name, cells[name]))),
            justify="right" if is_right else "left",
            width=width,
            no_wrap=name not in WRAPPED,
            overflow="fold",
        )
    for row in cells[list(widths)].itertuples(index=False):
        table.add_row(*(Text(cell) for cell in row))
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table, crop=False)
    for line in says:
        for part in wrapped(line, console.width):
            say(console, part)
    console.print()


def fit(cells: pd.DataFrame, width: int, *, drop: Sequence[str]) -> dict[str, int]:
    """Return the columns that fit `width` side by side, and how wide each is."""
    natural = {
        str(name): max(map(cell_len, [*_head(str(name), cells[name]), *cells[name]]), default=0)
        for name in cells.columns
    }
    least = {
        name: min(wide, MIN_TEXT) if name in WRAPPED else wide for name, wide in natural.items()
    }
    for name in drop:
        if sum(least.values()) + len(least) - 1 <= width:
            break
        least.pop(name, None)
    room = width - (sum(least.values()) + len(least) - 1)
    for name in WRAPPED:
        if name in least and room > 0:
            more = min(room, natural[name] - least[name])
            least[name] += more
            room -= more
    return least


def _head(name: str, column: pd.Series) -> list[str]:
    """Return a head's lines: no wider than the column needs anyway."""
    widest = max([*map(cell_len, column), *map(cell_len, name.split())], default=1)
    return textwrap.wrap(name, min(widest, MIN_TEXT), break_on_hyphens=False) or [""]


def has_marks(cells: pd.DataFrame) -> bool:
    """Return whether a time is interpolated."""
    return any(cells[name].str.endswith(MARK).any() for name in MARKED if name in cells)


def _marks(table: pd.DataFrame) -> list[str]:
    """Return what stands behind the times of each row; nothing where none is interpolated."""
    are_marked = table["is_interpolated"].eq(True).fillna(False)
    return ["" if not are_marked.any() else MARK if one else " " for one in are_marked]


def of_runs(runs: pd.DataFrame, results: Study, *, is_brief: bool = False) -> pd.DataFrame:
    """Return a table of runs for a terminal: one column for the configuration.

    `is_brief` leaves out what follows from the configuration, and what is measured beside times.
    """
    metric = results.metric
    forms: dict[str, Form] = {"trial": "{trial}", "configuration": "{config}"}
    forms |= {} if is_brief else {"global batch": "{global_batch_size}"}
    forms |= {title: f"{{{key}}}" for title, key in _telling_layout(runs).items()}
    forms |= {"s to target": "{crossed_s:.2f}{mark}", "worker-s": "{cost:.2f}{mark}"}
    forms[f"best {metric.words}"] = value_form(metric, metric.best_column)
    if not is_brief:
        forms |= {"samples/s": "{samples_per_s:,.0f}", "train s": "{train_s:.2f}"}
    forms["whole run s"] = "{wall_s:.2f}"
    rows = runs.assign(cost=runs["num_workers"] * runs["crossed_s"], mark=_marks(runs))
    return texts(_named(rows, results), forms)


def value_form(metric: Metric, *columns: str) -> Form:
    """Return how a value of the metric, or an interval of two columns, is written in a table."""
    form = ".1%" if metric.is_share else ".4g"
    return lambda row: " - ".join(format(row[column], form) for column in columns)


def _named(rows: pd.DataFrame, results: Study) -> pd.DataFrame:
    """Return rows with short names of frameworks, and trials marked where others disturbed a run
    of theirs that is kept."""
    trials = results.trials[results.trials["is_disturbed"].eq(True).fillna(False)]
    is_disturbed = rows["trial"].isin({*trials["trial"], *trials["source"].dropna()})
    names = rows["trial"].where(~is_disturbed, rows["trial"] + DISTURBED)
    return rows.assign(trial=names, config=brief(rows["config"]))


def of_race(table: pd.DataFrame, results: Study, *, has_alone: bool) -> pd.DataFrame:
    """Return the part of `confirmed` that a race is decided by, for a terminal; beside it the time
    of the runs alone (`has_alone`), or that of the search."""
    last = {"alone s": "{alone_s:.2f}{mark}"} if has_alone else {"search s": "{search_s:.2f}"}
    rows = table.assign(
        cost=table["expected_s"] * table["num_workers"],
        alone_s=table["printed_s"].where(table["is_alone"].astype(bool)),
        mark=_marks(table),
    )
    return texts(_named(rows, results), RACE | last)


RACE = {
    "trial": "{trial}",
    "configuration": "{config}",
    "reached": "{hits} of {runs}",
    "expected s": "{expected_s:.2f}{mark}",
    "90 % interval": "{expected_low_s:.2f} - {expected_high_s:.2f}",
    "worker-s": "{cost:.2f}{mark}",
}
ALONE = {
    "median s": "{median_s:.2f}{mark}",
    "expected s": "{expected:.2f}{mark}",
    "90 % interval": "{interval_low_s:.2f} - {interval_high_s:.2f}",
    "worker-s": "{worker_seconds_to_target:.2f}{mark}",
    "search s": "{search_s:.2f}",
}


def of_confirmed(table: pd.DataFrame, results: Study) -> pd.DataFrame:
    """Return `confirmed` for a terminal."""
    metric, name = results.metric, results.metric.name
    reached = {"reached" if results.is_timed else "finished": "{new_hits} of {new_runs}"}
    forms: dict[str, Form] = {"trial": "{trial}", "configuration": "{config}", **reached}
    if results.is_timed:
        forms |= ALONE
    else:
        forms[f"median {metric.words}"] = value_form(metric, f"median_{name}")
        ends = (f"interval_{end}_{name}" for end in ("low", "high"))
        forms["90 % interval"] = value_form(metric, *ends)
        forms[f"search {metric.words}"] = value_form(metric, f"search_{name}")
    forms[f"test {metric.words}"] = value_form(metric, metric.test_column)
    has_misses = (table["new_hits"] < table["new_runs"]).any()  # else it is the median
    expected = table["printed_s"] if has_misses else math.nan
    rows = table.assign(config=brief(table["config"]), mark=_marks(table), expected=expected)
    return texts(rows, forms)


def brief(labels: pd.Series) -> pd.Series:
    """Return labels of configurations with the longer framework's name abbreviated."""
    return labels.astype(object).str.replace(r"^tensorflow ", "tf ", regex=True)
