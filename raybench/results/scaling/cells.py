"""The cells of a scaling study as a table: medians over their repeats, speed-up, efficiency."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from raybench.core.record import Evaluation, RunRecord
from raybench.core.scaling_study import Scaling, ScalingStudy, StudyCell, study_cells
from raybench.results.scaling.kinds import Topology, kind_of, series_of, topology_of
from raybench.results.scaling.runs import MISSES, named, run_table

SPEEDUPS = (
    *("speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high"),
    *("speedup_same_batch", "efficiency_same_batch", "baseline"),
)
CELL_COLUMNS = (
    *("cell", "scaling", "series", "curve", "framework", "strategy", "workload", "dataset"),
    *(
        "num_parameters",
        "num_workers",
        "num_nodes",
        "topology",
        "accelerators",
        "batch_size_per_worker",
    ),
    *("global_batch_size", "accumulate", "exchange_gradients", "n", "failed", "failure"),
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "samples_per_s_min"),
    *("samples_per_s_max", "first_epoch_samples_per_s", "first_epoch_train_samples_per_s"),
    *("compile_s", "step_median_s", "step_p95_s", "longest_step_s", "num_steps"),
    *("is_warm", "stop", *SPEEDUPS),
    *("input_share", "communication_share", "alone_share", "memory_peak_bytes"),
    *("bytes_exchanged_per_step",),
    *("gpu_utilization", "evenness", "accuracy", "best_accuracy", "time_to_target_s"),
    *("reached", "tried", "train_s", "epoch_samples", "outliers"),
)
MEDIANS = (
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "first_epoch_samples_per_s"),
    *("first_epoch_train_samples_per_s", "compile_s", "step_median_s", "step_p95_s"),
    *("input_share", "gpu_utilization", "accuracy", "best_accuracy", "train_s", "epoch_samples"),
)
TWIN = "_twin"
"""Key of a row that tells cells alike in all but the exchange of gradients; no column."""


def cell_table(
    study: ScalingStudy,
    runs: Mapping[str, RunRecord],
    curves: Mapping[str, Sequence[Evaluation]],
) -> pd.DataFrame:
    """Return a row for each cell, scaling and topology it ran on; columns CELL_COLUMNS.

    Of a study by another metric than accuracy, that one's name stands in them.

    A run spec that is a point of a weak and of a strong curve has two rows of the same runs.

    | column | holds |
    |---|---|
    | series, curve | what a throughput model is fitted to; what a speed-up curve is drawn of |
    | n, failed, failure | repeats that ended well, those that failed, and how |
    | samples_per_s | median over repeats of each one's median step |
    | .._low, .._high; .._min, .._max | quartiles of the steps; slowest and fastest repeat |
    | first_epoch_.. | of the first epoch with and without compiling: `scaling.runs` |
    | step_median_s, step_p95_s, longest_step_s | of an optimizer step; the longest of all repeats |
    | is_warm | False where a repeat was so short that its first epoch is in its figures |
    | stop | why repeats ended |
    | speedup | samples/s over those of `baseline`: the best cell of its kind with one worker |
    | efficiency | speed-up over workers |
    | .._low, .._high | least and greatest of the repeats, each over the baseline's same repeat |
    | .._same_batch | over the cell of one worker with the same batch instead: a worker's (weak) |
    |  | or the global one (strong) |
    | input_share | part of the training after the warm-up that waited for data |
    | communication_share | 1 - step without exchange / step, where such a cell was run, too |
    | alone_share | step of one worker with the same batch per worker, its waiting for data left |
    |  | out / step |
    | memory_peak_bytes | most of any worker and repeat |
    | bytes_exchanged_per_step | what a worker gives to the exchange of one optimizer step |
    | evenness | of the least even repeat |
    | accuracy, best_accuracy | medians of each repeat's last and best evaluation |
    | time_to_target_s | median, misses counted as infinite |
    | reached, tried | repeats that reached the target; all, but for those that failed otherwise |
    |  | than by diverging or for want of memory: these two are misses |
    | epoch_samples | of an epoch; where the global batch is larger, a step has these |
    | outliers | repeats far off the others (`scaling.runs`); they are in the medians |
    """
    cells, metric = study_cells(study), study.base.objective.judged_by
    each = run_table(cells, runs, curves, metric)
    told = {run.source: run.num_parameters for run in runs.values() if run.num_parameters}
    series = dict(zip((c.name for c in cells), series_of([c.spec for c in cells]), strict=True))
    rows: list[dict[str, Any]] = []
    kinds: list[tuple[Any, ...]] = []
    repeats: list[pd.DataFrame] = []
    by_name = {cell.name: cell for cell in cells}
    for key, group in each.groupby(["cell", "num_nodes", "accelerators"], sort=True):
        name, num_nodes, accelerators = key
        cell = by_name[str(name)]
        topology = topology_of(cell.spec, str(accelerators))
        found = _medians(group, named(MEDIANS, metric)) | {"num_parameters": told.get(cell.name)}
        for scaling in cell.scalings:
            rows.append(
                _where(cell, scaling, series[cell.name], topology)
                | found
                | {"num_nodes": num_nodes}
            )
            kinds.append(kind_of(scaling, cell.spec, topology))
            repeats.append(group.set_index("repeat"))
    for index, row in enumerate(rows):
        row |= _speedups(index, rows, kinds, repeats)
        row |= _shares(row, rows)
    return pd.DataFrame(rows, columns=named(CELL_COLUMNS, metric))


def _where(cell: StudyCell, scaling: Scaling, series: str, topology: Topology) -> dict[str, Any]:
    spec = cell.spec
    batch, whose = spec.batch_size_per_worker, "a worker"
    if scaling == "strong":
        batch, whose = spec.global_batch_size, "in all"
    return {
        "cell": cell.name,
        "scaling": scaling,
        "series": series,
        "curve": f"{series}, {scaling}, batch {batch} {whose}, {topology.words}",
        "framework": spec.framework,
        "strategy": spec.strategy,
        "workload": spec.workload,
        "dataset": spec.dataset.name,
        "num_workers": spec.num_workers,
        "topology": topology.words,
        "accelerators": topology.accelerators,
        "batch_size_per_worker": spec.batch_size_per_worker,
        "global_batch_size": spec.global_batch_size,
        "accumulate": spec.accumulate,
        "exchange_gradients": spec.exchange_gradients,
        TWIN: spec.model_dump_json(exclude={"exchange_gradients"}),
    }


def _medians(group: pd.DataFrame, columns: Sequence[str]) -> dict[str, Any]:
    """Return what the repeats of a cell say together."""
    well = group[group["failure"].isna()]
    row: dict[str, Any] = {name: well[name].astype(float).median() for name in columns}
    tried = group[group["failure"].isna() | group["failure"].isin(MISSES)]
    times = tried["time_to_target_s"].astype(float)
    failures = group["failure"].dropna()
    return row | {
        "n": len(well),
        "failed": len(failures),
        "failure": ", ".join(sorted(set(failures))),
        "samples_per_s_min": well["samples_per_s"].astype(float).min(),
        "samples_per_s_max": well["samples_per_s"].astype(float).max(),
        "longest_step_s": well["longest_step_s"].astype(float).max(),
        "num_steps": int(well["num_steps"].fillna(0).sum()),
        "is_warm": bool(well["is_warm"].eq(True).all()),
        "stop": ", ".join(sorted(set(well["stop"].dropna()))),
        "memory_peak_bytes": well["memory_peak_bytes"].astype(float).max(),
        "bytes_exchanged_per_step": well["bytes_exchanged_per_step"].astype(float).max(),
        "evenness": well["evenness"].astype(float).min(),
        "time_to_target_s": _median_time(times),
        "reached": int(times.notna().sum()),
        "tried": len(tried),
        "outliers": int(well["is_outlier"].sum()),
    }


def _median_time(times: "pd.Series[float]") -> float:
    """Return the median of times of which the missing ones are longer than any."""
    if times.notna().sum() == 0:
        return float("nan")
    ordered = np.sort(times.fillna(np.inf).to_numpy(dtype=float))
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(high if np.isinf(high) else (low + high) / 2)


def _speedups(
    index: int,
    rows: Sequence[dict[str, Any]],
    kinds: Sequence[tuple[Any, ...]],
    repeats: Sequence[pd.DataFrame],
) -> dict[str, Any]:
    """Return a cell's speed-up over the best of its kind with one worker, if there is one."""
    row = rows[index]
    alone = [
        i
        for i, one in enumerate(rows)
        if kinds[i] == kinds[index] and one["num_workers"] == 1 and one["n"]
    ]
    if not alone or not row["n"]:
        return {}
    best = max(alone, key=lambda i: rows[i]["samples_per_s"])
    # Repeats are interleaved: those of one number have met the machine in the same state.
    pairs = (
        (repeats[index]["samples_per_s"] / repeats[best]["samples_per_s"]).dropna().astype(float)
    )
    speedup, workers = row["samples_per_s"] / rows[best]["samples_per_s"], row["num_workers"]
    found = {"speedup": speedup, "baseline": rows[best]["cell"]}
    if len(pairs) > 1:
        found["speedup_low"] = min(pairs.min(), speedup)
        found["speedup_high"] = max(pairs.max(), speedup)
    for name in ("speedup", "speedup_low", "speedup_high"):
        if name in found:
            found[name.replace("speedup", "efficiency")] = found[name] / workers
    same = [i for i in alone if rows[i]["curve"] == row["curve"]]
    if same:
        found["speedup_same_batch"] = row["samples_per_s"] / rows[same[0]]["samples_per_s"]
        found["efficiency_same_batch"] = found["speedup_same_batch"] / workers
    return found


def _shares(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return parts of a cell's step that other cells tell: see `cell_table`."""
    found: dict[str, Any] = {}
    for other in rows:
        if other["batch_size_per_worker"] != row["batch_size_per_worker"] or not other["n"]:
            continue
        if other["topology"] != row["topology"]:
            continue
        if other["num_workers"] == 1 and other["series"] == row["series"]:
            own = other["step_median_s"] * (1 - other["input_share"])
            found.setdefault("alone_share", own / row["step_median_s"])
        is_probe = row["exchange_gradients"] and not other["exchange_gradients"]
        if is_probe and other[TWIN] == row[TWIN] and other["num_nodes"] == row["num_nodes"]:
            share = 1 - other["step_median_s"] / row["step_median_s"]
            found.setdefault("communication_share", share)
    return found
