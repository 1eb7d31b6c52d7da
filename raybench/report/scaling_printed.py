"""Tables and sentences about a scaling study for a terminal. A cell is a run spec with its
repeats."""

import math
from typing import Any

import pandas as pd
from rich.console import Console

from raybench.report.console import print_frame, texts, value_form, without_unknown
from raybench.report.words import ENDINGS
from raybench.results.study import Study
from raybench.scaling.cells import on_more_hosts, scaling_cells, scaling_runs
from raybench.scaling.shares import FEWEST_MEASURED, RankRows, rank_rows, slow_ranks
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.text import clean, counted

TITLES = {
    "weak": "Weak scaling: constant batch per worker",
    "strong": "Strong scaling: constant global batch",
}
DROPPED = (
    *("exchanged MB", "memory MB", "TFLOP/s", "even", "n", "first epoch", "input", "step p95 ms"),
    *("quartiles", "tokens/s"),
)
"""Columns that are dropped on a narrow terminal, in this order."""
BELOW = (
    "samples/s: of the median step after the first epoch (if a run had several), median of the "
    "repeats; speed-up: relative to the best single worker of the same kind, in brackets the least "
    "and the greatest of the repeats; efficiency: speed-up divided by the number of workers; first "
    "epoch: includes compilation"
)


CELLS = {
    "workers": "{num_workers}",
    "batch each": "{batch_size_per_worker}",
    "batch in all": "{global_batch_size}",
    "n": "{n}",
    "samples/s": "{samples_per_s:,.0f}",
    "quartiles": "{samples_per_s_low:,.0f} - {samples_per_s_high:,.0f}",
    "first epoch": "{first_epoch_samples_per_s:,.0f}",
    "step ms": "{step_ms:.3g}",
    "step p95 ms": "{step_p95_ms:.3g}",
    "speed-up": "{speedup:.2f} ({speedup_low:.2f} - {speedup_high:.2f})",
    "efficiency": "{efficiency:.0%}",
    "input": "{input_share:.0%}",
    "exchange": "{communication_share:.0%}",
    "exchanged MB": "{exchanged_mb:.3g}",
    "memory MB": "{memory_mb:,.0f}",
    "GPU": "{gpu_utilization:.0%}",
    "tokens/s": "{tokens_per_s:,.0f}",
    "TFLOP/s": "{tflops:.3g}",
    "MFU": "{mfu:.0%}",
    "even": "{evenness:.2f}",
}
"""Formats of the columns of the table of cells, keyed by title."""


UNITS = {
    "step_ms": ("step_median_s", 1e-3),
    "step_p95_ms": ("step_p95_s", 1e-3),
    "exchanged_mb": ("bytes_exchanged_per_step", 1e6),
    "memory_mb": ("memory_peak_bytes", 1e6),
    "tflops": ("flops_per_s", 1e12),
}
"""Values that are printed in another unit: pairs (column, divisor), keyed by the name that the
formats of CELLS use."""
NAMES = (*CELLS, *UNITS, "series", "outliers", "failed", "target after s")
"""Names that a metric of a scaling study cannot have, since columns or formats use them."""


def print_cells(console: Console, cells: pd.DataFrame, *, metric: Metric = ACCURACY) -> None:
    """Print one table of cells (run specs) for each kind of scaling, weak and strong."""
    kinds = [scaling for scaling in TITLES if cells["scaling"].eq(scaling).any()]
    for scaling in kinds:
        table = printed_cells(cells[cells["scaling"] == scaling], metric=metric)
        drop = (*DROPPED, metric.words, "outliers")
        below = BELOW if scaling == kinds[-1] else ""
        print_frame(console, table, TITLES[scaling], drop=drop, below=below)


def printed_cells(cells: pd.DataFrame, *, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Format cells (run specs) as a table of strings without empty columns."""
    order = ["series", "topology", "batch_size_per_worker", "num_workers"]
    cells = cells.sort_values(order, kind="stable").assign(
        **{name: cells[column].astype(float) / unit for name, (column, unit) in UNITS.items()}
    )
    several = len(set(cells["topology"])) > 1 or len(set(cells["num_nodes"])) > 1
    forms = CELLS | {metric.words: value_form(metric, metric.name)}
    if cells["reached"].any():
        forms["target after s"] = "{time_to_target_s:s} {reached}/{tried}"

    def series(row: dict[Any, Any]) -> str:
        topology = f", {row['topology']}" if several else ""
        hosts = f", {row['num_nodes']} hosts" if several and row["num_nodes"] > 1 else ""
        return clean(f"{row['series']}{topology}{hosts}")

    rows, table = cells.to_dict("records"), texts(cells, forms)
    table.insert(0, "series", [series(row) for row in rows])
    table["outliers"] = [str(row["outliers"] or "") for row in rows]
    failed = [f"{row['failed']} {row['failure']}" if row["failed"] else "" for row in rows]
    return without_unknown(table.assign(failed=failed))


def outlier_lines(results: Study) -> list[str]:
    """Return one sentence for each run that stalled, or that is far from the median of its cell."""
    runs = scaling_runs(results)
    labels = scaling_cells(results).drop_duplicates("cell").set_index("cell")
    lines = []
    for row in runs[runs["is_outlier"]].to_dict("records"):
        cell = labels.loc[row["cell"]]
        lines.append(
            f"Outlier: run {row['trial']} ({_cell_words(cell)}), whose longest step took "
            f"{row['longest_step_s']:.3g} s. It is part of the spread; medians are robust to it."
        )
    return lines


def other_lines(cells: pd.DataFrame) -> list[str]:
    """Return sentences about failures, missing runs on one worker, cells on more hosts than others,
    cells whose runs did not go beyond the first epoch, and batches larger than the dataset."""
    lines = []
    for row in cells[cells["failed"] > 0].drop_duplicates("cell").to_dict("records"):
        runs = counted(row["failed"], "run")
        lines.append(f"Failed: {runs} of {_cell_words(row)} ({row['failure']}).")
    ended = cells[cells["n"] > 0]
    if len(ended) and ended["speedup"].isna().any():
        lines.append(
            "No speed-up without a run on one worker of the same scaling, topology, framework, "
            "workload and dataset."
        )
    for row in on_more_hosts(ended).to_dict("records"):
        lines.append(
            f"Not in the curves: {_cell_words(row)} ran on {row['num_nodes']} hosts, others of "
            "its size on fewer."
        )
    for stop, cold in ended[~ended["is_warm"].astype(bool)].groupby("stop"):
        reasons = " or ".join(ENDINGS.get(ending, ending) for ending in str(stop).split(", "))
        cells_text = "; ".join(map(_cell_words, cold.drop_duplicates("cell").to_dict("records")))
        cells_text = cells_text if len(cold) < len(ended) else "all cells"
        lines.append(
            f"Samples/s include the first epoch: {cells_text}. No run went beyond that epoch, "
            f"because {reasons}."
        )
    larger = ended["global_batch_size"] > ended["epoch_samples"]
    for row in ended[larger].drop_duplicates("cell").to_dict("records"):
        lines.append(
            f"Batch larger than the dataset: each step of {_cell_words(row)} used the "
            f"{row['epoch_samples']:,.0f} samples of an epoch, not {row['global_batch_size']:,}."
        )
    return lines


def straggler_lines(results: Study) -> list[str]:
    """Return sentences about workers that are slower than the others."""
    rows_by_places: dict[tuple[str, ...], RankRows] = {}
    # Runs without gradient exchange override the others, since no worker waits for another in them.
    for exchanges in (True, False):
        measured: dict[tuple[str, ...], RankRows] = {}
        for name, run in results.runs.items():
            if run.spec.exchange_gradients != exchanges:
                continue
            for kind, rows in rank_rows(results.evaluations.get(name, ()), run.spec).items():
                measured.setdefault(tuple(run.places), {}).setdefault(kind, []).extend(rows)
        rows_by_places |= {
            places: rows
            for places, rows in measured.items()
            if len(rows["input"]) >= FEWEST_MEASURED
        }
    return [
        straggler.sentence
        for places, rows in rows_by_places.items()
        for straggler in slow_ranks(rows, places)
    ]


def _cell_words(row: Any) -> str:
    return clean(
        f"{row['series']}, {row['num_workers']} x {row['batch_size_per_worker']}"
        + (f" x {row['accumulate']}" if row["accumulate"] > 1 else "")
    )


SCALINGS = {
    "weak": (
        "Each worker keeps its batch (weak scaling)",
        "{batch_size_per_worker:,} samples each",
    ),
    "strong": ("All keep one batch (strong scaling)", "{global_batch_size:,} samples in all"),
}
"""Pairs (beginning of the sentence of `scaling_answer`, format of the constant batch size), keyed
by kind of scaling."""


def scaling_answer(cells: pd.DataFrame) -> list[str]:
    """Return one sentence about the best speed-up with each kind of scaling, weak and strong; [] if
    no speed-up on several workers is known."""
    with_speedup = cells[(cells["n"] > 0) & (cells["num_workers"] > 1) & cells["speedup"].notna()]
    with_speedup = with_speedup.sort_values("speedup", ascending=False, kind="stable")
    best = with_speedup.drop_duplicates("scaling").to_dict("records")
    return [_speedup_sentence(row) for name in SCALINGS for row in best if row["scaling"] == name]


def _speedup_sentence(row: dict[Any, Any]) -> str:
    head, batch = SCALINGS[row["scaling"]]
    low, high = row["speedup_low"], row["speedup_high"]
    doubt = ", so it may be no gain" if low <= 1 <= high else ""
    spread = "" if math.isnan(low) else f" ({low:.2f} to {high:.2f} in the repeats{doubt})"
    return (
        f"{head}: {row['num_workers']} workers train {row['speedup']:.2f} times the samples per "
        f"second of the best single worker{spread}; efficiency "
        f"{100 * row['efficiency']:.0f} % ({clean(row['series'])}, {batch.format(**row)})."
    )
