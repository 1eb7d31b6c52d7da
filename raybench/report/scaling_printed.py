"""A scaling study for a terminal: its tables, what is said beside them, its answer in sentences."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Console

from raybench.report.console import print_table, wrapped
from raybench.results.study import Study
from raybench.scaling.cells import on_more_hosts, scaling_cells, scaling_runs
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.text import clean

TITLES = {
    "weak": "Weak scaling: the batch of each worker stays, more workers do more at once",
    "strong": "Strong scaling: the batch of all workers together stays, each does less",
}
DROPPED = (
    *("exchanged MB", "memory MB", "even", "n", "first epoch", "input", "step p95 ms", "quartiles"),
    *("{metric}", "outliers"),
)
"""Columns that a narrow terminal does not show, the first of them first."""
ENDINGS = {
    "target": "the target was reached",
    "max_train_seconds": "its seconds of training were over",
    "epochs": "its epochs were done",
}
"""Why a run ended by itself, by its `stop`."""
BELOW = (
    "samples/s: of the median step after the first epoch (where a run had more), median of the "
    "repeats; speed-up: over the best single worker of its kind, in brackets the repeats' least "
    "and greatest; efficiency: speed-up over workers; first epoch: compiling included"
)


def print_cells(console: Console, cells: pd.DataFrame, *, metric: Metric = ACCURACY) -> None:
    """Print a table of the cells of each kind of scaling."""
    kinds = [scaling for scaling in TITLES if cells["scaling"].eq(scaling).any()]
    for scaling in kinds:
        table = printed_cells(cells[cells["scaling"] == scaling], metric=metric)
        right = [name for name in table.columns if name != "series"]
        drop = [name.format(metric=metric.words) for name in DROPPED]
        below = "\n".join(wrapped(BELOW, console.width)) if scaling == kinds[-1] else ""
        title = TITLES[scaling]
        print_table(console, table, title, drop=drop, wrap=["series"], right=right, below=below)


def printed_cells(cells: pd.DataFrame, *, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Return cells as texts; columns of which nothing is known are left out."""
    rows = cells.sort_values(
        ["series", "topology", "batch_size_per_worker", "num_workers"], kind="stable"
    ).to_dict("records")
    several = len(set(cells["topology"])) > 1 or len(set(cells["num_nodes"])) > 1
    table = pd.DataFrame(
        {
            "series": [_series(row, several) for row in rows],
            "workers": [str(row["num_workers"]) for row in rows],
            "batch each": [str(row["batch_size_per_worker"]) for row in rows],
            "batch in all": [str(row["global_batch_size"]) for row in rows],
            "n": [f"{row['n']}" for row in rows],
            "samples/s": [_number(row["samples_per_s"], "{:,.0f}") for row in rows],
            "quartiles": [
                _range(row["samples_per_s_low"], row["samples_per_s_high"], "{:,.0f}")
                for row in rows
            ],
            "first epoch": [_number(row["first_epoch_samples_per_s"], "{:,.0f}") for row in rows],
            "step ms": [_number(row["step_median_s"], "{:.3g}", 1000) for row in rows],
            "step p95 ms": [_number(row["step_p95_s"], "{:.3g}", 1000) for row in rows],
            "speed-up": [
                " ".join(
                    filter(
                        None,
                        [
                            _number(row["speedup"], "{:.2f}"),
                            _in_brackets(row["speedup_low"], row["speedup_high"]),
                        ],
                    )
                )
                for row in rows
            ],
            "efficiency": [_number(row["efficiency"], "{:.0%}") for row in rows],
            "input": [_number(row["input_share"], "{:.0%}") for row in rows],
            "exchange": [_number(row["communication_share"], "{:.0%}") for row in rows],
            "exchanged MB": [
                _number(row["bytes_exchanged_per_step"], "{:.3g}", 1e-6) for row in rows
            ],
            "memory MB": [_number(row["memory_peak_bytes"], "{:,.0f}", 1e-6) for row in rows],
            "GPU": [_number(row["gpu_utilization"], "{:.0%}") for row in rows],
            "even": [_number(row["evenness"], "{:.2f}") for row in rows],
            metric.words: [
                _number(row[metric.name], "{:.1%}" if metric.is_share else "{:.4g}") for row in rows
            ],
            "target after s": [
                _number(row["time_to_target_s"], "{:.2f}") + f" {row['reached']}/{row['tried']}"
                for row in rows
            ],
            "outliers": [str(row["outliers"] or "") for row in rows],
            "failed": [
                f"{row['failed']} {row['failure']}" if row["failed"] else "" for row in rows
            ],
        }
    )
    if not cells["reached"].any():
        del table["target after s"]
    unknown = [name for name in table.columns if table[name].isin(["-", ""]).all()]
    return table.drop(columns=unknown)


def outlier_lines(results: Study) -> list[str]:
    """Return a sentence for every run far off its cell, or with a stall inside it."""
    runs = scaling_runs(results)
    labels = scaling_cells(results).drop_duplicates("cell").set_index("cell")
    lines = []
    for row in runs[runs["is_outlier"]].to_dict("records"):
        cell = labels.loc[row["cell"]]
        rate, usual = row["mean_samples_per_s"], cell["samples_per_s"]
        words = f"{rate:,.0f} samples/s with its stalls, its cell's median step makes {usual:,.0f}"
        if row["is_slow_start"]:
            rate = row["first_epoch_train_samples_per_s"]
            usual = cell["first_epoch_train_samples_per_s"]
            words = f"{rate:,.0f} samples/s in its first epoch, usual in its cell are {usual:,.0f}"
        lines.append(
            f"Outlier: run {row['trial']} ({_cell_words(cell)}): {words}; its longest step took "
            f"{row['longest_step_s']:.3g} s. It stays in the spread; medians bear it."
        )
    return lines


def other_lines(cells: pd.DataFrame) -> list[str]:
    """Return what else is to be known of the cells: failures, missing baselines, more hosts."""
    lines = []
    for row in cells[cells["failed"] > 0].drop_duplicates("cell").to_dict("records"):
        runs = "run" if row["failed"] == 1 else "runs"
        lines.append(f"Failed: {row['failed']} {runs} of {_cell_words(row)} ({row['failure']}).")
    ended = cells[cells["n"] > 0]
    if len(ended) and ended["speedup"].isna().any():
        lines.append(
            "No speed-up where nothing ran on one worker in the same scaling, topology, framework, "
            "workload and dataset."
        )
    for row in on_more_hosts(ended).to_dict("records"):
        lines.append(
            f"Not in the curves: {_cell_words(row)} ran on {row['num_nodes']} hosts, others of "
            "its size on fewer."
        )
    for stop, cold in ended[~ended["is_warm"].astype(bool)].groupby("stop"):
        why = " or ".join(ENDINGS.get(one, one) for one in str(stop).split(", "))
        which = "all cells"
        if len(cold) < len(ended):
            rows = cold.drop_duplicates("cell").to_dict("records")
            which = "; ".join(_cell_words(row) for row in rows)
        lines.append(
            f"No figures of the steady state, but with the first epoch in them: {which}. A run "
            f"ended with it or before it, as {why}."
        )
    larger = ended["global_batch_size"] > ended["epoch_samples"]
    for row in ended[larger].drop_duplicates("cell").to_dict("records"):
        lines.append(
            f"Batch above the dataset: each step of {_cell_words(row)} had the "
            f"{row['epoch_samples']:,.0f} samples of an epoch, not {row['global_batch_size']:,}."
        )
    if len(ended) and not ended["num_steps"].all():
        lines.append(
            "Steps were not timed one by one: quartiles are those of the intervals between "
            "evaluations."
        )
    return lines


def _cell_words(row: Any) -> str:
    return clean(
        f"{row['series']}, {row['num_workers']} x {row['batch_size_per_worker']}"
        + (f" x {row['accumulate']}" if row["accumulate"] > 1 else "")
    )


def _series(row: Any, several: bool) -> str:
    where = f", {row['topology']}" if several else ""
    hosts = f", {row['num_nodes']} hosts" if several and row["num_nodes"] > 1 else ""
    return clean(f"{row['series']}{where}{hosts}")


def _number(value: Any, form: str, times: float = 1.0) -> str:
    return "-" if value is None or math.isnan(value) else form.format(value * times)


def _range(low: float, high: float, form: str) -> str:
    return "-" if math.isnan(low) else f"{form.format(low)} - {form.format(high)}"


def _in_brackets(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"({low:.2f} - {high:.2f})"


def texts(frame: pd.DataFrame, columns: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Return columns of a table as texts: (column, title, format of a number or "")."""
    return pd.DataFrame(
        {
            title: [_number(value, form) if form else clean(str(value)) for value in frame[name]]
            for name, title, form in columns
        }
    )


SCALINGS = {
    "weak": (
        "Each worker keeps its batch (weak scaling)",
        "{batch_size_per_worker:,} samples each",
    ),
    "strong": ("All keep one batch (strong scaling)", "{global_batch_size:,} samples in all"),
}
"""What stays as workers are added, by the kind of scaling, and how large it is."""
HEADLINES = {"weak": "where each keeps its batch", "strong": "where all keep one batch"}
"""The same for a headline."""


def scaling_answer(cells: pd.DataFrame) -> list[str]:
    """Return a sentence on the best speed-up of each kind of scaling; [] where nothing ran on
    several workers and on one."""
    return [_brings(row) for row in best_gains(cells)]


def scaling_headline(cells: pd.DataFrame) -> str:
    """Return the same in one short sentence; "" where there is none."""
    words, counted = [], None
    for row in best_gains(cells):
        number = row["num_workers"]
        gain = f"{row['speedup']:.2f} times"
        if number != counted:
            gain = f"{number} workers train {gain} as fast as the best single one"
        doubt = " (by the repeats perhaps no gain)" if _is_open(row) else ""
        words.append(f"{gain} {HEADLINES[row['scaling']]}{doubt}")
        counted = number
    return f"{', '.join(words)}." if words else ""


def best_gains(cells: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the cell of the best speed-up of each kind of scaling, weak before strong."""
    known = cells[(cells["n"] > 0) & (cells["num_workers"] > 1) & cells["speedup"].notna()]
    best = known.sort_values("speedup", ascending=False, kind="stable")
    rows = best.drop_duplicates("scaling").to_dict("records")
    return [row for name in SCALINGS for row in rows if row["scaling"] == name]


def _is_open(row: dict[Any, Any]) -> bool:
    """Whether the repeats leave it open that there is a gain; NaN of a single one does not."""
    return bool(row["speedup_low"] <= 1 <= row["speedup_high"])


def _brings(row: dict[Any, Any]) -> str:
    head, batch = SCALINGS[row["scaling"]]
    low, high = row["speedup_low"], row["speedup_high"]
    doubt = ", so it may be no gain" if _is_open(row) else ""
    spread = "" if math.isnan(low) else f" ({low:.2f} to {high:.2f} over repeats{doubt})"
    return (
        f"{head}: {row['num_workers']} workers train {row['speedup']:.2f} times the samples a "
        f"second of the best single one{spread}; efficiency "
        f"{100 * row['efficiency']:.0f} % ({clean(row['series'])}, {batch.format(**row)})."
    )
