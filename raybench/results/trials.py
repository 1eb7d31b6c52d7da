"""Tables of a study (runs, learning curves, predictions): their columns and types.

Types do not depend on the content. Strings are `object` (None if missing), counts are `int64`, or
`Int64` if they may be missing, measured numbers are `float64` (NaN if missing), Booleans are
pandas' `boolean`, points in time are UTC timestamps. The column of a searched key has the type of
its values if all values are numbers or all are Booleans; mixed types, lists and mappings become
strings (`spec.text.short`).

Columns of metric values are named after the metric: `best_accuracy`, `test_accuracy` and (in the
table of curves) `accuracy`, or `best_rmse`, `test_rmse` and `rmse`. The constants below are for
accuracy; `for_metric` and `metric_columns` rename them for another metric.

Runs are compared only with runs that have a comparable layout of workers (`TrialsLayout`). Among
runs with the same number of workers and the same resources per worker, only those on the fewest
hosts count. Runs with `placement_strategy: spread` count only if the study sets this key. Runs on
different GPU models are ranked separately. The key `strategy` is not part of the layout, because
like the framework it only determines how the workers are used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.objective import BUDGET
from raybench.spec.run import BASE_KEYS, describe, has_value, is_key, is_open, label_keys, value_of
from raybench.spec.text import counted, identity, short
from raybench.stats.clock import CPU_NAMES, OTHER, PHASES
from raybench.stats.record import CURVE_KEYS, Evaluation, Prediction, RunRecord
from raybench.stats.standing import interpolated_time

STRATEGY = "placement_strategy"
NOT_EXCHANGED = "without gradient exchange (only a measurement)"
NOT_ASKED = "spread over hosts, which the study did not ask for"
"""Reasons why a run is not ranked, as in "Not ranked, REASON: 0001."."""


class TrialsLayout(NamedTuple):
    """Layout of the workers of a run, as far as it matters for comparisons."""

    num_workers: int
    cpus_per_worker: int
    gpus_per_worker: float
    accelerators: tuple[str, ...]
    is_spread: bool
    num_nodes: int
    """Number of hosts; 0 if unknown."""
    exchanges: bool
    """Whether the workers exchanged gradients."""

    @property
    def size(self) -> "TrialsLayout":
        """Layout without the number of hosts. Runs with the same number of workers and the same
        resources per worker have the same size."""
        return self._replace(num_nodes=0)


def layout_of(record: RunRecord) -> TrialsLayout:
    """Return a run's worker layout."""
    spec = record.spec
    return TrialsLayout(
        spec.num_workers,
        spec.cpus_per_worker,
        spec.gpus_per_worker,
        tuple(record.accelerators),
        spec.placement_strategy == "spread",
        record.num_nodes,
        spec.exchange_gradients,
    )


def accelerators_of(record: RunRecord) -> str | None:
    """Return the GPU models of a run as text, separated by commas; None without GPUs."""
    return ", ".join(record.accelerators) or None


class TypicalNodes:
    """Determines the typical number of hosts for each size of run (`TrialsLayout.size`).

    Only runs on the typical number of hosts are compared. It is the smallest number among the runs
    of a size, or the largest if their workers are spread over hosts. A run whose number of hosts is
    unknown counts as typical.
    """

    def __init__(self, *, may_spread: bool) -> None:
        """Start without runs.

        Args:
            may_spread: Whether runs with `placement_strategy: spread` count.
        """
        self._may_spread = may_spread
        self._num_nodes: dict[TrialsLayout, int] = {}

    def add(self, layout: TrialsLayout) -> bool:
        """Add the layout of a run; return whether it has changed the typical number of hosts for
        runs of the same size."""
        if not layout.num_nodes or not layout.exchanges:
            return False
        previous = self._num_nodes.get(layout.size)
        best = (max if layout.is_spread else min)(previous or layout.num_nodes, layout.num_nodes)
        self._num_nodes[layout.size] = best
        return best != previous

    def objection(self, layout: TrialsLayout) -> str | None:
        """Return the reason why runs with a layout are not ranked; None if they are ranked."""
        if not layout.exchanges:
            return NOT_EXCHANGED
        if layout.is_spread and not self._may_spread:
            return NOT_ASKED
        typical = self._num_nodes.get(layout.size, layout.num_nodes)
        if layout.num_nodes in (0, typical):
            return None
        hosts = counted(layout.num_nodes, "host")
        return f"on {hosts}, while runs of the same size are on {typical}"


def typical_of(
    runs: Iterable[RunRecord], space: Mapping[str, Any], fixed: Mapping[str, Any]
) -> TypicalNodes:
    """Return the typical number of hosts for each size of run in a study.

    Failed runs are ignored, since they may have had no workers.

    Args:
        runs: Records of the runs.
        space: Search space of the study. Runs whose workers are spread over hosts are ranked only
            if `space` or `fixed` has the key `placement_strategy`.
        fixed: Fixed keys of the study.
    """
    typical = TypicalNodes(may_spread=STRATEGY in space or STRATEGY in fixed)
    for record in runs:
        if record.failure is None:
            typical.add(layout_of(record))
    return typical


TEXT, COUNT, SOME_COUNT, NUMBER = "object", "int64", "Int64", "float64"
TRUTH, TIME = "boolean", "datetime64[us, UTC]"
TRIAL_TYPES = {
    "trial": TEXT,
    "phase": TEXT,
    "state": TEXT,
    "failure": TEXT,
    "framework": TEXT,
    "workload": TEXT,
    "num_parameters": SOME_COUNT,
    "num_workers": COUNT,
    "batch_size_per_worker": COUNT,
    "global_batch_size": COUNT,
    "optimizer": TEXT,
    "learning_rate": NUMBER,
    "seed": SOME_COUNT,
    "time_to_target_s": NUMBER,
    "best_accuracy": NUMBER,
    **{f"{name}_s": NUMBER for name in ("queue", "start", "setup", "compile", "train", "input")},
    **{f"{name}_s": NUMBER for name in ("eval", "checkpoint", "report", "wall")},
    "samples_per_s": NUMBER,
    "worker_seconds": NUMBER,
}
"""Types of the stable columns of `trials`, keyed by name; the columns EXTRA_TYPES and further
searched keys follow.

`worker_seconds` is `num_workers` x `train_s` for the whole run; `worker_seconds_to_target` counts
only the seconds until the target was reached.
"""
EXTRA_TYPES = {
    "score": NUMBER,
    "samples": COUNT,
    "stop": TEXT,
    "message": TEXT,
    "test_accuracy": NUMBER,
    "concurrent": SOME_COUNT,
    "config": TEXT,
    "batch_statistics": TRUTH,
    "worker_seconds_to_target": NUMBER,
    "other_s": NUMBER,
    "lost_s": NUMBER,
    "restarts": SOME_COUNT,
    "restart_reason": TEXT,
    "finished_at": TIME,
    "role": TEXT,
    "source": TEXT,
    "num_nodes": SOME_COUNT,
    "accelerators": TEXT,
    "waited_for": TEXT,
    "unranked": TEXT,
    "crossed_s": NUMBER,
    "is_interpolated": TRUTH,
    "train_cpu_s": NUMBER,
    "disturbed_s": NUMBER,
    "is_disturbed": TRUTH,
    "best_of": TEXT,
    "code": TEXT,
}
"""Types of further columns of `trials`, keyed by name.

| column | content |
|---|---|
| source | trial whose configuration the run repeats |
| num_nodes, accelerators | number of hosts, and GPU models, of the workers |
| waited_for | resources that were missing while the run was queued |
| unranked | reason why the run is not compared with other runs of its size |
| crossed_s | time to target that is compared and reported: as recorded, or interpolated between \
two evaluations that are far apart (`is_interpolated`; see `stats.standing`) |
| train_cpu_s, disturbed_s | CPU seconds of training, and training seconds that other processes \
took, each the maximum over ranks |
| is_disturbed | see `RunRecord.is_disturbed` |
| best_of | `curve` if `best_accuracy` is the best evaluation, `budget` if it is the last one \
within the budget |
| code | version of the user's code; left out of `trials.csv` if it is the same for all runs |
"""
TRIAL_COLUMNS, EXTRA_COLUMNS = tuple(TRIAL_TYPES), tuple(EXTRA_TYPES)
CURVE_TYPES = {
    "trial": TEXT,
    **{ACCURACY.name if key == "value" else key: NUMBER for key in CURVE_KEYS if key != "index"},
    "samples": COUNT,
}
"""Types of the stable columns of `curves`, keyed by name."""
PREDICTION_TYPES = {
    "trial": TEXT,
    "framework": TEXT,
    "num_workers": COUNT,
    "batch_size_per_worker": COUNT,
    "time_to_target_s": NUMBER,
    "accelerator_type": TEXT,
    "compile": TEXT,
    "accumulate": NUMBER,
    "prefetch": NUMBER,
}
PREDICTION_COLUMNS = tuple(PREDICTION_TYPES)
SPEC_COLUMNS = ["framework", "workload", "num_workers", "batch_size_per_worker"]
SPEC_COLUMNS += ["global_batch_size", "optimizer", "learning_rate", "seed"]
RUN_COLUMNS = [field.name for field in fields(RunRecord) if field.name in TRIAL_TYPES | EXTRA_TYPES]


def for_metric(types: Mapping[str, str], metric: Metric) -> dict[str, str]:
    """Return column types, keyed by name, with the accuracy columns renamed for a metric."""
    return dict(zip(metric_columns(types, metric), types.values(), strict=True))


def metric_columns(columns: Iterable[str], metric: Metric) -> list[str]:
    """Return column names, with the accuracy columns renamed for a metric."""
    names = {
        ACCURACY.name: metric.name,
        ACCURACY.best_column: metric.best_column,
        ACCURACY.test_column: metric.test_column,
    }
    return [names.get(column, column) for column in columns]


def searched_columns(trials: pd.DataFrame) -> list[str]:
    """Return the names of the columns for searched keys that follow TRIAL_COLUMNS and
    EXTRA_COLUMNS."""
    fixed = (*TRIAL_COLUMNS, *EXTRA_COLUMNS)
    return [str(key) for key in trials.columns if is_key(str(key)) and key not in fixed]


def configuration_of(trials: pd.DataFrame) -> dict[str, str]:
    """Return a string for each run in `trials` that identifies its configuration.

    Strings are keyed by the name of the run. Runs that differ only in the seed have the same one.
    """
    keys = [*BASE_KEYS, *searched_columns(trials)]
    rows = trials[keys].itertuples(index=False, name=None)
    return {name: repr(row) for name, row in zip(trials["trial"], rows, strict=True)}


def interpolated_score(trials: pd.DataFrame) -> "pd.Series[float]":
    """Return the score of each row of `trials`, corrected to the interpolated time (`crossed_s`).

    For a run that reached the target, the recorded score is the log of the recorded time. To
    correct it, the log of the ratio of interpolated to recorded time is added. Other scores are
    unchanged.
    """
    correction = np.log((trials["crossed_s"] / trials["time_to_target_s"]).fillna(1.0))
    return trials["score"] + correction


def trial_table(
    runs: Iterable[RunRecord],
    space: Mapping[str, Any],
    fixed: Mapping[str, Any] = MappingProxyType({}),
    metric: Metric = ACCURACY,
    *,
    curves: Mapping[str, Sequence[Evaluation]] = MappingProxyType({}),
    baseline_value: float | None = None,
) -> pd.DataFrame:
    """Return the table of runs, one row per run, with the columns of `Study.trials`.

    Args:
        runs: Records of the runs.
        space: Search space of the study; each of its keys is a column.
        fixed: Fixed keys of the study.
        metric: Metric of the study.
        curves: Evaluations of each run, keyed by its name; the time to target is interpolated
            between them.
        baseline_value: Metric value before training, which is also used for the interpolation.
    """
    runs = list(runs)
    types = for_metric(TRIAL_TYPES | EXTRA_TYPES, metric)
    searched = [key for key in space if is_key(key) and key not in types]
    typical, label = typical_of(runs, space, fixed), label_keys(space)
    rows = []
    for run in runs:
        row = _trial_row(run, searched, label, metric)
        row["unranked"] = typical.objection(layout_of(run))
        points = curves.get(run.trial, ())
        crossing = interpolated_time(run, points, baseline_value=baseline_value)
        row["crossed_s"] = None if crossing is None else crossing.seconds
        row["is_interpolated"] = None if crossing is None else crossing.is_interpolated
        rows.append(row)
    table = pd.DataFrame(rows, columns=[*types, *searched], dtype=object)
    table["finished_at"] = pd.to_datetime(
        table["finished_at"], utc=True, format="ISO8601", errors="coerce"
    )
    table = table.astype(types)
    for key in searched:
        are_known = [has_value(run.spec, key) for run in runs]
        table[key] = _values_column(table[key].tolist(), are_known, is_typed=not is_open(key))
    return table


def _values_column(values: list[Any], are_known: list[bool], *, is_typed: bool) -> pd.Series:
    """Return the column of a searched key.

    Args:
        values: Value of the key in each run; None if the value is null or the run lacks the key.
        are_known: Whether each run has the key.
        is_typed: Whether None always means that the value is missing; otherwise, it may also be the
            value null of a setting such as `model.NAME`.
    """
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if kinds == {bool}:
        return pd.Series(values, dtype=TRUTH if None in values else "bool")
    if kinds == {int}:
        return pd.Series(values, dtype=SOME_COUNT if None in values else COUNT)
    if kinds and kinds <= {int, float} and len({*present}) == len({*map(identity, present)}):
        return pd.Series(values, dtype=NUMBER)
    texts = [
        None if not has_key or (is_typed and value is None) else short(value)
        for value, has_key in zip(values, are_known, strict=True)
    ]
    return pd.Series(texts, dtype=TEXT)


def curve_table(curves: Mapping[str, Sequence[Evaluation]], metric: Metric) -> pd.DataFrame:
    """Return the learning curves as a table with the columns CURVE_TYPES, one row per
    evaluation."""
    evaluations = [point for points in curves.values() for point in points]
    types = for_metric(CURVE_TYPES, metric)
    names = np.array(list(curves), dtype=object)
    columns = {"trial": np.repeat(names, [len(points) for points in curves.values()])}
    for key in CURVE_KEYS:
        if key != "index":
            name = metric.name if key == "value" else key
            columns[name] = np.fromiter(
                map(attrgetter(key), evaluations), types[name], len(evaluations)
            )
    return pd.DataFrame(columns).astype(types)


def prediction_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Return predictions as a table with the columns PREDICTION_COLUMNS, one row per
    prediction."""
    rows = [astuple(prediction) for prediction in predictions]
    return pd.DataFrame(rows, columns=list(PREDICTION_COLUMNS), dtype=object).astype(
        PREDICTION_TYPES
    )


def _trial_row(
    run: RunRecord, searched: Sequence[str], label: tuple[str, ...], metric: Metric
) -> dict[str, Any]:
    spec, train = run.spec, run.ledger["train"]
    reached = run.time_to_target_s
    row = {key: getattr(run, key) for key in RUN_COLUMNS} | {"phase": run.phase}
    row |= {metric.best_column: run.best_value, metric.test_column: run.test_value}
    for key in (*SPEC_COLUMNS, *searched):
        row[key] = value_of(spec, key)
    row |= {f"{name}_s": run.ledger[name] for name in (*PHASES, "input")}
    row |= {f"{name}_s": run.ledger.get(name) for name in CPU_NAMES}
    row["is_disturbed"] = run.is_disturbed if CPU_NAMES[-1] in run.ledger else None
    row[f"{OTHER}_s"] = run.ledger[OTHER]
    row["samples_per_s"] = run.samples / train if train > 0 else None
    row["worker_seconds"] = spec.num_workers * train
    row["worker_seconds_to_target"] = None if reached is None else spec.num_workers * reached
    row["config"] = describe(spec, label)
    row["best_of"] = "budget" if spec.objective.kind == BUDGET else "curve"
    row["finished_at"] = run.finished
    row["num_nodes"] = run.num_nodes or None
    row["accelerators"] = accelerators_of(run)
    return row
