"""Ray Tune's experiment folders, read without Ray: one folder per trial, JSON lines of results.

As Ray 2.x writes them: `experiment_state-*.json` beside a folder for each trial with `params.json`
and `result.json` (or `progress.csv` alone), and `error.txt` where it failed. No pickle is read.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.results.other_study import Mode, OtherStudy, metric_called, name_of, other_study

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
