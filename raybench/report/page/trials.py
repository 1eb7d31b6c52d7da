"""The table of trials: its best rows as they are, all of them as data for the script."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from raybench.report.page.html import (
    LONGEST,
    MISSING,
    Html,
    element,
    isolated,
    number,
    row_of,
    scrolled,
    text,
)
from raybench.results.load import StudyResults
from raybench.results.trials import searched_columns
from raybench.spec.documents import to_yaml
from raybench.spec.run import RunSpec
from raybench.spec.text import clean, shorten
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import RunRecord

ROLES = {
    "trial": "search",
    "placement_check": "predicted split, run",
    "race": "race, new seed",
    "confirm": "alone, new seed",
    "reference": "reference",
    "interference_probe": "interference_probe",
    "scaling": "repeat of a cell",
}
"""What a run is for, in words."""


@dataclass(frozen=True)
class Column:
    """A column of the table of trials."""

    title: str
    kind: str
    """How the script writes it: `text`, `count`, `seconds`, `share`, `number`, `rate`."""
    cells: Sequence[Any]
    is_chosen: bool = False
    """Whether rows can be chosen by its values."""
    descending: bool = False
    """Whether the most is the best."""
    is_marked: bool = False
    """Whether what is interpolated has a mark."""


def order_of(results: StudyResults) -> list[int]:
    """Return the places of all runs, best first: confirmed, then the search's by score, then
    repeats and references, what failed last."""
    trials = results.trials
    places = {name: place for place, name in enumerate(trials["trial"])}
    first = [] if results.is_scaling else [places[one] for one in results.configurations["trial"]]
    seen = set(first)
    rest = [place for place in range(len(trials)) if place not in seen]
    failed = (trials["state"] == "failed").tolist()
    return [*first, *sorted(rest, key=lambda place: failed[place])]


def columns_of(results: StudyResults) -> list[Column]:
    """Return the columns of the table, in the order of the records."""
    trials, metric = results.trials, results.metric
    value = "share" if metric.is_share else "number"
    is_max = metric.direction == "max"
    roles = [ROLES.get(run.role, run.role) for run in results.runs.values()]
    found = [
        Column("trial", "text", trials["trial"].tolist()),
    ]
    if results.target is not None:
        seconds, workers = trials["crossed_s"], trials["num_workers"]
        found += [
            Column("target after [s]", "seconds", seconds.tolist(), is_marked=True),
            Column("worker-s", "seconds", (seconds * workers).tolist(), is_marked=True),
        ]
    found.append(
        Column(f"best {metric.words}", value, trials[metric.best_column].tolist(), False, is_max)
    )
    found += [
        Column("framework", "text", trials["framework"].tolist(), is_chosen=True),
        Column("workers", "count", trials["num_workers"].tolist(), is_chosen=True),
        Column("batch per worker", "count", trials["batch_size_per_worker"].tolist()),
        Column("optimizer", "text", trials["optimizer"].tolist(), is_chosen=True),
        Column("learning rate", "rate", trials["learning_rate"].tolist()),
    ]
    found += [_own(key, trials[key]) for key in searched_columns(trials)]
    found += [
        Column("run for", "text", roles, is_chosen=True),
        Column("state", "text", _states(trials), is_chosen=True),
    ]
    if trials[metric.test_column].notna().any():
        test = trials[metric.test_column].tolist()
        found.append(Column(f"test {metric.words}", value, test, False, is_max))
    return [
        *found,
        Column("trained [s]", "seconds", trials["train_s"].tolist()),
        Column("start to end [s]", "seconds", trials["wall_s"].tolist()),
        Column("samples/s", "number", trials["samples_per_s"].tolist(), False, True),
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
    """Return the column of a searched key."""
    if pd.api.types.is_bool_dtype(column):
        return Column(key, "text", ["yes" if value else "no" for value in column], is_chosen=True)
    if pd.api.types.is_integer_dtype(column):
        return Column(key, "count", column.tolist())
    if pd.api.types.is_numeric_dtype(column):
        return Column(key, "rate", column.tolist())
    return Column(key, "text", [None if value is None else str(value) for value in column], True)


Setting = tuple[str, str]
"""A key and its value in YAML."""


def settings_of(specs: Iterable[RunSpec]) -> list[list[Setting]]:
    """Return for every spec the settings from which `raybench train` makes it anew."""
    known: dict[tuple[str, str], str] = {}
    found = []
    for spec in specs:
        settings = []
        for key, value in spec.model_dump(mode="json", exclude_defaults=True).items():
            mark = key, repr(value)
            if mark not in known:
                known[mark] = _in_yaml(value)
            settings.append((key, known[mark]))
        found.append(settings)
    return found


def _in_yaml(value: Any) -> str:
    """Return a value in one line of YAML."""
    if isinstance(value, float) and math.isfinite(value):  # as PyYAML, at a hundredth of its time
        text = repr(value)
        return text.replace("e", ".0e", 1) if "." not in text else text
    return to_yaml({"x": value}, in_lines=False).strip()[len("{x: ") : -1]


POINTS = 60
"""Evaluations of a curve that the page keeps."""
MOST_CHOICES = 12
"""Values of a column that can be chosen from a list."""
DIGITS = 5


def rows_json(results: StudyResults, columns: Sequence[Column], order: Sequence[int]) -> str:
    """Return what the table shows."""
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
    listed = [[_cell(one.cells[place], one.kind) for one in columns] for place in order]
    marks = _marks(results)
    return _json(
        {
            "columns": heads,
            "rows": listed,
            "ids": list(order),
            "interpolated": [row for row, place in enumerate(order) if marks[place]],
        }
    )


def details_json(results: StudyResults, order: Sequence[int]) -> str:
    """Return what is shown of a trial that is opened: curve, ledger, spec, causes.

    Lists in the order of the rows. A setting is a number in `settings`.
    """
    runs = list(results.runs.values())
    settings = settings_of(run.spec for run in runs)
    distinct: dict[tuple[str, str], int] = {}
    numbers = [
        [distinct.setdefault(one, len(distinct)) for one in settings[place]] for place in order
    ]
    phases = (*PHASES, OTHER)
    curves, metric = _curves(results), results.metric
    labels, unranked = results.trials["config"].tolist(), results.trials["unranked"].tolist()
    marks = _marks(results)
    return _json(
        {
            "metric": metric.words,
            "axis": metric.axis_words,
            "isShare": metric.is_share,
            "target": results.target if results.is_timed else None,
            "phases": phases,
            "settings": list(distinct),
            "specs": numbers,
            "ledgers": [
                [_rounded(runs[place].ledger.get(phase, 0.0)) for phase in phases]
                for place in order
            ],
            "walls": [_rounded(runs[place].wall_s) for place in order],
            "labels": [clean(labels[place]) for place in order],
            "notes": [_notes(runs[place], unranked[place], marks[place]) for place in order],
            "curves": [curves.get(runs[place].trial, [[], []]) for place in order],
        }
    )


def data_block(name: str, content: str) -> Html:
    """Return JSON as a part of the page that no browser runs."""
    safe = content.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return element("script", Html(safe), type="application/json", id=name)


def _cell(value: Any, kind: str) -> Any:
    if value is None or value is pd.NA:
        return None
    if kind == "text":
        return shorten(clean(str(value)), LONGEST)
    if kind == "count":
        return int(value)
    return _rounded(float(value))


def _rounded(value: float) -> float | None:
    """Return five digits of a number; None of what JSON does not know."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _all_rounded(column: "pd.Series[float]") -> np.ndarray:
    """Return a column of numbers as `_rounded` does one by one, at a tenth of its time: objects.

    Large numbers keep all digits before the point. Whole numbers over a power of ten are written
    with the digits that they were rounded to.
    """
    values = column.to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.floor(np.log10(np.abs(values)))
        # Powers of ten up to 22 are exact.
        power = 10.0 ** np.clip(np.nan_to_num(DIGITS - 1 - sizes, posinf=0.0), 0, 22)
        rounded: np.ndarray = (np.rint(values * power) / power).astype(object)
    rounded[~np.isfinite(values)] = None
    return rounded


def _curves(results: StudyResults) -> dict[str, list[list[float | None]]]:
    """Return seconds and values of each run's curve, thinned; its best point stays."""
    metric, found = results.metric, {}
    gains = metric.sign * results.curves[metric.name].to_numpy(dtype=float)
    seconds = _all_rounded(results.curves["train_s"])
    values = _all_rounded(results.curves[metric.name])
    for trial, places in results.curves.groupby("trial", sort=False).indices.items():
        places = np.asarray(places)
        kept = _thinned(places, gains[places])
        found[str(trial)] = [seconds[kept].tolist(), values[kept].tolist()]
    return found


def _thinned(places: np.ndarray, gains: np.ndarray) -> np.ndarray:
    if len(places) <= POINTS:
        return places
    even = np.linspace(0, len(places) - 1, POINTS - 1).round().astype(int)
    if np.isnan(gains).all():
        return np.asarray(places[even])
    return np.asarray(places[np.unique([*even, int(np.nanargmax(gains))])])


def _marks(results: StudyResults) -> list[bool]:
    """Return of which runs the time to the target is interpolated."""
    found: list[bool] = results.trials["is_interpolated"].eq(True).fillna(False).tolist()
    return found


def _notes(run: RunRecord, unranked: str | None, is_interpolated: bool) -> list[list[str]]:
    """Return what else is to be known of a run: names and what they are."""
    said: dict[str, str | None] = {
        "repeats": run.source and f"trial {run.source}",
        "ended by": run.stop,
        "failed": run.failure and f"{run.failure}: {run.message or 'no message'}",
        "not ranked": unranked,
        "time to target": "read between two evaluations" if is_interpolated else None,
        "disturbed": f"others had its cores for {run.disturbed_s:.2f} s"
        if run.is_disturbed
        else None,
        "ran before": f"{run.reruns} times, disturbed" if run.reruns else None,
        "waited for": run.waited_for,
        "restarts": f"{run.restarts} ({run.restart_reason})" if run.restarts else None,
        "hosts": ", ".join(sorted(set(run.hosts))),
        "devices": ", ".join(sorted(set(run.devices))),
    }
    return [[name, shorten(clean(value), LONGEST)] for name, value in said.items() if value]


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


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
    """Return a cell as the script writes it (`written` in page.js)."""
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
