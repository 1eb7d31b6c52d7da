"""Table of the cells of a scaling study: medians over their repeats, speed-up, efficiency.

The cells of a **series** differ only in workers, nodes and batch size; a throughput model is fitted
to each series. The cells of a **kind** have the same scaling, topology, framework, strategy,
workload and dataset; the baseline of a speed-up is the best cell of its kind with one worker.

Cells of different kinds are never on one curve: weak and strong scaling, or two kinds of machine,
are not comparable.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.study import Study, once
from raybench.results.trials import named
from raybench.scaling.runs import MISSES, median_time, run_table
from raybench.spec.documents import flat_keys
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import Scaling, ScalingStudy, StudyCell, study_cells
from raybench.stats.record import Evaluation, RunRecord

GRID_KEYS = ("num_workers", "batch_size_per_worker", "seed")
"""Keys in which the cells of a series may differ."""
NAMED_ALONE = ("framework", "strategy", "workload", "dataset.name", "optimizer", "precision")
"""Keys whose values are shown without the key in a label."""
SYNTHETIC_KEYS = ("dataset.shape", "dataset.num_classes", "dataset.num_samples")
"""Keys that only `dataset.name: synthetic` reads."""


def topology_words(spec: RunSpec, accelerators: str) -> str:
    """Return the resources of a worker on these GPUs ("": none) and its placement, in words."""
    each = f"{spec.cpus_per_worker} CPU{'s' if spec.cpus_per_worker != 1 else ''}"
    if spec.gpus_per_worker:
        each += f" and {spec.gpus_per_worker:g} {accelerators or 'GPU'}"
    return f"{each} a worker" + (", spread" if spec.placement_strategy == "spread" else "")


def kind_of(scaling: Scaling, spec: RunSpec, accelerators: str) -> tuple[Any, ...]:
    """Return the properties that a cell and its baseline share."""
    own = spec.framework, spec.strategy, spec.workload, spec.dataset.model_dump_json()
    # Runs without exchange are probes and only compared with each other.
    return scaling, accelerators, topology_words(spec, accelerators), *own, spec.exchange_gradients


def series_of(specs: Sequence[RunSpec]) -> list[str]:
    """Return the name of each spec's series: its values of the keys in which the specs differ.

    Framework and workload are always named, a workload by its class if that is unique. Values that
    are off, None or at a default are not shown.
    """
    classes = {spec.workload: spec.workload.rpartition(":")[2] for spec in specs}
    if len(set(classes.values())) < len(classes):
        classes = {name: name for name in classes}
    flat = [flat_keys(spec.document()) | {"workload": classes[spec.workload]} for spec in specs]
    for one in flat:
        for key in SYNTHETIC_KEYS if one["dataset.name"] != "synthetic" else ():
            del one[key]
    keys = dict.fromkeys(key for one in flat for key in one if key not in GRID_KEYS)
    values = {key: {json.dumps(one[key]) for one in flat if key in one} for key in keys}
    first = ("framework", "workload")
    told = [*first, *(key for key in keys if key not in first and len(values[key]) > 1)]
    words = [[_words(key, one[key]) for key in told if key in one] for one in flat]
    return [", ".join(filter(None, one)) for one in words]


def _words(key: str, value: Any) -> str:
    """Return a key's value as in a label; "" if it is off, None or at a default."""
    if isinstance(value, bool):
        if key in RunSpec.model_fields and RunSpec.model_fields[key].default is value:
            return ""
        return key if value else f"no {key}"
    if value in (None, "none", 0):
        return ""
    if (key, value) == ("dataset.name", "workload"):
        return "data of its own"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shown if key in NAMED_ALONE else f"{key} {shown}"


CELL_COLUMNS = (
    *("cell", "scaling", "series", "curve", "framework", "strategy", "workload", "dataset"),
    *("num_parameters", "num_workers", "num_nodes", "topology", "accelerators"),
    *("batch_size_per_worker", "global_batch_size", "accumulate", "exchange_gradients"),
    *("n", "failed", "failure"),
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "samples_per_s_min"),
    *("samples_per_s_max", "first_epoch_samples_per_s", "first_epoch_train_samples_per_s"),
    *("compile_s", "step_median_s", "step_p95_s", "longest_step_s", "num_steps"),
    *("is_warm", "stop"),
    *("speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high"),
    *("speedup_same_batch", "efficiency_same_batch", "baseline"),
    *("input_share", "communication_share", "alone_share", "memory_peak_bytes"),
    *("bytes_exchanged_per_step", "gpu_utilization", "evenness"),
    *("accuracy", "best_accuracy", "time_to_target_s"),
    *("reached", "tried", "train_s", "epoch_samples", "outliers"),
)
MEDIANS = (
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "first_epoch_samples_per_s"),
    *("first_epoch_train_samples_per_s", "compile_s", "step_median_s", "step_p95_s"),
    *("input_share", "gpu_utilization", "accuracy", "best_accuracy", "train_s", "epoch_samples"),
)
GREATEST = ("longest_step_s", "memory_peak_bytes", "bytes_exchanged_per_step")
OF_SPEC = (
    *("framework", "strategy", "workload", "num_workers", "batch_size_per_worker"),
    *("global_batch_size", "accumulate", "exchange_gradients"),
)
"""Columns that are keys of the run spec."""
TWIN, KIND, REPEATS = "_twin", "_kind", "_repeats"
"""Keys of a row that are not columns: the spec without its exchange of gradients, `kind_of`, and
the samples/s of each repeat."""


def cell_table(
    study: ScalingStudy, runs: Mapping[str, RunRecord], curves: Mapping[str, Sequence[Evaluation]]
) -> pd.DataFrame:
    """Return a row for each cell, scaling and topology it ran on; columns CELL_COLUMNS.

    The columns of the metric carry its name. A run spec on a weak and a strong curve has two rows
    of the same runs.

    | column | holds |
    |---|---|
    | series, curve | name of the throughput model's series; name of the speed-up curve |
    | n, failed, failure | number of repeats that ended well; those that failed, and how |
    | samples_per_s | median over repeats of the global batch over the median step |
    | .._low, .._high; .._min, .._max | quartiles of the steps; slowest and fastest repeat |
    | first_epoch_.. | the first epoch with and without compiling: `scaling.runs` |
    | step_median_s, step_p95_s, longest_step_s | optimizer step; the longest of all repeats |
    | is_warm | False if a repeat was so short that its first epoch is included |
    | stop | stop reasons of the repeats |
    | speedup | samples/s over those of `baseline`, the best cell of its kind with one worker |
    | efficiency | speed-up over workers |
    | .._low, .._high | least and greatest over the repeats, paired with those of the baseline |
    | .._same_batch | relative to one worker with the same batch: per worker (weak scaling) or |
    |  | global (strong scaling) |
    | input_share | share of the training after the warm-up spent waiting for data |
    | communication_share | 1 - step without exchange / step, if such a cell was run |
    | alone_share | step of one worker with the same batch per worker, without waiting for data, |
    |  | over the step |
    | memory_peak_bytes | maximum over workers and repeats |
    | bytes_exchanged_per_step | contribution of a worker to the exchange of one optimizer step |
    | evenness | minimum over the repeats |
    | accuracy, best_accuracy | medians of each repeat's last and best evaluation |
    | time_to_target_s | median, misses counted as infinite |
    | reached, tried | repeats that reached the target; those that ended well, diverged or ran |
    |  | out of memory |
    | epoch_samples | samples of an epoch, and of a step if the global batch is larger |
    | outliers | repeats far from the others (`scaling.runs`), which the medians include |
    """
    cells, metric = study_cells(study), study.base.objective.judged_by
    each = run_table(cells, runs, curves, metric)
    told = {run.source: run.num_parameters for run in runs.values() if run.num_parameters}
    series = dict(zip((c.name for c in cells), series_of([c.spec for c in cells]), strict=True))
    rows: list[dict[str, Any]] = []
    by_name = {cell.name: cell for cell in cells}
    for key, group in each.groupby(["cell", "num_nodes", "accelerators"], sort=True):
        name, num_nodes, accelerators = key
        cell, gpus = by_name[str(name)], str(accelerators)
        found = _medians(group, named(MEDIANS, metric)) | {"num_parameters": told.get(cell.name)}
        for scaling in cell.scalings:
            where = _where(cell, scaling, series[cell.name], gpus)
            own = {"num_nodes": num_nodes, REPEATS: group.set_index("repeat")["samples_per_s"]}
            rows.append(where | found | own | {KIND: kind_of(scaling, cell.spec, gpus)})
    for row in rows:
        row |= _speedups(row, rows) | _shares(row, rows)
    table = pd.DataFrame(rows, columns=named(CELL_COLUMNS, metric))
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
    """Return `runs.run_table` of a loaded scaling study."""
    study = results.scaling_study
    metric = study.base.objective.judged_by
    return run_table(study_cells(study), results.runs, results.evaluations, metric)


def _where(cell: StudyCell, scaling: Scaling, series: str, accelerators: str) -> dict[str, Any]:
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
        **{key: getattr(spec, key) for key in OF_SPEC},
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
        "samples_per_s_min": well["samples_per_s"].astype(float).min(),
        "samples_per_s_max": well["samples_per_s"].astype(float).max(),
        "num_steps": int(well["num_steps"].fillna(0).sum()),
        "is_warm": bool(well["is_warm"].eq(True).all()),
        "stop": ", ".join(sorted(set(well["stop"].dropna()))),
        "time_to_target_s": median_time(times) if times.notna().any() else np.nan,
        "reached": int(times.notna().sum()),
        "tried": len(tried),
        "outliers": int(well["is_outlier"].sum()),
    }


def _speedups(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a cell's speed-up over the best of its kind with one worker, if there is one."""
    alike = [one for one in rows if one[KIND] == row[KIND] and one["num_workers"] == 1 and one["n"]]
    if not alike or not row["n"]:
        return {}
    best = max(alike, key=lambda one: float(one["samples_per_s"]))
    # Repeats are interleaved: those of one number ran on the machine in the same state.
    pairs = (row[REPEATS] / best[REPEATS]).dropna().astype(float)
    speedup = row["samples_per_s"] / best["samples_per_s"]
    found = {"speedup": speedup, "baseline": best["cell"]}
    if len(pairs) > 1:
        found["speedup_low"] = min(pairs.min(), speedup)
        found["speedup_high"] = max(pairs.max(), speedup)
    same = [one for one in alike if one["curve"] == row["curve"]]
    if same:
        found["speedup_same_batch"] = row["samples_per_s"] / same[0]["samples_per_s"]
    return found


def _shares(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the shares of a cell's step that follow from other cells: see `cell_table`."""
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


def curves_of(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the speed-up curves of a study by name, each sorted by number of workers.

    A curve has one scaling, series, batch and topology. Cells without a speed-up, probes without
    exchange of gradients and cells on more hosts than necessary (`on_more_hosts`) are left out.

    Raises:
        UserError: Two cells of a curve have the same number of workers.
    """
    usable = cells[cells["speedup"].notna() & cells["exchange_gradients"]]
    usable = usable.drop(on_more_hosts(usable).index)
    twice = usable[usable.duplicated(["curve", "num_workers"], keep=False)]
    if len(twice):
        workers = int(twice["num_workers"].iloc[0])
        same = twice.loc[twice["num_workers"] == workers, "cell"]
        raise UserError(
            f"a speed-up curve has one cell for each number of workers, and {len(same)} here have "
            f"{workers}, of several cells ({', '.join(same)}): choose those of one.",
            ErrorCode.CONFLICT,
        )
    return {
        str(name): group.sort_values("num_workers", ignore_index=True)
        for name, group in usable.groupby("curve", sort=False)
    }


def on_more_hosts(cells: pd.DataFrame) -> pd.DataFrame:
    """Return cells on more hosts than others of their curve with the same number of workers."""
    fewest = cells.groupby(["curve", "num_workers"])["num_nodes"].transform("min")
    return cells[cells["num_nodes"] > fewest]
