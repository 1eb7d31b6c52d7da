"""A study of another tool, as far as its files tell: trials, parameters, learning curves.

What they do not tell (workers, hosts, where the seconds went, who was confirmed) is missing in the
frames, never made up; what needs it says so.

Ray Tune's experiment folders are read without Ray. As Ray 2.x writes them:
`experiment_state-*.json` beside a folder for each trial with `params.json` and `result.json` (or
`progress.csv` alone), and `error.txt` where it failed. No pickle is read.
"""

import html
import json
import math
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
from raybench.results.analyses import Analysed
from raybench.results.answer import table_html
from raybench.results.place import is_url
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


PARAMS, RESULT, PROGRESS, ERROR = "params.json", "result.json", "progress.csv", "error.txt"
STATE = "experiment_state-*.json"
TIME = "time_total_s"
OWN = (
    *("training_iteration", TIME, "time_this_iter_s", "time_since_restore", "timestamp", "pid"),
    *("iterations_since_restore", "timesteps_since_restore", "timesteps_total", "episodes_total"),
    *("date", "hostname", "node_ip", "done", "trial_id", "experiment_tag", "checkpoint_dir_name"),
    *("should_checkpoint", "warmup_time", "config", "auto"),
)
"""What Tune adds to every result."""


def is_tune_folder(folder: Path) -> bool:
    """Whether a folder holds an experiment of Ray Tune."""
    return any(folder.glob(STATE)) or any(
        any(folder.glob(f"*/{name}")) for name in (RESULT, PROGRESS)
    )


def read_tune(
    folder: Path, *, metric: str | None = None, mode: Mode | None = None, time: str | None = None
) -> OtherStudy:
    """Read an experiment of Ray Tune.

    `metric`: which column of its results; if they have but one number of their own, that one.
    `mode`: whether `max` or `min` is better; told from the name where that is known. `time`: the
    column of seconds, `time_total_s` if none is named: all that a trial's own code took, evaluation
    and checkpoints included.
    """
    place, time = str(folder), time or TIME
    trials = [one for one in sorted(folder.iterdir()) if one.is_dir() and _is_trial(one)]
    results = [_results(one) for one in trials]
    name = metric or _only_number(results, place)
    every = [row for rows in results for row in rows]
    for column in (name, time):
        if every and not any(column in row for row in every):
            there = ", ".join(sorted({clean(key) for row in every for key in _numbers(row)}))
            raise UserError(
                f"{place}: no result has a number '{clean(column)}'; there are {there}."
            )
    judged = metric_called(name, mode, place=place)
    rows, params, curves = [], [], []
    for trial, points in zip(trials, results, strict=True):
        name_of_trial = _name(trial, points)
        points = [row for row in points if _number(row.get(name)) is not None]
        values = [_number(row[name]) for row in points]
        known = [value for value in values if value is not None and math.isfinite(value)]
        last = points[-1] if points else {}
        best = judged.best(known)
        error = trial / ERROR
        rows.append(
            {
                "trial": name_of_trial,
                "state": _state(error, last),
                "failure": "error" if error.is_file() else None,
                "message": _last_line(error) if error.is_file() else None,
                judged.best_column: best,
                "train_s": _number(last.get(time)),
                "finished_at": _when(last.get("timestamp")),
            }
        )
        params.append(_params(trial))
        curves += [
            {
                "trial": name_of_trial,
                "step": _number(row.get("training_iteration")),
                "epoch": _number(row.get("epoch")),
                "train_s": _number(row.get(time)),
                judged.name: value,
            }
            for row, value in zip(points, values, strict=True)
        ]
    return other_study(
        place=place,
        tool="Ray Tune",
        name=name_of(place),
        metric=judged,
        trials=rows,
        params=params,
        curves=pd.DataFrame(curves),
    )


def _is_trial(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (PARAMS, RESULT, PROGRESS))


def _state(error: Path, last: Mapping[str, Any]) -> str:
    if error.is_file():
        return "failed"
    return "complete" if str(last.get("done")).lower() == "true" else "stopped"


def _name(folder: Path, results: Sequence[Mapping[str, Any]]) -> str:
    """Return Tune's id of a trial; its folder's name where no result has told it."""
    found = next((row["trial_id"] for row in results if row.get("trial_id")), folder.name)
    return clean(str(found))


def _results(trial: Path) -> list[dict[str, Any]]:
    """Return a trial's results, nested keys as `a/b`; a torn last line is left out."""
    file = trial / RESULT
    if not file.is_file():
        return _progress(trial / PROGRESS)
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):  # its writer was interrupted
                continue
            raise UserError(f"{file}, line {number}: is not JSON; restore the file.") from None
        if not isinstance(content, dict):
            raise UserError(f"{file}, line {number}: is no result of Ray Tune; restore the file.")
        found.append(flat({key: value for key, value in content.items() if key != "config"}))
    return found


def _progress(file: Path) -> list[dict[str, Any]]:
    if not file.is_file() or not file.stat().st_size:
        return []
    try:
        table = pd.read_csv(file, dtype={"trial_id": str}, on_bad_lines="skip")
    except (ValueError, pd.errors.ParserError) as error:
        raise UserError(f"{file}: cannot be read ({clean(str(error))}).") from None
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _params(trial: Path) -> dict[str, Any]:
    """Return a trial's parameters, nested keys as `a/b`; lists as texts."""
    file = trial / PARAMS
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError):
        raise UserError(f"{file}: is not JSON; restore the file.") from None
    found = flat(content) if isinstance(content, dict) else {}
    return {
        key: value
        if value is None or isinstance(value, bool | int | float)
        else clean(value if isinstance(value, str) else json.dumps(value))
        for key, value in found.items()
    }


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested keys as `a/b`, as Tune names them itself."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{clean(str(key))}"
        if isinstance(value, dict):
            found |= flat(value, f"{name}/")
        else:
            found[name] = value
    return found


def _only_number(results: Sequence[Sequence[Mapping[str, Any]]], place: str) -> str:
    """Return the only number that the trials report themselves."""
    names = dict.fromkeys(key for rows in results for row in rows for key in _numbers(row))
    own = [key for key in names if key not in OWN and not key.startswith("config/")]
    own = [key for key in own if key not in ("epoch", "step")]
    if len(own) == 1:
        return own[0]
    if not own:
        raise UserError(f"{place}: no trial has reported a number, so there is nothing to judge.")
    there = ", ".join(clean(key) for key in own[:12])
    raise UserError(f"{place}: which number are its trials judged by? Say metric=... of {there}.")


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [
        key
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _when(value: Any) -> pd.Timestamp | None:
    seconds = _number(value)
    if seconds is None or not 0 < seconds < 1e11:
        return None
    return pd.Timestamp(seconds, unit="s", tz="UTC")


def _last_line(file: Path) -> str:
    """Return the last line of a traceback: what went wrong."""
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return clean(lines[-1]) if lines else "no message"


SQLITE = b"SQLite format 3\0"
DATABASES = ("sqlite:", "mysql", "postgresql", "mariadb", "oracle", "mssql")
"""How the URL of a database begins that Optuna takes."""
HEAD_BYTES = 64 * 1024


def is_database(place: str) -> bool:
    """Whether a place is the URL of a database."""
    return "://" in place and place.startswith(DATABASES)


def is_optuna_place(place: str) -> bool:
    """Whether a place is a database's URL, or a file that Optuna may have written."""
    if is_database(place):
        return True
    file = Path(place)
    return file.is_file() and (is_sqlite(file) or _is_journal(file))


def is_sqlite(file: Path) -> bool:
    """Whether a file is a database of SQLite."""
    return _head(file).startswith(SQLITE)


def _is_journal(file: Path) -> bool:
    first = _head(file).split(b"\n")[0]
    try:
        content = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "op_code" in content


def _head(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(HEAD_BYTES)
