"""The columns of the table of trials, and the order of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.results.load import StudyResults
from raybench.results.trials import searched_columns

ROLES = {
    "trial": "search",
    "finalist": "predicted split, run",
    "race": "race, new seed",
    "confirm": "alone, new seed",
    "reference": "reference",
    "sentinel": "sentinel",
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
