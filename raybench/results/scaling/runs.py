"""The runs of a scaling study as a table: what each repeat of each cell has measured."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from raybench.core.metric import ACCURACY, Metric
from raybench.core.record import Evaluation, RunRecord
from raybench.core.scaling_study import StudyCell
from raybench.results.scaling.steady import epoch_samples, first_epoch_seconds, steady
from raybench.results.topology import accelerators_of

FAR = 1.5
"""A run whose seconds a sample, stalls included, are so many times those of its cell's median step
(or so many times less) is an outlier; so is one whose first epoch took so many times as long as is
usual in its cell."""
MISSES = ("nan", "oom")
"""Failures of the training itself: such a run has missed the target, as one that never came there.
Others say nothing of the target."""
RUN_COLUMNS = (
    *("trial", "cell", "repeat", "seed", "failure", "stop", "num_nodes", "accelerators"),
    "samples_per_s",
    *("samples_per_s_low", "samples_per_s_high", "mean_samples_per_s", "step_median_s"),
    *("step_p25_s", "step_p75_s", "step_p95_s", "longest_step_s", "num_steps", "is_warm"),
    *("first_epoch_samples_per_s", "first_epoch_train_samples_per_s", "compile_s", "train_s"),
    *(
        "wall_s",
        "input_share",
        "memory_peak_bytes",
        "bytes_exchanged_per_step",
        "gpu_utilization",
        "evenness",
        "accuracy",
    ),
    *("best_accuracy", "samples", "epoch_samples", "short_steps", "time_to_target_s"),
    *("samples_to_target", "is_slow_start", "is_outlier"),
)


def run_table(
    cells: Sequence[StudyCell],
    runs: Mapping[str, RunRecord],
    curves: Mapping[str, Sequence[Evaluation]],
    metric: Metric = ACCURACY,
) -> pd.DataFrame:
    """Return a row for each finished repeat, columns RUN_COLUMNS (or of another metric).

    | column | holds |
    |---|---|
    | stop | why it ended; missing of a failure |
    | samples_per_s, .._low, .._high | global batch over the median step that had all of it, and |
    |  | over the quartiles |
    | mean_samples_per_s | the same steps with all their stalls |
    | step_.._s | seconds of an optimizer step after the warm-up |
    | longest_step_s | of all, the first epoch's too |
    | num_steps | steps of a whole global batch that were timed one by one; 0: intervals between |
    |  | evaluations were |
    | epoch_samples | of an epoch: a step has no more, whatever the batch |
    | short_steps | steps of an epoch over what whole batches would make: its last may be short |
    | is_warm | False where the first epoch had to be counted in, the run being that short |
    | first_epoch_samples_per_s | of the first epoch, compiling included |
    | first_epoch_train_samples_per_s | without compiling |
    | input_share | part of the training after the warm-up that waited for data; of all of it in |
    |  | folders that do not tell it of each evaluation |
    | evenness | fastest worker's seconds over the slowest's: `Evaluation.evenness` |
    | memory_peak_bytes, gpu_utilization | of the worker with most; the mean |
    | bytes_exchanged_per_step | what a worker gives to the exchange of one optimizer step |
    | is_slow_start | its first epoch is FAR slower than the median of its cell's |
    | is_outlier | that, or its mean is FAR off the median of its cell, beyond what `short_steps` |
    |  | explain |

    Runs that were cut off are left out: they run again.
    """
    by_name = {cell.name: cell for cell in cells}
    rows = [
        _row(run, by_name[run.source], curves.get(name, []), metric)
        for name, run in runs.items()
        if run.role == "scaling" and run.is_answer and run.source in by_name
    ]
    table = pd.DataFrame(rows, columns=named(RUN_COLUMNS, metric)).sort_values(
        ["cell", "repeat"], kind="stable", ignore_index=True
    )
    table["is_slow_start"] = _slow_starts(table)
    table["is_outlier"] = table["is_slow_start"] | _outliers(table)
    return table


def named(columns: Sequence[str], metric: Metric) -> list[str]:
    """Return columns of a table of accuracy with the names of a metric."""
    names = {ACCURACY.name: metric.name, ACCURACY.best_column: metric.best_column}
    return [names.get(column, column) for column in columns]


def _row(
    run: RunRecord, cell: StudyCell, curve: Sequence[Evaluation], metric: Metric
) -> dict[str, Any]:
    spec, train = run.spec, run.ledger["train"]
    row: dict[str, Any] = {
        "trial": run.trial,
        "cell": cell.name,
        "repeat": (spec.seed - cell.spec.seed) % 2**32,
        "seed": spec.seed,
        "failure": run.failure,
        "stop": run.stop,
        "num_nodes": run.num_nodes,
        "accelerators": accelerators_of(run) or "",
        "compile_s": run.ledger["compile"],
        "train_s": train,
        "wall_s": run.wall_s,
        metric.best_column: run.best_value,
        "samples": run.samples,
        "time_to_target_s": run.time_to_target_s,
    }
    if not curve or run.failure is not None:
        return row
    row["epoch_samples"] = epoch_samples(curve)
    step_samples = min(spec.global_batch_size, row["epoch_samples"])
    found = steady(curve, step_samples)
    if found is None:
        return row
    seconds, samples = first_epoch_seconds(curve)
    row |= {
        "samples_per_s": step_samples / found.median_s,
        "samples_per_s_low": step_samples / found.p75_s,
        "samples_per_s_high": step_samples / found.p25_s,
        "mean_samples_per_s": step_samples / found.mean_s,
        "short_steps": _short_steps(row["epoch_samples"], step_samples) if found.num_steps else 1,
        "step_median_s": found.median_s,
        "step_p25_s": found.p25_s,
        "step_p75_s": found.p75_s,
        "step_p95_s": found.p95_s,
        "longest_step_s": found.longest_s,
        "num_steps": found.num_steps,
        "is_warm": found.is_warm,
        "first_epoch_samples_per_s": samples / (seconds + run.ledger["compile"]),
        "first_epoch_train_samples_per_s": samples / seconds,
        "input_share": found.input_share,
        "memory_peak_bytes": max(_told(p.memory_peak_bytes for p in curve), default=None),
        "bytes_exchanged_per_step": max(
            _told(p.bytes_exchanged_per_step for p in curve), default=None
        ),
        "gpu_utilization": _mean(_told(p.gpu_utilization for p in curve)),
        "evenness": _mean(_told(p.evenness for p in curve)),
        metric.name: curve[-1].value,
    }
    if math.isnan(found.input_share) and train > 0:
        row["input_share"] = run.ledger["input"] / train
    if run.time_to_target_s is not None:
        row["samples_to_target"] = next(
            (p.samples for p in curve if p.train_s >= run.time_to_target_s - 1e-9), None
        )
    return row


def _short_steps(epoch: int, step: int) -> float:
    return math.ceil(epoch / step) * step / epoch


def _told(values: Iterable[float | None]) -> list[float]:
    """Return what evaluations say of something that not every run records."""
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _outliers(table: pd.DataFrame) -> "pd.Series[bool]":
    """Say which runs are far off: compared by the mean, so that a stall inside a run counts."""
    if table.empty:
        return pd.Series(False, index=table.index)
    slower = _usual(table, "samples_per_s") / table["mean_samples_per_s"].astype(float)
    # A short step may take as long as a whole one, and that is no stall.
    return (slower > FAR * table["short_steps"].astype(float)) | (slower < 1 / FAR)


def _slow_starts(table: pd.DataFrame) -> "pd.Series[bool]":
    """Say whose first epoch was far slower than usual, which the steady state knows nothing of."""
    if table.empty:
        return pd.Series(False, index=table.index)
    rate = "first_epoch_train_samples_per_s"
    return _usual(table, rate) / table[rate].astype(float) > FAR


def _usual(table: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return the median of each run's cell."""
    same = [table[key] for key in ("cell", "num_nodes", "accelerators")]
    return table[column].astype(float).groupby(same).transform("median")
