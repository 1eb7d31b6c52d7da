"""Tables of a scaling study: the table of runs and the table of cells.

The table of runs has the first epoch and the steady state of each run. The table of cells has the
medians over the runs of each cell, its speed-up and its efficiency.

A **cell** is a run spec of the study; each of its runs is a **repeat**. The cells of a **series**
differ only in worker count, node count and batch size; a throughput model is fitted to each series.
The cells of a **kind** have the same scaling (weak or strong), topology, framework, strategy,
workload and dataset. The speed-up of a cell is relative to its baseline, the fastest cell of the
same kind with one worker. Cells of different kinds are not comparable, so they are never on the
same curve.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.study import Study, once
from raybench.results.trials import accelerators_of, metric_columns
from raybench.spec.documents import flat_keys
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import Scaling, ScalingStudy, StudyCell, study_cells
from raybench.spec.text import identity, short
from raybench.stats.record import Evaluation, Failure, Purpose, Role, RunRecord, StepTimes

SHARES = (0.25, 0.5, 0.75, 0.95)
"""Probabilities for which `StepTimes` records the quantiles of step times."""
GRID = np.arange(1, 401) / 400
"""Probabilities to which the recorded quantiles are interpolated; they include SHARES."""
WHOLE_EPOCH = 1 - 1e-9
"""Number of epochs at which the first epoch counts as complete; below 1 because of rounding."""


def first_epoch_seconds(curve: Sequence[Evaluation]) -> tuple[float, int]:
    """Return (training seconds, samples) up to the first evaluation after the first epoch.

    If the run is shorter than an epoch, these are the totals of the run.
    """
    ends = [point for point in curve if point.epoch >= WHOLE_EPOCH] or list(curve[-1:])
    return (ends[0].train_s, ends[0].samples) if ends else (math.nan, 0)


def epoch_samples(curve: Sequence[Evaluation]) -> int:
    """Return the number of samples of an epoch.

    It is at least 1, because a custom training loop may report fewer samples than epochs.
    """
    return max(round(curve[-1].samples / curve[-1].epoch), 1)


def steady(curve: Sequence[Evaluation], step_samples: int) -> dict[str, Any]:
    """Return the step times of a run in its steady state, that is, after its first epoch.

    If there is no evaluation after the first epoch, the steady state begins at the first
    evaluation. If there is only one evaluation, the steady state is the whole run.

    Args:
        curve: Evaluations of the run.
        step_samples: Samples of a whole step, which is not cut short by the end of an epoch. If no
            whole step was timed, its time is computed from the samples/s between evaluations.

    Returns:
        Values by column of `run_table`, and mean_step_s, the mean seconds of a step. A stall raises
        mean_step_s and longest_step_s, but not the median. input_share is NaN if waiting for data
        was not recorded. The result is empty if there is no evaluation or no step time.
    """
    if not curve:
        return {}
    ends = [index for index, point in enumerate(curve[:-1]) if point.epoch >= WHOLE_EPOCH]
    first = ends[0] + 1 if ends else min(1, len(curve) - 1)
    points, (samples, seconds, waited) = curve[first:], _totals_at(curve[-1])
    if first:
        before = _totals_at(curve[first - 1])
        samples, seconds, waited = samples - before[0], seconds - before[1], waited - before[2]
    timed = [point.steps for point in points if point.steps is not None]
    if timed:
        quartiles = pooled(timed)
        longest = max(point.steps.max_s for point in curve if point.steps is not None)
    else:
        step_times = [
            step_samples / point.samples_per_s for point in points if point.samples_per_s > 0
        ]
        if not step_times:
            return {}
        quartiles = np.percentile(step_times, [100 * share for share in SHARES]).tolist()
        longest = max(
            step_samples / point.samples_per_s for point in curve if point.samples_per_s > 0
        )
    names = ("step_p25_s", "step_median_s", "step_p75_s", "step_p95_s")
    return dict(zip(names, quartiles, strict=True)) | {
        "num_steps": sum(interval.num for interval in timed),
        "longest_step_s": longest,
        "mean_step_s": seconds / samples * step_samples,
        "input_share": waited / seconds if seconds > 0 else math.nan,
        "is_warm": bool(ends),
    }


def _totals_at(point: Evaluation) -> tuple[int, float, float]:
    """Return (samples, training seconds, seconds of waiting for data) up to an evaluation."""
    return point.samples, point.train_s, math.nan if point.input_s is None else point.input_s


def pooled(intervals: Sequence[StepTimes]) -> list[float]:
    """Pool the step times of several intervals, and return their quantiles at SHARES in seconds.

    The step times of an interval are interpolated linearly between its recorded quantiles, and are
    constant beyond the outermost quantiles.
    """
    recorded = [
        (interval.p25_s, interval.median_s, interval.p75_s, interval.p95_s)
        for interval in intervals
    ]
    seconds = np.concatenate([np.interp(GRID, SHARES, quantiles) for quantiles in recorded])
    order = np.argsort(seconds, kind="stable")
    steps = np.repeat([interval.num / len(GRID) for interval in intervals], len(GRID))[order]
    reached = np.cumsum(steps) / steps.sum() + 1e-9  # 1e-9 covers rounding errors
    return [float(seconds[order[int(np.searchsorted(reached, share))]]) for share in SHARES]


OUTLIER_FACTOR = 1.5
"""Factor beyond which a run is an outlier: its mean seconds per sample, including stalls, differ by
more than this factor from the median of its cell, or its first epoch is slower than the median
first epoch of its cell by more than this factor."""
FIRST_EPOCH = "first_epoch_train_samples_per_s"
MISSES = (Failure.NAN, Failure.OOM)
"""Failures after which a run counts as one that missed the target; a run with another failure is
not counted."""
RUN_COLUMNS = (
    *("trial", "cell", "repeat", "seed", "failure", "stop", "num_nodes", "accelerators"),
    "samples_per_s",
    *("samples_per_s_low", "samples_per_s_high", "mean_samples_per_s", "step_median_s"),
    *("step_p25_s", "step_p75_s", "step_p95_s", "longest_step_s", "num_steps", "is_warm"),
    *("first_epoch_samples_per_s", "first_epoch_train_samples_per_s", "compile_s", "train_s"),
    *("wall_s", "input_share", "memory_peak_bytes", "bytes_exchanged_per_step"),
    *("flops_per_sample", "tokens_per_sample"),
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
    """Return the table of runs, which has one row for each finished repeat of a cell.

    Its columns are RUN_COLUMNS, with the name of the metric instead of "accuracy".

    | column | meaning |
    |---|---|
    | stop | stop reason; missing for a failure |
    | samples_per_s | global batch size divided by the median time of a whole step |
    | .._low, .._high | global batch size divided by the upper and lower quartile of step times |
    | mean_samples_per_s | global batch size divided by the mean step time, including stalls |
    | step_.._s | seconds of an optimizer step after the first epoch |
    | longest_step_s | seconds of the longest step, including those of the first epoch |
    | num_steps | timed steps of whole global batches; 0 if only evaluations were timed |
    | epoch_samples | samples per epoch; an optimizer step never has more |
    | short_steps | steps per epoch * samples per whole step / epoch_samples; above 1 if |
    |  | the last step is short |
    | is_warm | False if the run is so short that its step times include the first epoch |
    | first_epoch_samples_per_s | samples/s of the first epoch, including compilation |
    | first_epoch_train_samples_per_s | samples/s of the first epoch without compilation |
    | input_share | fraction of the training time after the first epoch spent waiting for data; of |
    |  | the whole training time if evaluations do not record the waiting |
    | evenness | load balance of the workers, mean over evaluations (`Evaluation.evenness`) |
    | memory_peak_bytes, gpu_utilization | maximum over workers; mean over workers |
    | bytes_exchanged_per_step | bytes that a worker contributes to the exchange of a step |
    | flops_per_sample, tokens_per_sample | as in `Evaluation` |
    | is_slow_start | whether the first epoch is slower than the median first epoch of its cell |
    |  | by more than OUTLIER_FACTOR |
    | is_outlier | True if is_slow_start, or if mean_samples_per_s differs from the median |
    |  | samples_per_s of the cell by more than OUTLIER_FACTOR, beyond what `short_steps` explains |

    Only runs that count for `Purpose.MEASUREMENT` are included.
    """
    by_name = {cell.name: cell for cell in cells}
    rows = [
        _row(run, by_name[run.source], curves.get(name, []), metric)
        for name, run in runs.items()
        if run.role == Role.SCALING
        and run.counts_for(Purpose.MEASUREMENT)
        and run.source in by_name
    ]
    table = pd.DataFrame(rows, columns=metric_columns(RUN_COLUMNS, metric)).sort_values(
        ["cell", "repeat"], kind="stable", ignore_index=True
    )
    numeric = table.astype(dict.fromkeys(("mean_samples_per_s", "short_steps", FIRST_EPOCH), float))
    # A slow first epoch does not show in the steady state, so it is checked separately.
    table["is_slow_start"] = (
        _cell_median(numeric, FIRST_EPOCH) / numeric[FIRST_EPOCH] > OUTLIER_FACTOR
    )
    # The mean includes stalls; a short step that takes as long as a whole one is not a stall.
    slower = _cell_median(numeric, "samples_per_s") / numeric["mean_samples_per_s"]
    is_far = (slower > OUTLIER_FACTOR * numeric["short_steps"]) | (slower < 1 / OUTLIER_FACTOR)
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
    row["epoch_samples"] = epoch = epoch_samples(curve)
    step_samples = min(spec.global_batch_size, epoch)
    steady_state = steady(curve, step_samples)
    if not steady_state:
        return row
    whole_steps = math.ceil(epoch / step_samples) * step_samples
    seconds, samples = first_epoch_seconds(curve)
    row |= steady_state | {
        "samples_per_s": step_samples / steady_state["step_median_s"],
        "samples_per_s_low": step_samples / steady_state["step_p75_s"],
        "samples_per_s_high": step_samples / steady_state["step_p25_s"],
        "mean_samples_per_s": step_samples / steady_state["mean_step_s"],
        "short_steps": whole_steps / epoch if steady_state["num_steps"] else 1,
        "first_epoch_samples_per_s": samples / (seconds + run.ledger["compile"]),
        "first_epoch_train_samples_per_s": samples / seconds,
        metric.name: curve[-1].value,
    }
    for name, summary in SUMMARIES.items():
        values = [getattr(point, name) for point in curve if getattr(point, name) is not None]
        row[name] = summary(values) if values else None
    if math.isnan(steady_state["input_share"]) and train > 0:
        row["input_share"] = run.ledger["input"] / train
    if run.time_to_target_s is not None:
        row["samples_to_target"] = next(
            (p.samples for p in curve if p.train_s >= run.time_to_target_s - 1e-9), None
        )
    return row


SUMMARIES: Mapping[str, Callable[[list[float]], float]] = MappingProxyType(
    {
        "memory_peak_bytes": max,
        "bytes_exchanged_per_step": max,
        "flops_per_sample": max,
        "tokens_per_sample": max,
        "gpu_utilization": fmean,
        "evenness": fmean,
    }
)
"""Functions that summarize a field of `Evaluation` over a run, keyed by the name of the field."""


def median_time(times: "pd.Series[float]") -> float:
    """Return the median of times, where a missing time counts as infinite."""
    return float(np.median(times.fillna(np.inf).to_numpy(dtype=float)))


def _cell_median(table: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return for each run the median of a column over the runs of its cell on the same hardware."""
    same = [table[key] for key in ("cell", "num_nodes", "accelerators")]
    return table[column].astype(float).groupby(same).transform("median")


GRID_KEYS = ("num_workers", "batch_size_per_worker", "seed")
"""Keys in which the cells of a series may differ."""
SYNTHETIC_KEYS = ("dataset.shape", "dataset.num_classes", "dataset.num_samples")
"""Run-spec keys that apply only to synthetic data."""


def topology_words(spec: RunSpec, accelerators: str) -> str:
    """Describe the resources of a worker, and whether workers are spread over hosts.

    Args:
        accelerators: Ray's name of the GPU model; "" without GPUs.
    """
    resources = f"{spec.cpus_per_worker} CPU{'s' if spec.cpus_per_worker != 1 else ''}"
    if spec.gpus_per_worker:
        resources += f" and {spec.gpus_per_worker:g} {accelerators or 'GPU'}"
    return f"{resources} a worker" + (", spread" if spec.placement_strategy == "spread" else "")


def kind_of(scaling: Scaling, spec: RunSpec, accelerators: str) -> tuple[Any, ...]:
    """Return the kind of a cell: the properties that it shares with its baseline."""
    settings = spec.framework, spec.strategy, spec.workload, spec.dataset.model_dump_json()
    # Runs without gradient exchange only measure the cost of the exchange, so they are a separate
    # kind.
    return (
        scaling,
        accelerators,
        topology_words(spec, accelerators),
        *settings,
        spec.exchange_gradients,
    )


def series_of(specs: Sequence[RunSpec]) -> list[str]:
    """Return the name of the series of each run spec, in the order of `specs`.

    A name lists the values of the keys in which the specs differ, except for default values. It
    always includes the framework and the workload (only the class name if that is unique).
    """
    classes = {spec.workload: spec.workload.rpartition(":")[2] for spec in specs}
    if len(set(classes.values())) < len(classes):
        classes = {name: name for name in classes}
    defaults, flat = flat_keys(RunSpec().document()), [flat_keys(spec.document()) for spec in specs]
    for values in flat:
        for key in SYNTHETIC_KEYS if values["dataset.name"] != "synthetic" else ():
            del values[key]
    keys = dict.fromkeys(key for values in flat for key in values if key not in GRID_KEYS)
    differing = [
        key
        for key in keys
        if key not in ("framework", "workload")
        and len({identity(values[key]) for values in flat if key in values}) > 1
    ]
    return [
        ", ".join(
            [values["framework"], classes[values["workload"]]]
            + [
                f"{key} {short(values[key])}"
                for key in differing
                if key in values and values[key] != defaults.get(key)
            ]
        )
        for values in flat
    ]


CELL_COLUMNS = (
    *("cell", "scaling", "series", "curve", "framework", "strategy", "workload", "dataset"),
    *("num_parameters", "num_workers", "num_nodes", "topology", "accelerators"),
    *("batch_size_per_worker", "global_batch_size", "accumulate", "exchange_gradients"),
    *("n", "failed", "failure"),
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "first_epoch_samples_per_s"),
    *("compile_s", "step_median_s", "step_p95_s", "longest_step_s", "num_steps"),
    *("is_warm", "stop"),
    *("speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high"),
    *("speedup_same_batch", "efficiency_same_batch", "baseline"),
    *("input_share", "communication_share", "alone_share", "memory_peak_bytes"),
    *("bytes_exchanged_per_step", "gpu_utilization", "evenness"),
    *("flops_per_sample", "tokens_per_sample", "flops_per_s", "mfu", "tokens_per_s"),
    *("accuracy", "best_accuracy", "time_to_target_s"),
    *("reached", "tried", "train_s", "epoch_samples", "outliers"),
)
MEDIANS = (
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "first_epoch_samples_per_s"),
    *("compile_s", "step_median_s", "step_p95_s"),
    *("input_share", "gpu_utilization", "accuracy", "best_accuracy", "train_s", "epoch_samples"),
    *("flops_per_sample", "tokens_per_sample"),
)
GREATEST = ("longest_step_s", "memory_peak_bytes", "bytes_exchanged_per_step")
SPEC_COLUMNS = (
    *("framework", "strategy", "workload", "num_workers", "batch_size_per_worker"),
    *("global_batch_size", "accumulate", "exchange_gradients"),
)
"""Columns that are keys of the run spec."""
TWIN, KIND, REPEATS = "_twin", "_kind", "_repeats"
"""Keys of a row that do not become columns. TWIN: the run spec without `exchange_gradients`, KIND:
the kind (`kind_of`), REPEATS: the samples/s of each repeat."""


def cell_table(
    study: ScalingStudy, runs: Mapping[str, RunRecord], curves: Mapping[str, Sequence[Evaluation]]
) -> pd.DataFrame:
    """Return the table of cells, which has one row for each cell (repeated run spec), scaling and
    hardware.

    Its columns are CELL_COLUMNS, with the name of the metric instead of "accuracy". A cell that
    belongs to both weak and strong scaling has two rows with the same runs.

    | column | meaning |
    |---|---|
    | series, curve | name of the series; name of the speed-up curve |
    | n, failed, failure | number of repeats without a failure; number of failed repeats; failure |
    | samples_per_s | median over the repeats of `samples_per_s` in `run_table` |
    | .._low, .._high | samples/s at the upper and lower quartile of step times |
    | first_epoch_samples_per_s | samples/s of the first epoch, including compilation |
    | step_median_s, step_p95_s | seconds of an optimizer step, medians over the repeats |
    | longest_step_s | seconds of the longest step of all repeats |
    | is_warm | False if a repeat is so short that its step times include the first epoch |
    | stop | stop reasons of the repeats |
    | speedup | samples_per_s divided by that of `baseline`, the fastest cell of its kind with |
    |  | one worker |
    | efficiency | speedup divided by the number of workers |
    | .._low, .._high | minimum and maximum over the repeats, each paired with a repeat of the |
    |  | baseline |
    | .._same_batch | the same, relative to one worker with the same batch size: per worker (weak |
    |  | scaling) or global (strong scaling) |
    | input_share | fraction of the training time after the first epoch spent waiting for data |
    | communication_share | 1 - step time without gradient exchange / step time; known if the |
    |  | cell was also run without exchange |
    | alone_share | step time of one worker with the same batch size per worker, without |
    |  | waiting for data, divided by the step time of this cell |
    | memory_peak_bytes | maximum over workers and repeats |
    | bytes_exchanged_per_step | as in `run_table` |
    | evenness | load balance of the workers (`run_table`), minimum over the repeats |
    | flops_per_s, tokens_per_s | flops_per_sample and tokens_per_sample times samples_per_s |
    | mfu | model FLOPs utilization: flops_per_s divided by the peak of the GPUs, if known |
    | accuracy, best_accuracy | medians of each repeat's last and best evaluation |
    | time_to_target_s | median; a repeat that did not reach the target counts as infinite |
    | reached, tried | number of repeats that reached the target; number of repeats that ended |
    |  | without a failure, diverged or ran out of memory |
    | epoch_samples | as in `run_table` |
    | outliers | repeats that are outliers (`run_table`); the medians include them |
    """
    cells, metric = study_cells(study), study.base.objective.judged_by
    repeats = run_table(cells, runs, curves, metric)
    parameters = {run.source: run.num_parameters for run in runs.values() if run.num_parameters}
    series = dict(zip((c.name for c in cells), series_of([c.spec for c in cells]), strict=True))
    rows: list[dict[str, Any]] = []
    by_name = {cell.name: cell for cell in cells}
    for key, group in repeats.groupby(["cell", "num_nodes", "accelerators"], sort=True):
        name, num_nodes, accelerators = key
        cell, gpus = by_name[str(name)], str(accelerators)
        medians = _medians(group, metric_columns(MEDIANS, metric))
        medians["num_parameters"] = parameters.get(cell.name)
        for scaling in cell.scalings:
            where = _cell_properties(cell, scaling, series[cell.name], gpus)
            extras = {"num_nodes": num_nodes, REPEATS: group.set_index("repeat")["samples_per_s"]}
            extras |= _rates(medians, cell.spec, gpus)
            rows.append(where | medians | extras | {KIND: kind_of(scaling, cell.spec, gpus)})
    for row in rows:
        row |= _speedups(row, rows) | _shares(row, rows)
    table = pd.DataFrame(rows, columns=metric_columns(CELL_COLUMNS, metric))
    for name in ("speedup", "speedup_low", "speedup_high", "speedup_same_batch"):
        efficiency = table[name].astype(float) / table["num_workers"].astype(float)
        table[name.replace("speedup", "efficiency")] = efficiency
    return table


@once
def scaling_cells(results: Study) -> pd.DataFrame:
    """Return `cell_table` of a loaded scaling study."""
    return cell_table(results.scaling_study, results.runs, results.evaluations)


@once
def scaling_runs(results: Study) -> pd.DataFrame:
    """Return `run_table` of a loaded scaling study."""
    study = results.scaling_study
    metric = study.base.objective.judged_by
    return run_table(study_cells(study), results.runs, results.evaluations, metric)


def _cell_properties(
    cell: StudyCell, scaling: Scaling, series: str, accelerators: str
) -> dict[str, Any]:
    spec = cell.spec
    topology = topology_words(spec, accelerators)
    batch, whose = spec.batch_size_per_worker, "a worker"
    if scaling == "strong":
        batch, whose = spec.global_batch_size, "in all"
    return {
        "cell": cell.name,
        "scaling": scaling,
        "series": series,
        "curve": f"{series}, {scaling}, batch {batch} {whose}, {topology}",
        "dataset": spec.dataset.name,
        "topology": topology,
        "accelerators": accelerators,
        **{key: getattr(spec, key) for key in SPEC_COLUMNS},
        TWIN: spec.model_dump_json(exclude={"exchange_gradients"}),
    }


def _medians(group: pd.DataFrame, columns: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a cell that summarize its repeats."""
    well = group[group["failure"].isna()]
    over = dict.fromkeys(columns, "median") | dict.fromkeys(GREATEST, "max") | {"evenness": "min"}
    tried = group[group["failure"].isna() | group["failure"].isin(MISSES)]
    times = tried["time_to_target_s"].astype(float)
    failures = group["failure"].dropna()
    return {name: well[name].astype(float).agg(how) for name, how in over.items()} | {
        "n": len(well),
        "failed": len(failures),
        "failure": ", ".join(sorted(set(failures))),
        "num_steps": int(well["num_steps"].fillna(0).sum()),
        "is_warm": bool(well["is_warm"].eq(True).all()),
        "stop": ", ".join(sorted(set(well["stop"].dropna()))),
        "time_to_target_s": median_time(times) if times.notna().any() else np.nan,
        "reached": int(times.notna().sum()),
        "tried": len(tried),
        "outliers": int(well["is_outlier"].sum()),
    }


PEAK_TFLOPS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "V100": {"fp32": 15.7, "fp16": 125},
        "T4": {"fp32": 8.1, "fp16": 65},
        "L4": {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121},
        "L40S": {"fp32": 91.6, "tf32": 183, "fp16": 362, "bf16": 362},
        "A10G": {"fp32": 35, "tf32": 35, "fp16": 70, "bf16": 70},
        "A100": {"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312},
        "H100": {"fp32": 67, "tf32": 494, "fp16": 989, "bf16": 989},
        "H200": {"fp32": 67, "tf32": 494, "fp16": 989, "bf16": 989},
        "H20": {"fp32": 44, "tf32": 74, "fp16": 148, "bf16": 148},
        "B200": {"fp32": 75, "tf32": 1125, "fp16": 2250, "bf16": 2250},
    }
)
"""Peak TFLOP/s of a GPU without sparsity. The keys are Ray's name of the GPU model, then the
`precision`. The values come from NVIDIA's data sheets; if there are several versions, that of SXM
is used."""


def peak_flops(spec: RunSpec, accelerators: str) -> float:
    """Return the peak floating-point operations per second of all GPUs of a run.

    Args:
        accelerators: Ray's name of the GPU model; empty without GPUs.

    Returns:
        The peak; NaN if it is unknown: without GPUs, for GPUs that are not in PEAK_TFLOPS, and for
        several GPU models.
    """
    peaks = PEAK_TFLOPS.get(accelerators.split("-")[0], {})  # A100 for A100-80G
    return 1e12 * peaks.get(spec.precision, math.nan) * spec.num_workers * spec.gpus_per_worker


def _rates(columns: Mapping[str, float], spec: RunSpec, accelerators: str) -> dict[str, float]:
    """Return the rates of a cell: flops_per_s, tokens_per_s and mfu, as in `cell_table`."""
    flops, tokens = (
        columns["samples_per_s"] * columns[f"{name}_per_sample"] for name in ("flops", "tokens")
    )
    mfu = flops / peak_flops(spec, accelerators)
    return {"flops_per_s": flops, "tokens_per_s": tokens, "mfu": mfu}


def run_rates(run: RunRecord, curve: Sequence[Evaluation]) -> dict[str, float]:
    """Return the throughput of a run in its steady state (`steady`).

    Args:
        run: Record of the run.
        curve: Evaluations of the run.

    Returns:
        samples_per_s, flops_per_s, tokens_per_s and mfu as in `cell_table`. A value is NaN if it is
        unknown; without `record_steps`, only samples_per_s is known. Empty if the run has no
        evaluation, or reported no samples (each report without samples counts as one sample).
    """
    if not curve or curve[-1].samples <= len(curve):
        return {}
    step_samples = min(run.spec.global_batch_size, epoch_samples(curve))
    steady_state = steady(curve, step_samples)
    if not steady_state:
        return {}
    last = {name: getattr(curve[-1], name) for name in ("flops_per_sample", "tokens_per_sample")}
    speed = {"samples_per_s": step_samples / steady_state["step_median_s"]}
    per_sample = {name: math.nan if value is None else value for name, value in last.items()}
    return speed | _rates(speed | per_sample, run.spec, accelerators_of(run) or "")


def _speedups(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the speed-up columns of a cell: its speed relative to the fastest single-worker cell
    of its kind. Empty if there is no such cell."""
    baselines = [
        cell for cell in rows if cell[KIND] == row[KIND] and cell["num_workers"] == 1 and cell["n"]
    ]
    if not baselines or not row["n"]:
        return {}
    best = max(baselines, key=lambda cell: float(cell["samples_per_s"]))
    # Repeats of all cells are interleaved, so repeats with the same number ran at about the same
    # time, with the machine in the same state.
    pairs = (row[REPEATS] / best[REPEATS]).dropna().astype(float)
    speedup = row["samples_per_s"] / best["samples_per_s"]
    speedups = {"speedup": speedup, "baseline": best["cell"]}
    if len(pairs) > 1:
        speedups["speedup_low"] = min(pairs.min(), speedup)
        speedups["speedup_high"] = max(pairs.max(), speedup)
    same = [cell for cell in baselines if cell["curve"] == row["curve"]]
    if same:
        speedups["speedup_same_batch"] = row["samples_per_s"] / same[0]["samples_per_s"]
    return speedups


def _shares(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return alone_share and communication_share of a cell (see `cell_table`), as far as other
    cells determine them."""
    shares: dict[str, Any] = {}
    for other in rows:
        if other["batch_size_per_worker"] != row["batch_size_per_worker"] or not other["n"]:
            continue
        if other["topology"] != row["topology"]:
            continue
        if other["num_workers"] == 1 and other["series"] == row["series"]:
            alone_s = other["step_median_s"] * (1 - other["input_share"])
            shares.setdefault("alone_share", alone_s / row["step_median_s"])
        is_probe = row["exchange_gradients"] and not other["exchange_gradients"]
        if is_probe and other[TWIN] == row[TWIN] and other["num_nodes"] == row["num_nodes"]:
            share = 1 - other["step_median_s"] / row["step_median_s"]
            shares.setdefault("communication_share", share)
    return shares


def curves_of(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the speed-up curves of a study by name, each sorted by worker count.

    The cells (run specs) of a curve have the same scaling, series, batch size and topology. Cells
    without a speed-up, cells without gradient exchange and cells on more hosts than necessary
    (`on_more_hosts`) are left out.

    Raises:
        UserError: Two cells of a curve have the same worker count.
    """
    usable = cells[cells["speedup"].notna() & cells["exchange_gradients"]]
    usable = usable.drop(on_more_hosts(usable).index)
    twice = usable[usable.duplicated(["curve", "num_workers"], keep=False)]
    if len(twice):
        workers = int(twice["num_workers"].iloc[0])
        same = twice.loc[twice["num_workers"] == workers, "cell"]
        raise UserError(
            f"a speed-up curve has one cell for each number of workers, and here {len(same)} cells "
            f"({', '.join(same)}) have {workers}; select one of them.",
            ErrorCode.CONFLICT,
        )
    return {
        str(name): group.sort_values("num_workers", ignore_index=True)
        for name, group in usable.groupby("curve", sort=False)
    }


def on_more_hosts(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that ran on more hosts than necessary: another cell of the same curve has
    the same worker count on fewer hosts."""
    fewest = cells.groupby(["curve", "num_workers"])["num_nodes"].transform("min")
    return cells[cells["num_nodes"] > fewest]
