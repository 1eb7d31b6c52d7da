"""Inputs of the page's template: texts of anybody, links to trials, tables of DataFrames, and the
table of trials: its best rows as they are, all of them as data for the script."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from raybench.report.words import ROLES
from raybench.results.ranking import configurations
from raybench.results.study import Study
from raybench.results.trials import searched_columns
from raybench.spec.documents import to_yaml
from raybench.spec.run import RunSpec
from raybench.spec.text import clean, shorten
from raybench.spec.values import short
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import RunRecord

MISSING = "-"
DIGITS = 4
"""Significant digits of a number."""
LONGEST = 400
"""Characters of a cell; the files hold the whole text."""


def own(content: object) -> Markup:
    """Return any text, escaped; one whose letters may run from right to left disturbs none around
    it. What is Markup stays as it is."""
    if isinstance(content, Markup):
        return content
    safe = escape(clean(str(content)))
    return safe if safe.isascii() else Markup("<bdi>{}</bdi>").format(safe)


def trial_link(results: Study, trial: str, study: str) -> Markup:
    """Return a link to a trial; `study` begins the ids of its study."""
    link = Markup('<a href="#{}-t{}" data-study="{}" data-trial="{}">{}</a>')
    place = list(results.runs).index(trial)
    return link.format(study, place, study, clean(trial), own(trial))


@dataclass(frozen=True)
class HtmlTable:
    """A table of texts."""

    caption: str
    heads: Sequence[tuple[str, bool]]
    """Titles, and whether a column is of numbers."""
    rows: Sequence[Sequence[str]]
    ids: Sequence[str] = ()
    """Anchors of the rows that links lead to."""


def table_of(frame: pd.DataFrame, caption: str, *, most: int = 100, rest: str = "") -> HtmlTable:
    """Return the first `most` rows; the caption says how many there are, `rest` where."""
    first = frame.head(most)
    if len(frame) > most:
        where = f"; {rest} holds all" if rest else ""
        caption = f"{caption}: the first {most:,} of {len(frame):,} rows{where}"
    heads = [(str(name), pd.api.types.is_numeric_dtype(frame[name])) for name in frame.columns]
    columns = [_texts(first[name]) for name in first.columns]
    return HtmlTable(caption, heads, list(zip(*columns, strict=True)))


def _texts(column: pd.Series) -> list[str]:
    """Return a column's cells; its numbers have as many decimals as the largest needs."""
    if pd.api.types.is_float_dtype(column):
        sizes = column.abs()[np.isfinite(column) & (column != 0)]
        if len(sizes) and sizes.max() < 1e7 and sizes.min() >= sizes.max() / 1e5:
            decimals = min(max(DIGITS - 1 - math.floor(math.log10(sizes.max())), 0), 5)
            # A zero added: what rounds to nothing has no sign.
            rounded = column.round(decimals) + 0.0
            return [f"{one:,.{decimals}f}" if math.isfinite(one) else MISSING for one in rounded]
    return [_cell(value) for value in column]


def _cell(value: Any) -> str:
    """Return a single value: four digits of a number, a dash where nothing is known."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
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


@dataclass(frozen=True)
class Column:
    """A column of the table of trials."""

    title: str
    kind: str
    """Format of its values: `text`, `count`, `seconds`, `share`, `number`, `rate`."""
    cells: Sequence[Any]
    is_chosen: bool = False
    """Whether rows can be chosen by its values."""
    descending: bool = False
    """Whether the most is the best."""
    is_marked: bool = False
    """Whether what is interpolated has a mark."""


def order_of(results: Study) -> list[int]:
    """Return the places of all runs, best first: confirmed, then the search's by score, then
    repeats and references, what failed last."""
    trials = results.trials
    best = [] if results.is_scaling else list(configurations(results)["trial"])
    rank = {trial: place for place, trial in enumerate(best)}
    ranks = trials["trial"].map(rank).fillna(len(best) + (trials["state"] == "failed"))
    return [int(place) for place in np.argsort(ranks.to_numpy(dtype=float), kind="stable")]


def columns_of(results: Study) -> list[Column]:
    """Return the columns of the table, in the order of the records."""
    trials, metric = results.trials, results.metric
    value, is_max = "share" if metric.is_share else "number", metric.direction == "max"

    def column(title: str, kind: str, key: str, **how: bool) -> Column:
        return Column(title, kind, trials[key].tolist(), **how)

    found = [column("trial", "text", "trial")]
    if results.target is not None:
        costs = (trials["crossed_s"] * trials["num_workers"]).tolist()
        found.append(column("target after [s]", "seconds", "crossed_s", is_marked=True))
        found.append(Column("worker-s", "seconds", costs, is_marked=True))
    found += [
        column(f"best {metric.words}", value, metric.best_column, descending=is_max),
        column("framework", "text", "framework", is_chosen=True),
        column("workers", "count", "num_workers", is_chosen=True),
        column("batch per worker", "count", "batch_size_per_worker"),
        column("optimizer", "text", "optimizer", is_chosen=True),
        column("learning rate", "rate", "learning_rate"),
    ]
    found += [_own(key, trials[key]) for key in searched_columns(trials)]
    roles = [ROLES[run.role] for run in results.runs.values()]
    found.append(Column("run for", "text", roles, is_chosen=True))
    found.append(Column("state", "text", _states(trials), is_chosen=True))
    if trials[metric.test_column].notna().any():
        found.append(column(f"test {metric.words}", value, metric.test_column, descending=is_max))
    return [
        *found,
        column("trained [s]", "seconds", "train_s"),
        column("start to end [s]", "seconds", "wall_s"),
        column("samples/s", "number", "samples_per_s", descending=True),
    ]


def _states(trials: pd.DataFrame) -> list[str]:
    is_disturbed = trials["is_disturbed"].eq(True).fillna(False)
    return [
        f"failed: {failure}" if state == "failed" else state + ", disturbed !" * bool(disturbed)
        for state, failure, disturbed in zip(
            trials["state"], trials["failure"], is_disturbed, strict=True
        )
    ]


def _own(key: str, column: pd.Series) -> Column:
    if pd.api.types.is_bool_dtype(column):
        truths = [None if pd.isna(value) else short(bool(value)) for value in column]
        return Column(key, "text", truths, is_chosen=True)
    if pd.api.types.is_numeric_dtype(column):
        kind = "count" if pd.api.types.is_integer_dtype(column) else "rate"
        return Column(key, kind, column.tolist())
    return Column(key, "text", [None if value is None else str(value) for value in column], True)


Setting = tuple[str, str]
"""A key and its value in YAML."""


def settings_of(specs: Iterable[RunSpec]) -> list[list[Setting]]:
    """Return for every spec the settings from which `raybench train` makes it anew."""
    known: dict[str, str] = {}  # what YAML takes for one value is too long for those of all trials

    def in_yaml(value: Any) -> str:
        if (mark := repr(value)) not in known:
            known[mark] = to_yaml({"x": value}, in_lines=False).strip()[len("{x: ") : -1]
        return known[mark]

    documents = (spec.model_dump(mode="json", exclude_defaults=True) for spec in specs)
    return [[(key, in_yaml(value)) for key, value in one.items()] for one in documents]


POINTS = 60
"""Evaluations of a curve that the page keeps."""


def details_of(results: Study, order: Sequence[int]) -> dict[str, Any]:
    """Return what is shown of a trial that is opened: curve, ledger, spec, causes.

    Lists in the order of the rows. A setting is a number in `settings`.
    """
    every, metric, trials = list(results.runs.values()), results.metric, results.trials
    runs = [every[place] for place in order]
    distinct: dict[Setting, int] = {}
    phases, curves, marks = (*PHASES, OTHER), _curves(results), _marks(results)
    return {
        "metric": metric.words,
        "axis": metric.axis_words,
        "isShare": metric.is_share,
        "target": results.target if results.is_timed else None,
        "phases": phases,
        "specs": [
            [distinct.setdefault(one, len(distinct)) for one in settings]
            for settings in settings_of(run.spec for run in runs)
        ],
        "settings": list(distinct),
        "ledgers": [[_rounded(run.ledger.get(phase, 0.0)) for phase in phases] for run in runs],
        "walls": [_rounded(run.wall_s) for run in runs],
        "labels": [clean(label) for label in trials["config"].iloc[list(order)]],
        "notes": [
            _notes(every[place], trials["unranked"].iloc[place], marks[place]) for place in order
        ],
        "curves": [curves.get(run.trial, [[], []]) for run in runs],
    }


def _plain(value: Any, kind: str) -> Any:
    if value is None or value is pd.NA:
        return None
    if kind == "text":
        return shorten(clean(str(value)), LONGEST)
    return int(value) if kind == "count" else _rounded(float(value))


def _rounded(value: float) -> float | None:
    """Return five digits of a number; None of what JSON does not know."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _curves(results: Study) -> dict[str, list[list[float | None]]]:
    """Return seconds and values of each run's curve, thinned; its best point stays."""
    metric, found = results.metric, {}
    for trial, curve in results.curves.groupby("trial", sort=False):
        kept = curve[["train_s", metric.name]].astype(float)
        if len(kept) > POINTS:
            gains = (metric.sign * kept[metric.name]).fillna(-np.inf)
            even = np.linspace(0, len(kept) - 1, POINTS - 1).round().astype(int)
            kept = kept.iloc[np.unique([*even, gains.argmax()])]
        found[str(trial)] = [[_rounded(one) for one in kept[name]] for name in kept]
    return found


def _marks(results: Study) -> list[bool]:
    """Return of which runs the time to the target is interpolated."""
    found: list[bool] = results.trials["is_interpolated"].eq(True).fillna(False).tolist()
    return found


def _notes(run: RunRecord, unranked: str | None, is_interpolated: bool) -> list[list[str]]:
    """Return what else is to be known of a run: names and what they are."""
    disturbed = f"others had its cores for {run.disturbed_s:.2f} s" if run.is_disturbed else None
    said: dict[str, str | None] = {
        "repeats": run.source and f"trial {run.source}",
        "ended by": run.stop,
        "failed": run.failure and f"{run.failure}: {run.message or 'no message'}",
        "not ranked": unranked,
        "time to target": "read between two evaluations" if is_interpolated else None,
        "disturbed": disturbed,
        "waited for": run.waited_for,
        "restarts": f"{run.restarts} ({run.restart_reason})" if run.restarts else None,
        "hosts": ", ".join(sorted(set(run.hosts))),
        "devices": ", ".join(sorted(set(run.devices))),
    }
    return [[name, shorten(clean(value), LONGEST)] for name, value in said.items() if value]


MOST, MOST_CHOICES = 50, 12
"""Rows that stand there without a script; values of a column that can be chosen from a list."""
FORMS = {"count": "{:,.0f}", "seconds": "{:,.2f}", "share": "{:.1%}", "rate": "{:.3g}"}
"""Format of a number in a cell, by its kind; the same as in the script (`written` in page.js)."""


@dataclass(frozen=True)
class TrialTable:
    """The table as it stands there, and what the script reads."""

    study: str
    table: HtmlTable
    rows: dict[str, Any]
    details: dict[str, Any]


def trials_of(results: Study, study: str) -> TrialTable:
    """Return the table of trials; `study` begins the ids of its rows."""
    columns, order = columns_of(results), order_of(results)
    marks, first = _marks(results), order[:MOST]
    caption = f"The {len(first)} best of {len(order):,} runs"
    if len(first) == len(order):
        caption = f"All {len(order)} runs, best first"
    heads = [
        {
            "title": clean(one.title),
            "kind": one.kind,
            "choices": one.is_chosen and len(set(one.cells)) <= MOST_CHOICES,
            "descending": one.descending,
            "marked": one.is_marked,
        }
        for one in columns
    ]
    rows = {
        "columns": heads,
        "rows": [[_plain(one.cells[place], one.kind) for one in columns] for place in order],
        "ids": order,
        "interpolated": [row for row, place in enumerate(order) if marks[place]],
    }
    table = HtmlTable(
        caption,
        [(str(one["title"]), one["kind"] != "text") for one in heads],
        [[_shown(one.cells[place], one.kind) for one in columns] for place in first],
        [f"{study}-t{place}" for place in first],
    )
    return TrialTable(study, table, rows, details_of(results, order))


def _shown(value: Any, kind: str) -> str:
    if value is None or pd.isna(value):
        return MISSING
    if kind == "text":
        return clean(str(value))
    if kind not in FORMS:
        return number(float(value))
    return FORMS[kind].format(value).replace("%", " %")
