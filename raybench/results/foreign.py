"""Runs that another tool recorded, and the study to which `raybench import` converts them.

The code, the hardware and the clock of these runs are unknown. The key `imported` of `study.yaml`
names their source. Seconds of an imported study are shown, but they do not decide a winner
(`results.verdict`) and are not compared with seconds that raybench has measured.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.results.store import IMPORTED, STUDY_FILE, Store, with_session
from raybench.spec.documents import parse_yaml, read_mapping, validate
from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.metric import METRICS, OTHER_METRIC_NAMES, Direction, Metric
from raybench.spec.objective import BUDGET, TIME, StopReason, naming
from raybench.spec.optimizer import OPTIMIZERS
from raybench.spec.own_loop import OWN_DATA
from raybench.spec.run import OPEN, RunSpec, is_key, nested
from raybench.spec.space import NOT_SEARCHED
from raybench.spec.text import counted, identity
from raybench.stats.record import Evaluation, Role, RunOutcome

VALUE, SECONDS_TO_TARGET, SECONDS, SAMPLES = "value", "time_to_target_s", "seconds", "samples"
"""Meanings of columns that are results: the metric (called `value`, as in Optuna's tables), seconds
to the target, training seconds, and training samples."""
LEFT_OUT = "none"
"""Meaning by which the user excludes a column."""
OTHER_KEYS = {"lr": "learning_rate", "batch_size": "batch_size_per_worker"}
"""Run-spec keys of raybench, keyed by their names in other tools."""
OTHER_NAMES = OTHER_KEYS | dict.fromkeys(
    ("train_s", "duration", "runtime", "_runtime", "train_runtime", "time_total_s"), SECONDS
)
"""Meanings of columns, keyed by their names in other tools."""
BOOKKEEPING = ("", "trial", "number", "run", "run_id", "id", "name", "state", "status", "seed")
"""Columns that are neither settings nor results."""
SETTING = re.compile(r"^(params[._]|config[/.])")
"""Prefix of columns for settings in the tables of MLflow, Optuna and Ray Tune. In such a table,
other columns are not settings."""
MEASURE = re.compile(r"^(metrics\.|user_attrs_)")
"""Prefix of columns for results in the tables of MLflow and Optuna."""
VALIDATION = re.compile(r"^(val|valid|validation|eval)[_/]")
"""Prefix of metrics on the validation split."""
NOT_ENDED = ("failed", "fail", "pruned", "killed", "running")
"""States of runs that did not end normally and are left out."""
MOST_SAMPLES = 2**53
"""Maximum number of training samples, the largest integer that a float can represent exactly."""
FINISHED = (3, "FINISHED")
"""Values of the status of a finished run in MLflow."""


@dataclass(frozen=True)
class ForeignTable:
    """Table of runs that another tool recorded, one row per run."""

    place: str
    """Path or URL given by the user."""
    rows: Sequence[Mapping[str, Any]]
    """One mapping from column to value per run that ended normally; unknown values are left out."""
    num_failed: int = 0
    """Number of runs that did not end normally."""
    direction: Direction | None = None
    """Direction of an Optuna study, whose metric is in column `value`; None for other tools."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns that have a value in at least one row."""
        return list(dict.fromkeys(column for row in self.rows for column in row))


def read_csv(path: Path) -> ForeignTable:
    """Read a CSV file with one row for each run; its delimiter is a comma, a semicolon or a tab.

    Raises:
        UserError: The file is not valid CSV.
    """
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        sample = file.read(4096)
        file.seek(0)
        delimiter = max(",;\t", key=sample.partition("\n")[0].count)
        try:
            raw_rows = list(csv.DictReader(file, delimiter=delimiter))
        except csv.Error as error:
            message = f"{path}: is not valid CSV ({error})."
            raise UserError(message, ErrorCode.INVALID_FILE) from None
    rows = [
        {name: cell_value(text) for name, text in row.items() if text and isinstance(text, str)}
        for row in raw_rows
    ]
    states = [str(row.get("state", row.get("status"))).lower() for row in rows]
    ended_rows = [row for row, state in zip(rows, states, strict=True) if state not in NOT_ENDED]
    return ForeignTable(str(path), ended_rows, len(rows) - len(ended_rows))


def cell_value(text: str) -> Any:
    """Return the value of a table cell, which is parsed as YAML; `None` is also read as null.

    Text that is not valid YAML is returned unchanged. An apostrophe before `=` is removed.
    """
    if text == "None":
        return None
    try:
        return parse_yaml(text.strip().removeprefix("'") if text[:2] == "'=" else text.strip(), "")
    except UserError:
        return text


def read_mlflow(folder: Path) -> ForeignTable:
    """Read the runs of an MLflow experiment: parameters, duration, and the last value of each
    metric.

    Args:
        folder: The folder `mlruns` that MLflow writes, or the folder of one experiment in it.

    Raises:
        UserError: The folder contains no runs, or runs of several experiments.
    """
    experiments: dict[Path, list[tuple[Path, dict[str, Any]]]] = {}
    for file in sorted([*folder.glob("*/meta.yaml"), *folder.glob("*/*/meta.yaml")]):
        meta = read_mapping(file)
        if "run_id" in meta and meta.get("lifecycle_stage") != "deleted":
            experiments.setdefault(file.parent.parent, []).append((file.parent, meta))
    if len(experiments) != 1:
        problem = "contains no runs of MLflow; name the folder mlruns"
        if experiments:
            problem = f"contains several experiments; name one: {', '.join(map(str, experiments))}"
        raise UserError(f"{folder}: {problem}.", ErrorCode.NOT_FOUND)
    (runs,) = experiments.values()
    rows = []
    for run, meta in runs:
        if meta.get("status") in FINISHED:
            start, end = number_of(meta.get("start_time")), number_of(meta.get("end_time"))
            row = {} if start is None or end is None else {"duration": (end - start) / 1000}
            row |= {f"params.{name}": cell_value(text) for name, text in _texts(run / "params")}
            for name, text in _texts(run / "metrics"):  # each line: milliseconds, value, step
                row[f"metrics.{name}"] = cell_value(text.strip().rpartition("\n")[2].split()[1])
            rows.append(row)
    return ForeignTable(str(folder), rows, len(runs) - len(rows))


def _texts(folder: Path) -> list[tuple[str, str]]:
    """Return the relative path and the content of each non-empty file below a folder."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size]
    return [
        (file.relative_to(folder).as_posix(), file.read_text("utf-8", "replace")) for file in files
    ]


def match_columns(
    table: ForeignTable,
    user_meanings: Mapping[str, str],
    metric: str | None,
    direction: Direction | None,
) -> tuple[Metric, dict[str, str]]:
    """Find the metric among the columns of a table, and the meaning of each column.

    Args:
        table: The runs.
        user_meanings: Meanings of columns that the user has specified: a run-spec key, the name of
            the metric, `time_to_target_s`, `seconds`, `samples`, or `none` to leave the column out.
            The meanings of other columns are inferred from their names.
        metric: Name of the metric; by default the only known metric among the columns.
        direction: Direction of the metric, if raybench does not know the metric.

    Returns:
        The metric, and the meaning of each column: `value` (the metric), `time_to_target_s`,
        `seconds`, `samples` or a run-spec key.

    Raises:
        UserError: A column does not exist, the meaning of a column is unknown, or there is no
            metric.
    """
    for column in user_meanings:
        if column not in table.columns:
            message = f"--column {column}: {table.place} has no such column; "
            message += did_you_mean(column, table.columns)
            raise UserError(message, ErrorCode.UNKNOWN_NAME)
    names = {column: MEASURE.sub("", SETTING.sub("", column)) for column in table.columns}
    meanings = {
        column: user_meanings.get(column) or OTHER_NAMES.get(name, name)
        for column, name in names.items()
    }
    run_metric, value = _metric_of(table, meanings, metric, direction)
    columns, unmatched = {value: VALUE}, []
    is_export = any(map(SETTING.match, table.columns))
    for column, meaning in meanings.items():
        is_key_of_run = is_key(meaning) and meaning.partition(".")[0] not in _NO_SETTINGS
        is_meant = is_key_of_run or meaning in (SECONDS_TO_TARGET, SECONDS, SAMPLES)
        is_no_setting = meaning in (*BOOKKEEPING, VALUE) or _metric_name(meaning) in METRICS
        if column == value or meaning == LEFT_OUT:
            continue
        if is_meant and meaning not in columns.values():
            columns[column] = meaning
        elif SETTING.match(column) and column not in user_meanings:
            columns[column] = own_setting(meaning)
        elif column in user_meanings or not (is_export or is_no_setting):
            unmatched.append(column)
    if unmatched:
        first, setting = unmatched[0], own_setting(unmatched[0])
        raise UserError(
            f"{table.place}: unknown columns {', '.join(unmatched)}; set the meaning of each: "
            f"--column {first}={setting} for a setting of your own, --column {first}=none to leave "
            "the column out.",
            ErrorCode.UNKNOWN_KEY if first in user_meanings else ErrorCode.MISSING,
        )
    if not any(map(is_key, columns.values())):
        message = f"{table.place}: no column is a setting; name one with --column NAME=KEY."
        raise UserError(message, ErrorCode.MISSING)
    return run_metric, columns


_NO_SETTINGS = {"seed", *NOT_SEARCHED} - {*OPEN}
"""Run-spec keys that no column of a table can set."""


def own_setting(column: str) -> str:
    """Return the run-spec key, such as `model.depth`, for a column that is a setting of the user's
    own model."""
    name = re.sub(r"\W", "_", column.removeprefix("model."))
    return f"model.{'_' if name[:1].isdigit() else ''}{name}"


def _metric_name(column: str) -> str:
    """Return the name of the metric that a column probably contains, such as `accuracy` for
    `val_acc`."""
    name = VALIDATION.sub("", column.lower()).removeprefix("best_")
    return "accuracy" if name == "acc" else OTHER_METRIC_NAMES.get(name, name)


def _metric_of(
    table: ForeignTable,
    meanings: Mapping[str, str],
    metric: str | None,
    direction: Direction | None,
) -> tuple[Metric, str]:
    """Return the metric and the name of its column.

    If several columns contain the metric, the column of the validation split is preferred. For the
    arguments see `match_columns`; `meanings` has a meaning for every column.
    """
    place, wanted_direction = table.place, direction or table.direction
    metric_columns: dict[str, str] = {}
    for column, meaning in meanings.items():
        name = metric if meaning == metric else _metric_name(meaning)
        is_wanted = name in METRICS if metric is None else name == metric
        is_first = name not in metric_columns or VALIDATION.match(meaning)
        if name is not None and is_wanted and is_first and not SETTING.match(column):
            metric_columns[name] = column
    if not metric_columns and metric is not None and table.direction is not None:
        metric_columns = {metric: VALUE}
    if len(metric_columns) != 1:
        raise UserError(
            f"{place}: the column of the metric is unknown; name it with --metric; there are "
            f"{', '.join(metric_columns or meanings) or 'none'}.",
            ErrorCode.MISSING if metric is None else ErrorCode.UNKNOWN_NAME,
        )
    ((name, column),) = metric_columns.items()
    known_metric = METRICS.get(OTHER_METRIC_NAMES.get(name, name))
    if known_metric is None and wanted_direction is None:
        message = f"{place}: the direction of metric {name} is unknown; add --direction max or min."
        raise UserError(message, ErrorCode.MISSING)
    if known_metric is not None and wanted_direction not in (None, known_metric.direction):
        message = (
            f"{place}: the best {name} is not its {wanted_direction}imum; name the metric of these "
        )
        raise UserError(f"{message}values with --metric.", ErrorCode.CONFLICT)
    return known_metric or Metric(name, wanted_direction or "max"), column


def write_imported(
    folder: Path,
    table: ForeignTable,
    metric: Metric,
    columns: Mapping[str, str],
    target: float | None,
) -> None:
    """Write `study.yaml` and the records of imported runs.

    Args:
        folder: The new results folder.
        table: The runs.
        metric: Metric of the runs.
        columns: Meaning of each column, as returned by `match_columns`.
        target: Target to which the column `time_to_target_s` refers; None if runs are compared by
            the metric.

    Raises:
        UserError: Only one of the target and the column `time_to_target_s` was given, or a value
            is invalid.
    """
    place, is_timed = table.place, SECONDS_TO_TARGET in columns.values()
    if (target is not None) != is_timed:
        raise UserError(
            f"{place}: --target requires a column {SECONDS_TO_TARGET} (the seconds to the target), "
            "and the column requires --target; set both (--column NAME=KEY sets the meaning of a "
            "column), or leave both out.",
            ErrorCode.MISSING,
        )
    runs = [
        {columns[column]: row[column] for column in row if column in columns} for row in table.rows
    ]
    runs = [run for run in runs if number_of(run.get(VALUE)) is not None]
    values = [float(run[VALUE]) for run in runs]
    if not runs or (metric.is_share and not 0 <= min(values) <= max(values) <= 100):
        message = (
            f"{place}: the column of the metric contains no valid {metric.words}; name another "
            "metric with --metric."
        )
        raise UserError(message, ErrorCode.INVALID_VALUE)
    percent = 100 if metric.is_share and max(values) > 1 else 1
    times = [positive_number(run.get(key)) for run in runs for key in (SECONDS, SECONDS_TO_TARGET)]
    objective = naming(metric) | {"kind": TIME if is_timed else BUDGET, "target": target}
    if any(times):
        objective["max_train_seconds"] = max(time for time in times if time)
    study: dict[str, Any] = {"workload": IMPORTED, "dataset": OWN_DATA, "objective": objective}
    space: dict[str, dict[str, Any]] = {}
    lines = []
    for number, run in enumerate(runs):
        settings = {key: value for key, value in run.items() if is_key(key)}
        if (optimizer := str(settings.get("optimizer")).lower()) in OPTIMIZERS:  # Adam, SGD
            settings["optimizer"] = optimizer
        for key, value in settings.items():
            space.setdefault(key, {})[identity(value)] = value
        spec = _spec(nested(settings) | study, f"{place}, run {number + 1}")
        lines.append(_line(f"{number:04d}", spec, run, values[number] / percent))
    notes = [
        f"Imported from {place}: the code, the hardware and the clock of these runs are unknown, "
        "so their seconds are shown but not compared with seconds that raybench has measured. In "
        "the tables, settings that were not imported have their defaults."
    ]
    if missing := table.num_failed + len(table.rows) - len(runs):
        notes.append(f"Left out: {counted(missing, 'run')} that failed or had no {metric.words}.")
    study["space"] = {key: list(distinct.values()) for key, distinct in space.items()}
    source = {"from": place, "columns": dict(columns)}
    with Store(folder) as store:
        content = {"study": study, IMPORTED: source, "notes": notes}
        store.write_yaml(STUDY_FILE, with_session({}) | content)
        for line in lines:
            store.append(line)


def _spec(content: dict[str, Any], source: str) -> RunSpec:
    try:
        return validate(RunSpec, content, source)
    except UserError as error:
        advice = "for a setting of your own, use --column NAME=model.NAME."
        raise UserError(f"{str(error).removesuffix('.')}; {advice}", error.code) from None


def _line(name: str, spec: RunSpec, run: Mapping[str, Any], value: float) -> dict[str, Any]:
    """Return the line of `records.jsonl` for a run of another tool; unknown fields are NaN or
    None."""
    reached_s = positive_number(run.get(SECONDS_TO_TARGET))
    seconds = positive_number(run.get(SECONDS)) or reached_s or 0.0
    evaluation = Evaluation(
        index=0,
        epoch=math.nan,
        samples=int(min(positive_number(run.get(SAMPLES)) or 0, MOST_SAMPLES)),
        train_s=seconds,
        train_loss=math.nan,
        value=value,
        learning_rate=math.nan,
        samples_per_s=math.nan,
        best_value=value,
        time_to_target_s=reached_s,
        stop=StopReason.EPOCHS if reached_s is None else StopReason.TARGET,
    )
    outcome = RunOutcome(evaluation=evaluation, ledger={"train": seconds}, wall_s=seconds)
    return outcome.record(
        name, spec, role=Role.TRIAL, source=None, stopped_by=StopReason.EPOCHS
    ).line()


def number_of(value: Any) -> float | None:
    """Return the value of a table cell as a float if it is a finite number, otherwise None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def positive_number(value: Any) -> float | None:
    """Return the value of a table cell as a float if it is a number above 0, otherwise None.

    Some tools write 0 or a negative number as the seconds to a target that a run did not reach.
    """
    number = number_of(value)
    return number if number is not None and number > 0 else None
