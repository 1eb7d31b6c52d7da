"""`--seed-from`: start a search with earlier results for the same task.

The source is a results folder of `raybench tune`, `raybench train` or `raybench import`, or an
Optuna storage. The earlier runs are added to the new Optuna study; those with a learning curve are
also added to the curve model, with more noise. They are not trials of the new study: they do not
appear in its tables, and no trial is stopped because of their times.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from raybench.results.foreign import (
    VALUE,
    ForeignTable,
)
from raybench.results.place import comparable, is_url
from raybench.results.store import RECORDS_FILE, STUDY_FILE, StudyKind
from raybench.results.study import Study, load
from raybench.search.factorisation import GLOBAL_BATCH, SPEED_KEYS
from raybench.search.sampling.optuna_study import JOURNAL_FILE, PARETO_SAMPLERS, encode, params_of
from raybench.spec.documents import validate
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Direction
from raybench.spec.objective import BUDGET, TIME, Objective, StopReason, StopRule, search_score
from raybench.spec.run import OPEN, RunSpec, flat, has_value, is_open, value_of
from raybench.spec.space import (
    SEARCHABLE,
    Space,
    is_one_of,
    known_values,
    lies_in,
    possible_values,
)
from raybench.spec.study import EVAL_INTERVAL, StudySpec
from raybench.stats.record import Evaluation, Phase, Purpose, Role, RunRecord, State

DATABASE = re.compile(r"(sqlite|mysql|postgresql)[+\w]*://")
"""Matches the URL of an Optuna storage."""
TABLES = (".csv", ".tsv")
SQLITE = b"SQLite format 3"
OWN_FILES = (STUDY_FILE, RECORDS_FILE, JOURNAL_FILE, "trials.csv")
"""Names of the files in a results folder that the user may give instead of the folder."""
TASK_SETTINGS = ("workload", "dataset", "objective")
"""Settings that must be the same in both studies for scores to be comparable."""


@dataclass(frozen=True)
class EarlierRun:
    """Configuration and result of an earlier run."""

    settings: Mapping[str, Any]
    """Values by run-spec key; nested settings have dotted keys (`model.x`)."""
    explicit_keys: Collection[str]
    """Run-spec keys that were set explicitly; the others had their default value."""
    time_to_target_s: float | None = None
    """Training seconds to the target on the fastest known placement; None if the run missed the
    target or the time is unknown."""
    best_value: float | None = None
    """Best value that the run reached in the metric of the new study; None if unknown."""
    record: RunRecord | None = None
    """Record that the run would have under the objective of the new study; None if another tool ran
    it."""
    curve: Sequence[Evaluation] = ()
    """Evaluations of the run; empty if unknown."""
    is_of_other_clock: bool = False
    """Whether another tool measured the seconds (`raybench import`). The seconds then only
    determine the order of the first trials."""

    def score(self, objective: Objective) -> float | None:
        """Return the score of the run, which a search minimizes; None if unknown.

        It is unknown if there are neither seconds nor a metric value, or if the target was reached
        after an unknown time.
        """
        value, target = self.best_value, objective.target
        if objective.kind == BUDGET and value is None:
            return None
        if self.time_to_target_s is None and (
            value is None or (target is not None and objective.judged_by.reaches(value, target))
        ):
            return None
        return search_score(
            objective,
            time_to_target_s=self.time_to_target_s,
            best_value=value,
            baseline_value=None,
        )

    def params(self, study: StudySpec, space: Space) -> dict[str, Any] | None:
        """Return the configuration as Optuna parameters; None if a value that the earlier run set
        lies outside the space, or if the run differs from the fixed keys of the study.

        A key that the run did not set gets its default, or no parameter if the default is unknown
        (as for `model.x`) or lies outside the space.

        Args:
            study: The new study.
            space: Sampled space of the new study.
        """
        if self.record is not None and (params := params_of(self.record.spec, study, space)):
            return params
        values: dict[str, Any] = {}
        for key, dimension in space.items():
            if key in self.settings:
                values[key] = _matching_value(key, self.settings[key], possible_values(dimension))
            elif key != GLOBAL_BATCH and not is_open(key):
                values[key] = known_values({}, {})[key]
        placement: dict[str, Any] = {}
        if GLOBAL_BATCH in space:
            all_values = known_values(study.fixed, dict(self.settings))
            placement = {key: all_values[key] for key in SPEED_KEYS}
            counts = ("num_workers", "accumulate", "batch_size_per_worker")
            if not all(isinstance(all_values[key], int) for key in counts):
                return None
            passes = all_values["num_workers"] * all_values["accumulate"]
            values[GLOBAL_BATCH] = passes * all_values["batch_size_per_worker"]
        all_values = known_values(study.fixed, values)
        for key, value in list(values.items()):
            if lies_in(key, space[key], value, all_values):
                continue
            if key in self.explicit_keys or key == GLOBAL_BATCH:
                return None
            del values[key]
        settings = {key: value for key, value in values.items() if key != GLOBAL_BATCH} | placement
        try:
            if study.run_spec(settings) != study.run_spec({**self.settings, **settings}):
                return None  # a fixed key had another value
        except UserError:
            return None
        return encode(space, study.fixed, values)


@dataclass(frozen=True)
class Earlier:
    """Earlier results from the source of `--seed-from`."""

    place: str
    """Path or URL of the source, as the user gave it."""
    runs: Sequence[EarlierRun]
    note: str = ""
    """Remark on how the runs of the source are used, for a message; may be empty."""
    study: Study | None = None
    """The earlier study; None if the source is not a raybench search."""


def load_earlier(folder: str | Path, study: StudySpec) -> Earlier:
    """Read the earlier results from the source of `--seed-from`.

    Args:
        folder: Path or URL of the source.
        study: The new study.

    Raises:
        UserError: The source cannot be read, or belongs to another task.
    """
    if study.search.sampler in (*PARETO_SAMPLERS, "grid"):
        raise UserError(
            f"--seed-from: has no effect with search.sampler: {study.search.sampler}; leave it "
            "out, or use another sampler.",
            ErrorCode.CONFLICT,
        )
    place = str(folder)
    path = Path(place.partition("#")[0])
    if not (is_url(place) or DATABASE.match(place) or path.exists()):
        raise UserError(
            f"--seed-from {place}: does not exist; name the results folder of an earlier study.",
            ErrorCode.NOT_FOUND,
        )
    is_own = path.name in OWN_FILES and (path.parent / STUDY_FILE).is_file()
    if DATABASE.match(place) or (path.is_file() and not is_own):
        raise UserError(
            f"--seed-from {place}: is not a results folder; `raybench import {place} --as NAME` "
            "makes one from a CSV file or an Optuna storage.",
            ErrorCode.INVALID_FILE,
        )
    earlier = load(path.parent if is_own else folder)
    if earlier.is_imported:
        return _from_imported(earlier, study)
    if earlier.kind is StudyKind.TRAINING:
        return _from_training(earlier, study)
    if not earlier.searched:
        raise UserError(
            f"--seed-from {place}: contains no results of raybench tune, train or import.",
            ErrorCode.NO_RESULT,
        )
    return _from_search(earlier, study)


def _from_search(earlier: Study, study: StudySpec) -> Earlier:
    """Return the runs of an earlier search; UserError if it has another task than the new study."""
    study = settings_of(Earlier(earlier.place, (), study=earlier), study)[0]
    before, now = comparable(earlier.study["study"], earlier.folder / STUDY_FILE, study)
    for key in TASK_SETTINGS:
        if before.get(key) != now[key]:
            old, new = before.get(key), now[key]
            parts = old if isinstance(old, dict) else {}
            changed = [f"{key}.{k} was {v}, is {new[k]}" for k, v in parts.items() if v != new[k]]
            what = changed[0] if changed else f"{key} was {old}, is {new}"
            raise _another_task(earlier.place, what)
    written, fastest = earlier.study["study"], _fastest_s(earlier)
    explicit_keys = {*flat(written.get("space") or {}), *flat(written.get("fixed") or {})}
    runs = [
        EarlierRun(
            settings_of_spec(record.spec),
            explicit_keys,
            fastest.get(name, record.time_to_target_s),
            record.best_value,
            record,
            earlier.evaluations.get(name, ()),
        )
        for name, record in earlier.runs.items()
        if record.phase == Phase.SEARCH and record.counts_for(Purpose.TRANSFER)
    ]
    return Earlier(earlier.place, runs, study=earlier)


def _fastest_s(earlier: Study) -> dict[str, float]:
    """Return each trial's seconds to target on its fastest placement, measured or predicted."""
    times: dict[str, float] = {}
    for table in (earlier.trials, earlier.predictions):
        for trial, seconds in zip(table["trial"], table["time_to_target_s"], strict=True):
            if seconds == seconds:
                times[str(trial)] = min(float(seconds), times.get(str(trial), math.inf))
    return times


def _from_training(earlier: Study, study: StudySpec) -> Earlier:
    """Return the runs of `raybench train`; UserError if they have another task than the new
    study."""
    runs, objective = [], study.objective
    for name, run in earlier.runs.items():
        for key, old, new in (
            ("workload", run.spec.workload, study.workload),
            ("dataset", run.spec.dataset, study.dataset),
            ("metric", run.spec.objective.judged_by.name, objective.judged_by.name),
        ):
            if old != new:
                raise _another_task(earlier.place, f"{key} was {old}, is {new}")
        if run.failure is not None:
            continue
        curve = earlier.evaluations.get(name, ())
        record = rejudged(run, curve, objective)
        if objective.kind == TIME and record.time_to_target_s is None:
            # The run may have been shorter than a trial of the new study, so it counts as
            # unfinished instead of as one that missed the target.
            record = replace(record, state=State.STOPPED)
        runs.append(
            EarlierRun(
                settings_of_spec(run.spec),
                frozenset(_not_default(run.spec)),
                record.time_to_target_s,
                record.best_value,
                record,
                curve,
            )
        )
    return Earlier(earlier.place, runs)


def rejudged(
    record: RunRecord,
    curve: Sequence[Evaluation],
    objective: Objective,
    *,
    baseline_value: float | None = None,
) -> RunRecord:
    """Return the record that a run would have as a trial of a study with another objective.

    Args:
        record: Record of the run.
        curve: Evaluations of the run.
        objective: Objective of the study.
        baseline_value: Metric of a constant prediction; None if unknown.
    """
    rule = StopRule(
        objective,
        values=[point.value for point in curve],
        train_seconds=[point.train_s for point in curve],
    )
    reached_s = None if objective.kind == BUDGET else rule.time_to_target_s
    score = search_score(
        objective,
        time_to_target_s=reached_s,
        best_value=rule.best_value,
        baseline_value=baseline_value,
    )
    return replace(
        record,
        role=Role.TRIAL,
        time_to_target_s=reached_s,
        best_value=rule.best_value,
        score=score,
        state=record.state if reached_s is None else State.COMPLETE,
        stop=record.stop if reached_s is None else StopReason.TARGET,
    )


def _another_task(place: str, what: str) -> UserError:
    return UserError(
        f"--seed-from {place}: belongs to another task ({what}), so its results do not apply to "
        "this study; leave out --seed-from, or search the same task.",
        ErrorCode.CONFLICT,
    )


def settings_of(earlier: Earlier, study: StudySpec) -> tuple[StudySpec, list[str]]:
    """Replace the `auto` settings of a study with the values of an earlier search, so that scores
    of both are comparable.

    Returns:
        - The study, with the copied settings if there are any.
        - One sentence for each copied setting.

    Raises:
        UserError: The earlier search has no value for one of these settings.
    """
    if not study.needs_reference or earlier.study is None:
        return study, []
    source = earlier.study
    before = validate(StudySpec, source.study["study"], f"{source.folder / STUDY_FILE}: study")
    has_eval_interval = EVAL_INTERVAL in before.fixed
    if study.auto == [EVAL_INTERVAL] and not has_eval_interval:
        return study, []  # a reference run will set the interval
    if before.needs_reference or (EVAL_INTERVAL in study.auto and not has_eval_interval):
        unset = before.auto[0] if before.needs_reference else EVAL_INTERVAL
        raise UserError(
            f"--seed-from {earlier.place}: {unset} is auto in this study and has no value in the "
            "earlier one; set it, or leave out --seed-from.",
            ErrorCode.NO_RESULT,
        )
    before_values = before.objective.model_dump() | before.fixed
    values: dict[str, Any] = {key: before_values[key] for key in study.auto}
    sentences = [f"{key} {value}: taken from {earlier.place}" for key, value in values.items()]
    return study.with_auto_values(values), sentences


def settings_of_spec(spec: RunSpec) -> dict[str, Any]:
    """Return the values of a run spec by searchable key, except the evaluation interval."""
    keys = [key for key in (*SEARCHABLE, *OPEN) if key != EVAL_INTERVAL]
    return flat({key: getattr(spec, key) for key in keys})


def _not_default(spec: RunSpec) -> set[str]:
    """Return the searchable keys of a run spec that have no default or differ from their
    default."""
    default = RunSpec()
    settings = settings_of_spec(spec).items()
    return {key for key, value in settings if is_open(key) or value != value_of(default, key)}


def _from_imported(earlier: Study, study: StudySpec) -> Earlier:
    """Return the runs of `raybench import`; UserError if they have another metric or target.

    Their seconds only determine the order of the first trials, because another tool measured them.
    """
    then, now = earlier.objective, study.objective
    compared = [("metric", then.judged_by.name, now.judged_by.name)]
    compared += [("target", str(then.target), str(now.target))] if earlier.is_timed else []
    for key, old, new in compared:
        if old != new:
            raise _another_task(earlier.place, f"{key} was {old}, is {new}")
    if earlier.is_timed and study.search.sampler != "model":
        raise UserError(
            f"--seed-from {earlier.place}: another tool measured its seconds, which "
            f"search.sampler: {study.search.sampler} cannot use; leave it out, or set "
            "search.sampler: model.",
            ErrorCode.CONFLICT,
        )
    runs = []
    for run in earlier.runs.values():
        keys = [key for key in earlier.searched if has_value(run.spec, key)]
        settings = {key: value_of(run.spec, key) for key in keys}
        runs.append(
            EarlierRun(
                settings,
                settings,
                run.time_to_target_s,
                run.best_value,
                is_of_other_clock=earlier.is_timed,
            )
        )
    sentence = (
        "another tool measured the seconds, so they only decide the order of the first trials"
    )
    return Earlier(earlier.place, runs, sentence if earlier.is_timed else "")


def read_optuna(place: str) -> ForeignTable:
    """Read the complete trials of an Optuna study: parameters, user attributes and values.

    Args:
        place: Journal file, SQLite file or database URL, with the suffix `#NAME` if it contains
            several studies.

    Raises:
        UserError: The storage cannot be read, or its trials have several objective values.
    """
    storage, _, name = place.partition("#")
    try:
        storage_backend = _storage(storage)
        names = sorted(summary.study_name for summary in storage_backend.get_all_studies())
        if not name and len(names) == 1:
            name = names[0]
        if not names:
            raise ValueError("contains no Optuna study")
        if name not in names:
            raise UserError(
                f"{place}: which Optuna study? Add its name, {storage}#NAME; there are "
                f"{', '.join(names)}.",
                ErrorCode.UNKNOWN_NAME,
            )
        study = optuna.load_study(study_name=name, storage=storage_backend)
        trials = study.get_trials(deepcopy=False)
        directions = [direction.name.lower() for direction in study.directions]
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 (any fault of a foreign file, by several libraries)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"{place}: cannot be read as an Optuna storage ({reason}); name a results "
            "folder, a CSV or an Optuna storage.",
            ErrorCode.INVALID_FILE,
        ) from None
    if len(directions) > 1:
        raise UserError(
            f"{place}: its trials have several objective values (directions: "
            f"{', '.join(directions)}); use a study with one.",
            ErrorCode.CONFLICT,
        )
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    rows = [
        {f"user_attrs_{key}": value for key, value in trial.user_attrs.items()}
        | {f"params_{key}": value for key, value in trial.params.items()}
        | {VALUE: trial.value}
        for trial in complete
    ]
    direction: Direction = "max" if directions == ["maximize"] else "min"
    return ForeignTable(place, rows, len(trials) - len(complete), direction)


def _storage(place: str) -> optuna.storages.BaseStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "://" in place:
        return optuna.storages.RDBStorage(place)
    with Path(place).open("rb") as file:
        is_sqlite = file.read(len(SQLITE)) == SQLITE
    if is_sqlite:
        return optuna.storages.RDBStorage(f"sqlite:///{place}")
    return optuna.storages.JournalStorage(JournalFileBackend(place))


def _matching_value(key: str, value: Any, possible: Sequence[Any]) -> Any:
    """Return the value of the space that equals a value read from a table, such as 1 for "1".

    If there is none, the value itself is returned.
    """
    if not is_open(key) or is_one_of(key, value, possible):
        return value
    return next(
        (option for option in possible if option == value or str(option) == str(value)), value
    )
