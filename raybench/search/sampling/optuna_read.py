"""Optuna's storages, read: a journal file, an SQLite file, or the URL of a database."""

import math
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from raybench.core.errors import UserError
from raybench.core.metric import Metric
from raybench.core.text import clean
from raybench.results.other_study import (
    Mode,
    OtherStudy,
    is_database,
    is_sqlite,
    metric_called,
    other_study,
)

STATES = {
    TrialState.COMPLETE: ("complete", None, None),
    TrialState.PRUNED: ("stopped", None, "scheduler"),
    TrialState.FAIL: ("failed", "error", None),
}
"""Our state, failure and stop of Optuna's trials that have ended."""


def read_optuna(
    place: str,
    *,
    study_name: str | None = None,
    metric: str | None = None,
    mode: Mode | None = None,
) -> OtherStudy:
    """Read a study of Optuna.

    `study_name`: which, where the storage holds several. `metric` names its value (`value` if
    nobody has named it), of several objectives one: `values_0`, `values_1`, or by its name. Optuna
    records no seconds of a step, so `curves.train_s` is missing.
    """
    try:
        study = _study(place, study_name)
        names = study.metric_names or ["value"]
        directions = study.directions
        trials = study.get_trials(deepcopy=False)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 a damaged file, a driver that is missing, no server
        words = clean(str(error)).partition(" (Background")[0]
        raise UserError(f"{place}: Optuna cannot read it ({words[:300]}).") from None
    if len(directions) > 1 and not study.metric_names:
        names = [f"values_{number}" for number in range(len(directions))]
    number = _objective(names, metric, place)
    told: Mode = "min" if directions[number] == StudyDirection.MINIMIZE else "max"
    if mode not in (None, told):
        raise UserError(f"{place}: mode: the study says {told}, not {mode}; leave it out.")
    judged = metric_called(metric or names[number], told, place=place)
    ended = [one for one in trials if one.state in STATES]
    return other_study(
        place=place,
        tool="Optuna",
        name=study.study_name,
        metric=judged,
        trials=[_row(one, judged, number, is_only=len(directions) == 1) for one in ended],
        params=[_params(one) for one in ended],
        curves=_curves(ended, judged),
        open_trials=len(trials) - len(ended),
    )


def _study(place: str, study_name: str | None) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = _storage(place)
    names = optuna.get_all_study_names(storage)
    if study_name is None and len(names) == 1:
        study_name = names[0]
    if study_name is None or study_name not in names:
        there = ", ".join(clean(name) for name in names) or "none"
        asked = "" if study_name is None else f"no study '{clean(study_name)}', "
        raise UserError(f"{place}: holds {asked}{len(names)} studies: say study_name= of {there}.")
    return optuna.load_study(study_name=study_name, storage=storage)


def _storage(place: str) -> BaseStorage:
    if is_database(place):
        if place.startswith("sqlite:///") and not Path(place[len("sqlite:///") :]).is_file():
            raise UserError(f"{place}: there is no such file.")
        return optuna.storages.RDBStorage(place)
    if is_sqlite(Path(place)):
        return optuna.storages.RDBStorage(f"sqlite:///{Path(place).resolve()}")
    return JournalStorage(JournalFileBackend(place))


def _objective(names: list[str], metric: str | None, place: str) -> int:
    """Return which of its values a study is judged by."""
    if len(names) == 1:
        return 0
    if metric in names:
        return names.index(metric)
    raise UserError(
        f"{place}: has {len(names)} objectives; say metric= of {', '.join(map(clean, names))}."
    )


def _row(trial: FrozenTrial, metric: Metric, number: int, *, is_only: bool) -> dict[str, Any]:
    state, failure, stop = STATES[trial.state]
    values = [trial.values[number]] if trial.values else []  # noqa: PD011
    if is_only and not values:  # pruned: the best that it reported
        values = list(trial.intermediate_values.values())
    known = [float(value) for value in values if math.isfinite(value)]
    return {
        "trial": str(trial.number),
        "state": state,
        "failure": failure,
        "stop": stop,
        metric.best_column: metric.best(known),
        # Of the clock of the host it ran on, without its zone: taken for this host's.
        "finished_at": trial.datetime_complete and trial.datetime_complete.astimezone(),
    }


def _params(trial: FrozenTrial) -> dict[str, Any]:
    return {
        clean(key): clean(value) if isinstance(value, str) else value
        for key, value in trial.params.items()
    }


def _curves(trials: list[FrozenTrial], metric: Metric) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"trial": str(one.number), "step": float(step), metric.name: float(value)}
            for one in trials
            for step, value in sorted(one.intermediate_values.items())
        ]
    )
