"""Table of the runs of a scaling study: the first epoch and the steady state of each repeat."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.trials import accelerators_of, named
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.scaling_study import StudyCell
from raybench.stats.record import Evaluation, RunRecord, StepTimes

SHARES = (0.25, 0.5, 0.75, 0.95)
GRID = np.arange(1, 401) / 400
"""Shares of an interval's steps, SHARES among them."""
WHOLE_EPOCH = 1 - 1e-9
"""Epochs from which on the first one is complete, up to rounding."""


def first_epoch_seconds(curve: Sequence[Evaluation]) -> tuple[float, int]:
    """Return training seconds and samples up to the first evaluation after the first epoch.

    The whole run if it ended before.
    """
    ends = [point for point in curve if point.epoch >= WHOLE_EPOCH] or list(curve[-1:])
    return (ends[0].train_s, ends[0].samples) if ends else (math.nan, 0)


def steady(curve: Sequence[Evaluation], step_samples: int) -> dict[str, Any]:
    """Return the steady state of a run, which follows its first epoch.

    A run of one epoch counts from its first evaluation, a run with one evaluation as a whole.

    Args:
        curve: Evaluations of the run.
        step_samples: Samples of a step that is not cut short by the end of an epoch. If no such
            step was timed, its time follows from the samples/s between evaluations.

    Returns:
        Columns of `run_table`, and mean_step_s, all seconds over all steps: a stall shows in that
        and in longest_step_s, not in the median. {} without an evaluation. input_share is NaN if
        waiting was not recorded.
    """
    if not curve:
        return {}
    ends = [index for index, point in enumerate(curve[:-1]) if point.epoch >= WHOLE_EPOCH]
    first = ends[0] + 1 if ends else min(1, len(curve) - 1)
    points, (samples, seconds, waited) = curve[first:], _spent(curve[-1])
    if first:
        before = _spent(curve[first - 1])
        samples, seconds, waited = samples - before[0], seconds - before[1], waited - before[2]
    timed = [point.steps for point in points if point.steps is not None]
    if timed:
        quartiles = pooled(timed)
        longest = max(point.steps.max_s for point in curve if point.steps is not None)
    else:
        each = [step_samples / point.samples_per_s for point in points if point.samples_per_s > 0]
        if not each:
            return {}
        quartiles = np.percentile(each, [100 * share for share in SHARES]).tolist()
        longest = max(step_samples / one.samples_per_s for one in curve if one.samples_per_s > 0)
    names = ("step_p25_s", "step_median_s", "step_p75_s", "step_p95_s")
    return dict(zip(names, quartiles, strict=True)) | {
        "num_steps": sum(one.num for one in timed),
        "longest_step_s": longest,
        "mean_step_s": seconds / samples * step_samples,
        "input_share": waited / seconds if seconds > 0 else math.nan,
        "is_warm": bool(ends),
    }


def _spent(point: Evaluation) -> tuple[int, float, float]:
    """Return samples, training seconds and seconds of waiting for data up to an evaluation."""
    return point.samples, point.train_s, math.nan if point.input_s is None else point.input_s


def pooled(intervals: Sequence[StepTimes]) -> list[float]:
    """Return the quantiles SHARES of the steps of several intervals together.

    The steps of an interval are interpolated linearly between its quantiles, and clipped beyond the
    outer ones.
    """
    told = [(one.p25_s, one.median_s, one.p75_s, one.p95_s) for one in intervals]
    seconds = np.concatenate([np.interp(GRID, SHARES, quantiles) for quantiles in told])
    order = np.argsort(seconds, kind="stable")
    steps = np.repeat([one.num / len(GRID) for one in intervals], len(GRID))[order]
    reached = np.cumsum(steps) / steps.sum() + 1e-9  # rounding
    return [float(seconds[order[int(np.searchsorted(reached, share))]]) for share in SHARES]


FAR = 1.5
"""A run is an outlier if its seconds per sample, stalls included, differ by this factor from the
median step of its cell, or if its first epoch is slower by this factor than the median."""
FIRST = "first_epoch_train_samples_per_s"
MISSES = ("nan", "oom")
"""Failures that count as misses of the target; others say nothing about it."""
RUN_COLUMNS = (
    *("trial", "cell", "repeat", "seed", "failure", "stop", "num_nodes", "accelerators"),
    "samples_per_s",
    *("samples_per_s_low", "samples_per_s_high", "mean_samples_per_s", "step_median_s"),
    *("step_p25_s", "step_p75_s", "step_p95_s", "longest_step_s", "num_steps", "is_warm"),
    *("first_epoch_samples_per_s", "first_epoch_train_samples_per_s", "compile_s", "train_s"),
    *("wall_s", "input_share", "memory_peak_bytes", "bytes_exchanged_per_step"),
    *("gpu_utilization", "evenness", "accuracy", "best_accuracy", "samples"),
    *("epoch_samples", "short_steps", "time_to_target_s"),
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
    | stop | stop reason; missing for a failure |
    | samples_per_s, .._low, .._high | global batch over the median step of a whole batch, and |
    |  | over the quartiles |
    | mean_samples_per_s | the same with all stalls |
    | step_.._s | seconds of an optimizer step after the warm-up |
    | longest_step_s | of all steps, the first epoch included |
    | num_steps | timed steps of a whole global batch; 0 if only evaluations were timed |
    | epoch_samples | samples of an epoch, and the most of a step |
    | short_steps | steps of an epoch over its whole batches: the last one may be short |
    | is_warm | False if the run is so short that its first epoch is included |
    | first_epoch_samples_per_s | first epoch, compiling included |
    | first_epoch_train_samples_per_s | first epoch without compiling |
    | input_share | share of the training after the warm-up spent waiting for data; of the whole |
    |  | training if evaluations do not record it |
    | evenness | `Evaluation.evenness` |
    | memory_peak_bytes, gpu_utilization | maximum over workers; mean |
    | bytes_exchanged_per_step | contribution of a worker to the exchange of one optimizer step |
    | is_slow_start | whether its first epoch is FAR slower than the median of its cell |
    | is_outlier | that, or its mean is FAR from the median of its cell, beyond `short_steps` |

    Only finished runs are included (`RunRecord.counts_for("measurement")`).
    """
    by_name = {cell.name: cell for cell in cells}
    rows = [
        _row(run, by_name[run.source], curves.get(name, []), metric)
        for name, run in runs.items()
        if run.role == "scaling" and run.counts_for("measurement") and run.source in by_name
    ]
    table = pd.DataFrame(rows, columns=named(RUN_COLUMNS, metric)).sort_values(
        ["cell", "repeat"], kind="stable", ignore_index=True
    )
    own = table.astype(dict.fromkeys(("mean_samples_per_s", "short_steps", FIRST), float))
    # The steady state does not include the first epoch.
    table["is_slow_start"] = _usual(own, FIRST) / own[FIRST] > FAR
    # The mean includes stalls; a short step that takes as long as a whole one is not a stall.
    slower = _usual(own, "samples_per_s") / own["mean_samples_per_s"]
    is_far = (slower > FAR * own["short_steps"]) | (slower < 1 / FAR)
    table["is_outlier"] = table["is_slow_start"] | is_far
    return table


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
    row["epoch_samples"] = epoch = round(curve[-1].samples / curve[-1].epoch)
    step_samples = min(spec.global_batch_size, epoch)
    found = steady(curve, step_samples)
    if not found:
        return row
    whole_steps = math.ceil(epoch / step_samples) * step_samples
    seconds, samples = first_epoch_seconds(curve)
    row |= found | {
        "samples_per_s": step_samples / found["step_median_s"],
        "samples_per_s_low": step_samples / found["step_p75_s"],
        "samples_per_s_high": step_samples / found["step_p25_s"],
        "mean_samples_per_s": step_samples / found["mean_step_s"],
        "short_steps": whole_steps / epoch if found["num_steps"] else 1,
        "first_epoch_samples_per_s": samples / (seconds + run.ledger["compile"]),
        "first_epoch_train_samples_per_s": samples / seconds,
        metric.name: curve[-1].value,
    }
    for name in ("memory_peak_bytes", "bytes_exchanged_per_step", "gpu_utilization", "evenness"):
        told = [getattr(one, name) for one in curve if getattr(one, name) is not None]
        summary = max if name in ("memory_peak_bytes", "bytes_exchanged_per_step") else fmean
        row[name] = summary(told) if told else None
    if math.isnan(found["input_share"]) and train > 0:
        row["input_share"] = run.ledger["input"] / train
    if run.time_to_target_s is not None:
        row["samples_to_target"] = next(
            (p.samples for p in curve if p.train_s >= run.time_to_target_s - 1e-9), None
        )
    return row


def median_time(times: "pd.Series[float]") -> float:
    """Return the median of times; missing ones count as infinite."""
    ordered = np.sort(times.fillna(np.inf).to_numpy(dtype=float))
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    # The mean of two middle times would be NaN if both were infinite.
    return float(high if np.isinf(high) else (low + high) / 2)


def _usual(table: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return the median of a column over each run's cell."""
    same = [table[key] for key in ("cell", "num_nodes", "accelerators")]
    return table[column].astype(float).groupby(same).transform("median")
