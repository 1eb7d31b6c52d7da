"""A study of another tool, as far as its files tell: trials, parameters, learning curves.

What they do not tell (workers, hosts, where the seconds went, who was confirmed) is missing in the
frames, never made up; what needs it says so.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from raybench.core.errors import UserError
from raybench.core.metric import METRICS, Direction, Metric
from raybench.core.text import clean
from raybench.results.place import is_url
from raybench.results.study_analyses import Analysed
from raybench.results.study_view import table_html
from raybench.results.trials import (
    COUNT,
    CURVE_TYPES,
    EXTRA_TYPES,
    NUMBER,
    SOME_COUNT,
    TEXT,
    TRIAL_TYPES,
    for_metric,
)

Mode = Literal["min", "max"]
LESS, MORE = r"loss|error|rmse|mse|mae|perplexity|latency|cost", r"acc|auc|reward|score|f1|r2|bleu"
SAME = ("framework", "optimizer", "learning_rate", "seed")
"""Columns of `trials` that a parameter of that name is: it can mean nothing else. Parameters that
have another column's name stand behind `config/`."""
MOST_SHOWN = 5


class NotToldError(UserError, AttributeError):
    """A study of another tool has no such thing."""


@dataclass(frozen=True)
class OtherTrial:
    """A trial of another tool."""

    trial: str
    params: dict[str, Any]
    value: float
    """Its best value of the metric."""

    def __getattr__(self, name: str) -> Any:
        if name in ("spec", "command", "train"):
            raise NotToldError(
                f"best.{name}: of a trial that raybench did not run there is no run spec; "
                "best.params holds its parameters."
            )
        raise AttributeError(name)


@dataclass(frozen=True, repr=False, eq=False)
class OtherStudy(Analysed):
    """What `raybench.load` reads of Ray Tune and Optuna."""

    place: str
    """What the user named."""
    tool: str
    """`Ray Tune` or `Optuna`."""
    name: str
    metric: Metric
    trials: pd.DataFrame
    """One row per trial that ended, columns as of raybench's own; the parameters stand last."""
    curves: pd.DataFrame
    """One row per report: columns of raybench's own and `step`, as far as the tool tells."""
    searched: tuple[str, ...]
    """Columns of `trials` that hold parameters."""
    open_trials: int = 0
    """Trials that had not ended."""
    target: float | None = None
    value_at_start: float | None = None
    hold: int = 1

    @property
    def best(self) -> OtherTrial:
        """The trial of the best value: `.trial`, `.params`, `.value`.

        As in the tools themselves, a trial that failed is none, and one that was pruned is but
        where no other has a value: what it reported midway is no result.
        """
        if self._ranking.empty:
            raise UserError(f"{self.place}: has no winner; no trial that ended well has a value.")
        row = self.trials.loc[self._ranking[:1]].to_dict("records")[0]
        params = {key: row[key] for key in self.searched if not _is_missing(row[key])}
        return OtherTrial(str(row["trial"]), params, float(row[self.metric.best_column]))

    @cached_property
    def _ranking(self) -> "pd.Index[Any]":
        """Rows of `trials` that may be the best, best first."""
        trials = self.trials[self.trials["state"] != "failed"]
        gain = (self.metric.sign * trials[self.metric.best_column]).dropna()
        whole = gain[trials.loc[gain.index, "stop"] != "scheduler"]
        ranked = gain if whole.empty else whole
        return ranked.sort_values(ascending=False, kind="stable").index

    @property
    def answer(self) -> list[str]:
        """What it found, in a sentence."""
        if self._ranking.empty:
            return ["No result: no trial that ended well has a value."]
        best, metric = self.best, self.metric
        value, given = f"{best.value:.6g}", _given(best.params) or "no parameters"
        return [clean(f"Best {metric.words}: {value} with {given} (trial {best.trial}); one run.")]

    def winner_row(self) -> dict[str, Any]:
        """Return what `Studies.winners` has of it."""
        if self._ranking.empty:
            return {}
        best = self.best
        given = _given(best.params)
        return {"trial": best.trial, "config": given, "value": best.value, "is_confirmed": False}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            there = "trials, curves, best, importance, best_at_every_budget(), time_to(TARGET)"
            raise NotToldError(
                f"'{clean(name)}' is of raybench's own studies, {self.tool} does not record what "
                f"it needs; there are {there}."
            )
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "\n".join([*self.answer, self._counted])

    def _repr_html_(self) -> str:
        metric, rows = self.metric, []
        for row in self.trials.loc[self._ranking[:MOST_SHOWN]].to_dict("records"):
            cells = {"trial": row["trial"], metric.words: _short(row[metric.best_column])}
            rows.append(cells | {clean(key): _short(row[key]) for key in self.searched})
        head = "".join(f"<p><strong>{html.escape(line)}</strong></p>" for line in self.answer)
        small = f"<p><small>{html.escape(self._counted)}</small></p>"
        return f'<div class="raybench-study">{head}{table_html(rows)}{small}</div>'

    @property
    def _counted(self) -> str:
        failed = int((self.trials["state"] == "failed").sum())
        parts = [f"{len(self.trials):,} trials"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{self.open_trials} not ended"] if self.open_trials else []
        parts.append(f"{len(self.curves):,} reports")
        return clean(f"{self.tool}, {', '.join(parts)}; {self.place}: .trials, .curves, .best")


def other_study(
    *,
    place: str,
    tool: str,
    name: str,
    metric: Metric,
    trials: Sequence[Mapping[str, Any]],
    params: Sequence[Mapping[str, Any]],
    curves: pd.DataFrame,
    open_trials: int = 0,
) -> OtherStudy:
    """Make the frames: `trials` hold what is known of each, `params` its parameters."""
    types = {
        column: SOME_COUNT if kind == COUNT else kind
        for column, kind in for_metric(TRIAL_TYPES | EXTRA_TYPES, metric).items()
    }
    table = pd.DataFrame([dict(row) for row in trials], columns=list(types), dtype=object)
    table["finished_at"] = pd.to_datetime(table["finished_at"], utc=True)
    table = table.assign(phase="search", role="trial", config=[_given(one) for one in params])
    table = table.astype(types)
    for column in [column for column, kind in types.items() if kind == TEXT]:
        table[column] = table[column].where(table[column].notna(), None)
    searched = []
    for key in dict.fromkeys(key for one in params for key in one):
        column = key if key in SAME or key not in types else f"config/{key}"
        values = pd.Series([one.get(key) for one in params], dtype=object)
        table[column] = values.infer_objects()
        searched.append(column)
    known = for_metric(CURVE_TYPES, metric) | {"step": NUMBER}
    known = {column: NUMBER if kind == COUNT else kind for column, kind in known.items()}
    points = curves.reindex(columns=list(known)).astype(known)
    return OtherStudy(place, tool, clean(name), metric, table, points, tuple(searched), open_trials)


def metric_called(name: str, mode: Mode | None, *, place: str) -> Metric:
    """Return the metric of another tool; UserError where nobody says whether more is better."""
    if name in METRICS and mode in (None, METRICS[name].direction):
        return METRICS[name]
    direction: Direction | None = mode
    if direction is None:
        less, more = (re.search(words, name.lower()) for words in (LESS, MORE))
        if bool(less) == bool(more):
            raise UserError(
                f"{place}: is more or less of '{clean(name)}' better? Say mode='max' or mode='min'."
            )
        direction = "min" if less else "max"
    if direction not in ("min", "max"):
        raise UserError(f"mode: is '{clean(str(mode))}'; it must be 'min' or 'max'.")
    return Metric(name=clean(name), direction=direction)


def name_of(place: str) -> str:
    """Return the last part of a place, without what follows a `?`."""
    return Path(place.partition("?")[0]).name if is_url(place) else Path(place).resolve().name


def _given(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{clean(key)} {_short(value)}" for key, value in params.items())


def _short(value: Any) -> str:
    if _is_missing(value):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value))


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)
