"""Input of the page's template: escaped text, links to trials, tables, the table of trials (the
best rows as HTML, and all rows as data for the script), and the comparison of several studies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from raybench.report.console import LONGEST_CELL, MISSING
from raybench.report.words import ROLES, duration, settings_of, target_in_words
from raybench.results.ranking import configurations
from raybench.results.study import Study
from raybench.results.trials import searched_columns
from raybench.results.verdict import winners
from raybench.spec.text import clean, short, shorten
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import RunRecord, State

SIGNIFICANT_DIGITS = 4
"""Number of significant digits with which numbers are shown."""


def escaped(content: object) -> Markup:
    """Return text escaped for HTML; Markup is returned unchanged.

    Text that is not ASCII is enclosed in `<bdi>`, so that right-to-left text does not change the
    order of the text around it.
    """
    if isinstance(content, Markup):
        return content
    safe = escape(clean(str(content)))
    return safe if safe.isascii() else Markup("<bdi>{}</bdi>").format(safe)


def trial_link(results: Study, trial: str, study: str) -> Markup:
    """Return a link to a trial of the study with the HTML id `study`."""
    link = Markup('<a href="#{}-t{}" data-study="{}" data-trial="{}">{}</a>')
    place = list(results.runs).index(trial)
    return link.format(study, place, study, clean(trial), escaped(trial))


@dataclass(frozen=True)
class HtmlTable:
    """A table of strings on the page."""

    caption: str
    heads: Sequence[tuple[str, bool]]
    """Pairs (title, whether the column is numeric), one for each column."""
    rows: Sequence[Sequence[str]]


MOST_TABLE_ROWS = 100
"""Maximum number of rows of a table on the page, except the table of trials."""


def table_of(frame: pd.DataFrame, caption: str, *, csv_file: str = "") -> HtmlTable:
    """Convert the first MOST_TABLE_ROWS rows of a table.

    If there are more rows, the caption says so, and names the file `csv_file`, which contains all
    rows.
    """
    first = frame.head(MOST_TABLE_ROWS)
    if len(frame) > MOST_TABLE_ROWS:
        remainder = f"; {csv_file} contains all of them" if csv_file else ""
        caption = f"{caption}: the first {MOST_TABLE_ROWS} of {len(frame):,} rows{remainder}"
    heads = [(str(name), pd.api.types.is_numeric_dtype(frame[name])) for name in frame.columns]
    columns = [_texts(first[name]) for name in first.columns]
    return HtmlTable(caption, heads, list(zip(*columns, strict=True)))


def _texts(column: pd.Series) -> list[str]:
    """Return the text of each cell of a column.

    All numbers have the same number of decimals, so that the largest has four significant digits.
    """
    if pd.api.types.is_float_dtype(column):
        sizes = column.abs()[np.isfinite(column) & (column != 0)]
        if len(sizes) and sizes.max() < 1e7 and sizes.min() >= sizes.max() / 1e5:
            decimals = min(max(SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(sizes.max())), 0), 5)
            # Adding 0 converts -0 to 0.
            rounded = column.round(decimals) + 0.0
            return [
                f"{value:,.{decimals}f}" if math.isfinite(value) else MISSING for value in rounded
            ]
    return [_cell(value) for value in column]


def _cell(value: Any) -> str:
    """Return the text of a single value."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return number_text(float(value))
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return shorten(clean(str(value)), LONGEST_CELL)


def number_text(value: float) -> str:
    """Return a number with four significant digits as text; from 1,000 on, it has no decimals."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{SIGNIFICANT_DIGITS}g}"


def order_of(results: Study) -> list[int]:
    """Return the positions of all runs in `results.trials`, sorted from best to worst.

    Confirmed configurations come first, then search runs by score, then other runs, then failed
    runs.
    """
    trials = results.trials
    best = [] if results.is_scaling else list(configurations(results)["trial"])
    rank = {trial: place for place, trial in enumerate(best)}
    ranks = trials["trial"].map(rank).fillna(len(best) + (trials["state"] == State.FAILED))
    return [int(place) for place in np.argsort(ranks.to_numpy(dtype=float), kind="stable")]


Column = tuple[dict[str, Any], Sequence[Any]]
"""A column of the table of trials: its header, which page.js reads, and its cells.

A header has the keys `title`, `kind` (of the values: `text`, `count`, `seconds`, `share`, `number`
or `rate`), `descending` (whether the largest value is the best) and `marked` (whether interpolated
values are marked).
"""


def columns_of(results: Study) -> list[Column]:
    """Return the columns of the table of trials, with one cell per row of `results.trials`."""
    trials, metric = results.trials, results.metric
    value, is_max = "share" if metric.is_share else "number", metric.direction == "max"

    def column(
        title: str, kind: str, cells: Any, *, descending: bool = False, marked: bool = False
    ) -> Column:
        head = {"title": clean(title), "kind": kind, "descending": descending, "marked": marked}
        return head, list(cells)

    columns = [column("trial", "text", trials["trial"])]
    if results.target is not None:
        costs = trials["crossed_s"] * trials["num_workers"]
        columns.append(column("target after [s]", "seconds", trials["crossed_s"], marked=True))
        columns.append(column("worker-s", "seconds", costs, marked=True))
    columns += [
        column(f"best {metric.words}", value, trials[metric.best_column], descending=is_max),
        column("framework", "text", trials["framework"]),
        column("workers", "count", trials["num_workers"]),
        column("batch per worker", "count", trials["batch_size_per_worker"]),
        column("optimizer", "text", trials["optimizer"]),
        column("learning rate", "rate", trials["learning_rate"]),
    ]
    columns += [column(key, *_kind_and_cells(trials[key])) for key in searched_columns(trials)]
    roles = [ROLES[run.role] for run in results.runs.values()]
    columns += [column("run for", "text", roles), column("state", "text", _states(trials))]
    if trials[metric.test_column].notna().any():
        tested = trials[metric.test_column]
        columns.append(column(f"test {metric.words}", value, tested, descending=is_max))
    return [
        *columns,
        column("trained [s]", "seconds", trials["train_s"]),
        column("start to end [s]", "seconds", trials["wall_s"]),
        column("samples/s", "number", trials["samples_per_s"], descending=True),
    ]


def _states(trials: pd.DataFrame) -> list[str]:
    is_disturbed = trials["is_disturbed"].eq(True).fillna(False)
    return [
        f"failed: {failure}" if state == State.FAILED else state + ", disturbed !" * bool(disturbed)
        for state, failure, disturbed in zip(
            trials["state"], trials["failure"], is_disturbed, strict=True
        )
    ]


def _kind_and_cells(column: pd.Series) -> tuple[str, list[Any]]:
    """Return the kind (`text`, `count` or `rate`) and the cells of the column of a searched key."""
    if pd.api.types.is_bool_dtype(column):
        return "text", [None if pd.isna(value) else short(bool(value)) for value in column]
    if pd.api.types.is_numeric_dtype(column):
        kind = "count" if pd.api.types.is_integer_dtype(column) else "rate"
        return kind, column.tolist()
    return "text", [None if value is None else str(value) for value in column]


POINTS = 60
"""Maximum number of evaluations that the page shows of a learning curve."""


def details_of(results: Study, order: Sequence[int]) -> dict[str, Any]:
    """Return the data for the dialogs about trials: learning curve, seconds per phase, run spec and
    notes.

    All lists with one item per run are in the order of `order`. The items of `specs` are indices
    into `settings`, which contains each distinct setting once.

    Args:
        results: The study.
        order: Positions of the runs in `results.trials`.
    """
    all_runs, metric, trials = list(results.runs.values()), results.metric, results.trials
    runs = [all_runs[place] for place in order]
    distinct: dict[tuple[str, str], int] = {}
    phases, curves, marks = (*PHASES, OTHER), _curves(results), _marks(results)
    return {
        "metric": metric.words,
        "axis": metric.axis_words,
        "isShare": metric.is_share,
        "target": results.target if results.is_timed else None,
        "phases": phases,
        "specs": [
            [distinct.setdefault(setting, len(distinct)) for setting in settings]
            for settings in (settings_of(run.spec) for run in runs)
        ],
        "settings": list(distinct),
        "ledgers": [[_rounded(run.ledger.get(phase, 0.0)) for phase in phases] for run in runs],
        "walls": [_rounded(run.wall_s) for run in runs],
        "labels": [clean(label) for label in trials["config"].iloc[list(order)]],
        "notes": [
            _notes(all_runs[place], trials["unranked"].iloc[place], marks[place]) for place in order
        ],
        "curves": [curves.get(run.trial, [[], []]) for run in runs],
    }


def _plain(value: Any, kind: str) -> Any:
    if value is None or value is pd.NA:
        return None
    if kind == "text":
        return shorten(clean(str(value)), LONGEST_CELL)
    return int(value) if kind == "count" else _rounded(float(value))


def _rounded(value: float) -> float | None:
    """Round a number to five significant digits; None if it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _curves(results: Study) -> dict[str, list[list[float | None]]]:
    """Return the learning curves as [seconds, metric values], keyed by run name.

    Each curve has at most POINTS evaluations.
    """
    curves = {}
    for trial, curve in results.evaluations.items():
        points = curve[:: -(-len(curve) // POINTS) or 1]
        curves[trial] = [[_rounded(point.train_s) for point in points]]
        curves[trial].append([_rounded(point.value) for point in points])
    return curves


def _marks(results: Study) -> list[bool]:
    """Return for each run in `results.trials` whether its time to the target is interpolated."""
    marks: list[bool] = results.trials["is_interpolated"].eq(True).fillna(False).tolist()
    return marks


def _notes(run: RunRecord, unranked: str | None, is_interpolated: bool) -> list[list[str]]:
    """Return further facts about a run, each as a pair [name, text]."""
    disturbed = None
    if run.is_disturbed:
        disturbed = f"other processes used its cores for {run.disturbed_s:.2f} s"
    facts: dict[str, str | None] = {
        "repeats": run.source and f"trial {run.source}",
        "ended by": run.stop,
        "failed": run.failure and f"{run.failure}: {run.message or 'no message'}",
        "not ranked": unranked,
        "time to target": "interpolated between two evaluations" if is_interpolated else None,
        "disturbed": disturbed,
        "waited for": run.waited_for,
        "restarts": f"{run.restarts} ({run.restart_reason})" if run.restarts else None,
        "hosts": ", ".join(sorted(set(run.hosts))),
        "devices": ", ".join(sorted(set(run.devices))),
    }
    return [[name, shorten(clean(value), LONGEST_CELL)] for name, value in facts.items() if value]


@dataclass(frozen=True)
class TrialTable:
    """The trials table, as data for page.js."""

    study: str
    rows: dict[str, Any]
    details: dict[str, Any]


def trials_of(results: Study, study: str) -> TrialTable:
    """Return the trials table of a study; its HTML id `study` is the prefix of the ids of the
    rows."""
    columns, order = columns_of(results), order_of(results)
    marks = _marks(results)
    rows = {
        "columns": [head for head, _ in columns],
        "rows": [
            [_plain(cells[place], head["kind"]) for head, cells in columns] for place in order
        ],
        "ids": order,
        "interpolated": [row for row, place in enumerate(order) if marks[place]],
    }
    return TrialTable(study, rows, details_of(results, order))


Named = Sequence[tuple[str, Study]]
"""Pairs (unique name, study)."""
COMPARED_CONDITIONS = {
    "metric": "metrics",
    "target": "targets",
    "workload": "models",
    "dataset": "data",
}
"""Conditions that must be equal for studies to be comparable, with their names in sentences."""
DERIVED_KEYS = ("shape", "num_classes", "num_samples")
"""Keys of a dataset whose values are determined by the other keys."""


@dataclass(frozen=True)
class PageComparison:
    """Comparison of several studies at the top of the page."""

    headline: str
    winners: HtmlTable


def compared(studies_by_name: Named) -> PageComparison:
    """Compare several studies by their winners."""
    studies = [results for _, results in studies_by_name]
    if any(results.is_scaling for results in studies):
        headline = f"{len(studies_by_name)} studies side by side"
    elif differences := differing(studies):
        phrase = f"{len(studies_by_name)} studies with different {' and '.join(differences)}"
        headline = f"{phrase}: none is named the best of them"
    else:
        headline = winner_sentence(studies_by_name)
    table = table_of(winners_table(studies_by_name), "The winner of each study")
    return PageComparison(headline, table)


def conditions(results: Study) -> dict[str, str]:
    """Return the conditions of a study as text, with the keys of COMPARED_CONDITIONS."""
    study, dataset = results.study["study"], results.study["study"].get("dataset") or {}
    dataset_keys = {
        key: value for key, value in dataset.items() if key not in DERIVED_KEYS and value
    }
    return {
        "metric": results.metric.words,
        "target": target_in_words(results) if results.is_timed else "best at the budget",
        "workload": str(study.get("workload")),
        "dataset": ", ".join(f"{key} {value}" for key, value in dataset_keys.items()),
    }


def differing(studies: Sequence[Study]) -> list[str]:
    """Return the names of the conditions in which studies differ (see COMPARED_CONDITIONS)."""
    all_conditions = [conditions(results) for results in studies]
    return [
        words
        for key, words in COMPARED_CONDITIONS.items()
        if len({by_key[key] for by_key in all_conditions}) > 1
    ]


def _winner(results: Study) -> pd.Series | None:
    """Return the row of the winner in the table `winners`; None without a winner."""
    table = pd.DataFrame() if results.is_scaling or results.trials.empty else winners(results)
    return None if table.empty else table.iloc[0]


def _winner_value(results: Study, row: pd.Series) -> tuple[float, float, float]:
    """Return the seconds to the target (or the metric value) in the row of a winner, and the ends
    of the 90 % interval."""
    if results.is_timed:
        return row["seconds"], row["low_s"], row["high_s"]
    name = results.metric.name
    return row[results.metric.best_column], row[f"low_{name}"], row[f"high_{name}"]


def winners_table(studies: Named) -> pd.DataFrame:
    """Return a table with one row per study: its winner and conditions. Column names are words with
    units."""
    rows = []
    for name, results in studies:
        row: dict[str, Any] = {"study": name, "fastest or best": "none"}
        winner, metric, condition = _winner(results), results.metric, conditions(results)
        if winner is not None:
            result, *ends = _winner_value(results, winner)
            row["fastest or best"] = f"{winner['config']} (trial {winner['trial']})"
            row["seconds to target"] = result if results.is_timed else math.nan
            form = (lambda end: f"{end:.3g}") if results.is_timed else metric.shown
            row["90 %"] = " to ".join(map(form, ends)) if all(map(math.isfinite, ends)) else None
            row["worker-seconds"] = winner["worker_seconds"]
            row["value"] = f"{metric.words} {metric.shown(winner[metric.best_column])}"
            row["confirmed"] = bool(winner["is_confirmed"])
        row |= {
            "target": condition["target"],
            "model": condition["workload"],
            "data": condition["dataset"],
        }
        rows.append(row | {"runs": len(results.runs)})
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def winner_sentence(studies: Named) -> str:
    """Return a sentence that names the study with the best winner.

    If all winners are confirmed, the sentence also says whether the 90 % interval of the best
    winner overlaps with the interval of another one.
    """
    winners = [(name, study, row) for name, study in studies if (row := _winner(study)) is not None]
    if not winners:
        return f"None of the {len(studies)} studies has an answer yet."
    results = studies[0][1]
    sign = 1 if results.is_timed else -results.metric.sign
    rows = sorted(
        ((name, *_winner_value(study, row), row["is_confirmed"]) for name, study, row in winners),
        key=lambda row: sign * row[1],
    )
    (best, value, low, high, _), *others = rows
    if results.is_timed:
        head = f"Fastest to {target_in_words(results)}: {best}, {duration(value)} of training"
    else:
        metric = results.metric
        what = metric.superlative[0].upper() + metric.superlative[1:]
        head = f"{what}: {best}, {metric.words} {metric.shown(value)}"
    if not others:
        return f"{head}; no other study has an answer."
    form = duration if results.is_timed else results.metric.shown
    against = ", ".join(f"{form(row[1])} ({row[0]})" for row in others[:3])
    if not all(is_confirmed for *_, is_confirmed in rows):
        certainty = "not all of them are confirmed"
    elif any(low <= row[3] and row[2] <= high for row in others):
        certainty = "their 90 % intervals overlap, so the difference may be chance"
    else:
        certainty = "their 90 % intervals do not overlap"
    return f"{head}, against {against}; {certainty}."
