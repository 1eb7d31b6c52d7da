"""Claim: every part of the search pays, and its constants are not fitted to the tables.

The search of `anytime.py` (same tables, clock and measure), with one part left out or one constant
of the curve model changed at a time. For each change: the geometric mean over tables and seeds of
the incumbent's ratio after 8, 12 and 20 best times, over that of the search as shipped. Below 1 the
search is better with the change.

Leave one table out: on each table, the change that is best on the other tables is applied. If that
is no better than the constants as shipped, they are not fitted to the tables.

    python benchmarks/search/search_ablation.py [--seeds 200:204] [--jobs 2] [--tables ...]

A quarter of an hour a seed on two quiet cores. Writes results/search_ablation.md after every seed;
has no bar.
"""

import argparse
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from anytime import TIMES, Row, replay_one
from recorded import NAMES
from registry import OURS, TPE, VARIANTS

from benchmarks.output import write_results

RESULTS = Path(__file__).parents[1] / "results"
LIMIT = 20.5
"""Length of a search, in best times to target."""
MOMENTS = (8, 12, 20)
SHIPPED = "as shipped"
PARTS = (
    "raybench, workers sampled",
    "raybench, no priors",
    "raybench, no cap",
    "raybench, no stops",
    TPE,
    "raybench, random",
)
CONSTANTS: dict[str, tuple[Any, ...]] = {
    "num_first": (4, 16),
    "explore": (0.8, 3.0),
    "most_runs": (1, 8),
    "stop": (1.0, 2.2),
    "stop_early": (0.7, 1.5),
    "rate_width": (1.1, 4.4),
    "batch_slope": (0.0, 0.6),
    "model.seed_sd": (0.1, 0.4),
    "model.shape_sd": (0.25, 1.0),
    "model.correlation": (0.0, 0.6),
    "model.fit": (0.0, 1.0),
    "model.missed": (1.0, 3.0),
    "model.ceiling": (2.5, 8.0),
}
"""Values below and above the shipped one, by constant of `CurvePolicy` and `ModelSettings`."""


def changes() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return contestant and options of every change, by the change's name."""
    contestants: dict[str, tuple[str, dict[str, Any]]] = {SHIPPED: (OURS, {})}
    contestants |= {name: (name, {}) for name in PARTS}
    for key, values in CONSTANTS.items():
        part, _, name = key.rpartition(".")
        for value in values:
            policy = {part: {name: value}} if part else {name: value}
            contestants[f"{key} {value:g}"] = OURS, {"curve_policy": policy}
    return contestants


def logs_of(rows: list[Row], table: str) -> np.ndarray:
    """Return the mean log of the ratios on a table, shape [len(MOMENTS)]."""
    at = [TIMES.index(moment) for moment in MOMENTS]
    own = [np.log(row["held"])[at] for row in rows if row["table"] == table]
    return np.asarray(np.mean(own, axis=0))


def left_out(logs: dict[str, dict[str, np.ndarray]], tables: list[str]) -> list[tuple[str, str]]:
    """Return each table with the change that is best on the other tables."""
    changes_by_table = []
    for table in tables:
        others = [other for other in tables if other != table]
        best = min(logs, key=lambda name: sum(float(logs[name][one].mean()) for one in others))
        changes_by_table.append((table, best))
    return changes_by_table


def main() -> int:
    """Run the searches and print the table."""
    assert __doc__ is not None
    assert set(PARTS) <= set(VARIANTS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="*", default=list(NAMES))
    parser.add_argument("--seeds", default="200:204", help="FIRST:END, END excluded")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    named, rows = changes(), dict[str, list[Row]]()
    jobs = [
        (name, (table, contestant, seed, 0.0, LIMIT, given))
        for seed in range(first, last)
        for name, (contestant, given) in named.items()
        for table in options.tables
    ]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        found = pool.imap(replay_one, [job for _, job in jobs])
        for number, ((name, _), row) in enumerate(zip(jobs, found, strict=True), 1):
            rows.setdefault(name, []).append(row)
            print(f"{number} of {len(jobs)}", file=sys.stderr, flush=True)
            if number % (len(named) * len(options.tables)) == 0:  # after every seed
                write(rows, options, number // (len(named) * len(options.tables)))
    return 0


def write(rows: dict[str, list[Row]], options: argparse.Namespace, num_seeds: int) -> None:
    """Write and print the results of the seeds so far."""
    logs = {name: {one: logs_of(own, one) for one in options.tables} for name, own in rows.items()}
    lines = [f"| change | {' | '.join(map(str, MOMENTS))} | all |", "|---" * 5 + "|"]
    means = {name: np.mean(list(of.values()), axis=0) for name, of in logs.items()}
    for name, mean in means.items():
        ratio = np.exp(mean - means[SHIPPED])
        if name == SHIPPED:
            ratio = np.exp(mean)
        shown = " | ".join(f"{one:.2f}" for one in [*ratio, np.exp(np.log(ratio).mean())])
        lines.append(f"| {name} | {shown} |")
    constants = {name: of for name, of in logs.items() if name not in PARTS}
    lines += ["", "| table left out | best change on the others | held there, over shipped |"]
    lines.append("|---|---|---|")
    total = []
    for table, best in left_out(constants, options.tables):
        total.append(float((logs[best][table] - logs[SHIPPED][table]).mean()))
        lines.append(f"| {table} | {best} | {np.exp(total[-1]):.2f} |")
    lines += ["", f"Geometric mean of the last column: {np.exp(np.mean(total)):.2f}."]
    about = (
        f"First row: incumbent over the best; other rows: over the first row. {num_seeds} seeds "
        f"from {options.seeds.split(':')[0]}, CPU not charged."
    )
    options.out.mkdir(exist_ok=True)
    title = "What each part and constant of the search is worth"
    write_results(options.out / "search_ablation.md", title, about, lines)


if __name__ == "__main__":
    sys.exit(main())
