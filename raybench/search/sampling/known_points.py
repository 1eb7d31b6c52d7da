"""Known results of configurations, from a `raybench train` folder, a CSV or an Optuna study."""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from raybench.results.study import Study
from raybench.search.factorisation import GLOBAL_BATCH, SPEED_KEYS
from raybench.search.sampling.optuna_space import encode
from raybench.spec.documents import parse_yaml
from raybench.spec.errors import UserError
from raybench.spec.objective import BUDGET, Objective, StopRule, search_score
from raybench.spec.run import OPEN, RunSpec, flat, is_key, is_open, shown_key, value_of
from raybench.spec.space import (
    NOT_SEARCHED,
    SEARCHABLE,
    Space,
    is_one_of,
    known_values,
    lies_in,
    possible_values,
)
from raybench.spec.study import EVAL_INTERVAL, StudySpec

OTHER_KEYS = {"lr": "learning_rate", "batch_size": "batch_size_per_worker"}
"""Column names of other tools, and the run spec keys they stand for."""
SECONDS = "time_to_target_s"
SQLITE = b"SQLite format 3"


@dataclass(frozen=True)
class KnownPoint:
    """A configuration and its result."""

    settings: Mapping[str, Any]
    """Values by run spec key; nested settings (`model.x`) are keys of their own."""
    named: Collection[str]
    """Keys that were set explicitly."""
    origin: str
    """Where it was measured, in words."""
    time_to_target_s: float | None = None
    """Training seconds to the target of the study; None if it was missed or is unknown."""
    best_value: float | None = None
    """Best value of the metric of the study."""


@dataclass(frozen=True)
class KnownPoints:
    """Known points of one source."""

    place: str
    """Path or URL given by the user."""
    points: Sequence[KnownPoint]
    words: str = ""
    """How the source was interpreted, in words."""


def score_of(point: KnownPoint, objective: Objective) -> float | None:
    """Return the score of a point that a search minimizes; None if it has neither seconds nor a
    value, or reached the target after an unknown time."""
    metric, value, target = objective.judged_by, point.best_value, objective.target
    is_reached = target is not None and value is not None and metric.reaches(value, target)
    if objective.kind == BUDGET and value is None:
        return None
    if point.time_to_target_s is None and (value is None or is_reached):
        return None
    return search_score(
        objective,
        time_to_target_s=point.time_to_target_s,
        best_value=value,
        baseline_value=None,
    )


def parameters_of(
    settings: Mapping[str, Any], named: Collection[str], study: StudySpec, space: Space
) -> dict[str, Any] | None:
    """Return the sampler parameters of known settings; None if they lie outside of the space.

    A key that was not set explicitly has its default. If the default is unknown (`model.x`) or
    outside of the space, the key has no parameter.

    Args:
        settings: Values by run spec key.
        named: Keys that were set explicitly.
        study: The study.
        space: The sampled space.
    """
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        if key in settings:
            values[key] = _as_in(key, settings[key], possible_values(dimension))
        elif key != GLOBAL_BATCH and not is_open(key):
            values[key] = known_values({}, {})[key]
    placement: dict[str, Any] = {}
    if GLOBAL_BATCH in space:
        known = known_values(study.fixed, dict(settings))
        placement = {key: known[key] for key in SPEED_KEYS}
        counts = ("num_workers", "accumulate", "batch_size_per_worker")
        if not all(isinstance(known[key], int) for key in counts):
            return None
        passes = known["num_workers"] * known["accumulate"]
        values[GLOBAL_BATCH] = passes * known["batch_size_per_worker"]
    known = known_values(study.fixed, values)
    for key, value in list(values.items()):
        if lies_in(key, space[key], value, known):
            continue
        if key in named or key == GLOBAL_BATCH:
            return None
        del values[key]
    own = {key: value for key, value in values.items() if key != GLOBAL_BATCH} | placement
    try:
        if study.run_spec(own) != study.run_spec({**settings, **own}):
            return None  # a fixed key had another value
    except UserError:
        return None
    return encode(space, study.fixed, values)


def _as_in(key: str, value: Any, possible: Sequence[Any]) -> Any:
    """Return a table's value with the type it has in the space (`1` for 1.0)."""
    if not is_open(key) or is_one_of(key, value, possible):
        return value
    return next((one for one in possible if one == value or str(one) == str(value)), value)


def settings_of_spec(spec: RunSpec) -> dict[str, Any]:
    """Return the values of a run spec's searchable keys, without the evaluation interval."""
    keys = [key for key in (*SEARCHABLE, *OPEN) if key != EVAL_INTERVAL]
    return flat({key: getattr(spec, key) for key in keys})


def named_in(spec: RunSpec) -> set[str]:
    """Return the keys of a run spec that differ from their default."""
    default = RunSpec()
    found = settings_of_spec(spec).items()
    return {key for key, value in found if is_open(key) or value != value_of(default, key)}


def points_of_runs(earlier: Study, study: StudySpec) -> KnownPoints:
    """Return the runs of a `raybench train` folder; UserError if they are of another task."""
    points, objective = [], study.objective
    for name, run in earlier.runs.items():
        for key, own, asked in (
            ("workload", run.spec.workload, study.workload),
            ("dataset", run.spec.dataset, study.dataset),
            ("metric", run.spec.objective.judged_by.name, objective.judged_by.name),
        ):
            if own != asked:
                raise UserError(
                    f"--seed-from {earlier.place}: is a training of another task ({key} is not "
                    "this study's), so what it reached says nothing here; leave it out."
                )
        if run.failure is not None:
            continue
        curve = earlier.evaluations.get(name, [])
        rule = StopRule(
            objective,
            values=[point.value for point in curve],
            train_seconds=[point.train_s for point in curve],
        )
        seconds = None if objective.kind == BUDGET else rule.time_to_target_s
        settings, named = settings_of_spec(run.spec), frozenset(named_in(run.spec))
        points.append(KnownPoint(settings, named, earlier.place, seconds, rule.best_value))
    return KnownPoints(earlier.place, points)


def points_of_table(path: Path, study: StudySpec, space: Space) -> KnownPoints:
    """Return the rows of a CSV with columns for settings, `time_to_target_s` and the metric."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        sample = file.read(4096)
        file.seek(0)
        delimiter = max(",;\t", key=sample.partition("\n")[0].count)
        reader = csv.DictReader(file, delimiter=delimiter)
        rows, columns = list(reader), list(reader.fieldnames or [])
    keys = {one: key for one in columns if (key := _key_of(one, space)) is not None}
    if not keys:
        raise UserError(
            f"--seed-from {path}: has no column of a searched key; name them {', '.join(space)}."
        )
    metric = study.objective.judged_by
    of_value = next((one for one in (metric.best_column, metric.name) if one in columns), None)
    if of_value is None and SECONDS not in columns:
        raise UserError(
            f"--seed-from {path}: says not what its rows reached; add a column {SECONDS} or "
            f"{metric.name}."
        )
    points = []
    for number, row in enumerate(rows, 2):
        cells = {name: _cell(text) for name, text in row.items() if text and isinstance(text, str)}
        if cells.get("state") == "failed":
            continue
        settings = {key: cells[one] for one, key in keys.items() if one in cells}
        seconds, value = _seconds(cells.get(SECONDS)), _number(cells.get(of_value or ""))
        points.append(KnownPoint(settings, settings, f"{path}, line {number}", seconds, value))
    return KnownPoints(str(path), points)


def points_of_optuna(place: str, study: StudySpec, space: Space) -> KnownPoints:
    """Return the complete trials of an Optuna study.

    Args:
        place: Journal file, SQLite file or database URL; with `#NAME` if it has several studies.
        study: The new study.
        space: Its search space.

    Raises:
        UserError: The storage cannot be read, or its values are not comparable.
    """
    storage, _, name = place.partition("#")
    try:
        found = _storage(storage)
        names = sorted(one.study_name for one in found.get_all_studies())
        if not name and len(names) == 1:
            name = names[0]
        if name not in names:
            there = ", ".join(names) or "none"
            raise UserError(
                f"--seed-from {place}: which Optuna study? Add its name, {storage}#NAME; there are "
                f"{there}."
            )
        theirs = optuna.load_study(study_name=name, storage=found)
        trials = theirs.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        directions = [one.name for one in theirs.directions]
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 (any fault of a foreign file, by several libraries)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"--seed-from {place}: cannot be read as an Optuna storage ({reason}); name a results "
            "folder, a CSV or an Optuna storage."
        ) from None
    objective = study.objective
    metric = objective.judged_by
    is_value = directions[0] == ("MAXIMIZE" if metric.direction == "max" else "MINIMIZE")
    if len(directions) > 1 or not (is_value or objective.kind != BUDGET):
        raise UserError(
            f"--seed-from {place}: its values are not this study's {metric.words} (its directions: "
            f"{', '.join(directions).lower()}); leave it out."
        )
    points = []
    for trial in trials:
        own = {**trial.params, **trial.user_attrs}
        settings = {key: own[one] for one in own if (key := _key_of(one, space)) is not None}
        value = float(trial.values[0])
        told = _seconds(own.get(SECONDS) if is_value else value)
        origin, reached = f"{place}, trial {trial.number}", value if is_value else None
        points.append(KnownPoint(settings, settings, origin, told, reached))
    words = f"its values taken for {metric.words if is_value else 'seconds to the target'}"
    return KnownPoints(place, points, words)


def _storage(place: str) -> optuna.storages.BaseStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "://" in place:
        return optuna.storages.RDBStorage(place)
    with Path(place).open("rb") as file:
        is_sqlite = file.read(len(SQLITE)) == SQLITE
    if is_sqlite:
        return optuna.storages.RDBStorage(f"sqlite:///{place}")
    return optuna.storages.JournalStorage(JournalFileBackend(place))


def _key_of(name: str, space: Space) -> str | None:
    """Return the run spec key of a column or parameter name; None if there is none."""
    name = OTHER_KEYS.get(name, name)
    if name in space or (is_key(name) and name.partition(".")[0] not in _NO_SETTINGS):
        return name
    own = [key for key in space if shown_key(key) == name or key.rpartition(".")[2] == name]
    return own[0] if len(own) == 1 else None


_NO_SETTINGS = {key for key in NOT_SEARCHED if key not in OPEN}


def _cell(text: str) -> Any:
    """Return the value of a cell parsed as YAML, or its text if that fails."""
    try:
        return parse_yaml(text.strip().removeprefix("'") if text[:2] == "'=" else text.strip(), "")
    except UserError:
        return text


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _seconds(value: Any) -> float | None:
    """Return seconds to the target; None for values of at most 0, which mark a miss."""
    seconds = _number(value)
    return seconds if seconds is not None and seconds > 0 else None
