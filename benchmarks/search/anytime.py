"""Claim: at any time, the configuration that raybench's search holds is near the best one.

Six recorded tables are replayed by chance in eight slots, as in `search_table.py`. Measured is the
true time to target of the incumbent over the best one, after several multiples of the best time to
target; without an incumbent, or above it, `NOTHING`. There are two true times: that of the mean
curve over seeds, which is infinite if the mean misses the target, even if some seeds reach it; and
the expected running time over the recorded seeds, which a study reports. CPU seconds of the search
do not count on the clock (`--charge 1` counts them).

    python benchmarks/search/anytime.py [--contestants NAME ...] [--seeds 100:120] [--jobs 2]

Bars of the default sampler by the mean curve: geometric means over tables and seeds of at most 1.6,
1.25, 1.1 and 1.05 after 8, 12, 20 and 30 best times, and of at most 1.25 on each table after 20.
Writes results/anytime.md; exit 1 above a bar. An hour on two cores.
"""

import argparse
import logging
import math
import multiprocessing
import os
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from recorded import NAMES, Config, Table, Task
from registry import OURS, make
from replay import search

from benchmarks.output import write_results

TIMES = (3, 5, 8, 12, 20, 30, 50)
"""Times at which the incumbent is recorded, in best times to target."""
NOTHING = 8.0
"""Largest ratio that counts, also without an incumbent."""
RESULTS = Path(__file__).parents[1] / "results"
NEAR = 1.05
BARS = {8: 1.6, 12: 1.25, 20: 1.1, 30: 1.05}
TABLE_BAR = (20, 1.25)
Row = dict[str, Any]
Job = tuple[str, str, int, float, float, dict[str, Any]]
"""Table, contestant, seed, charge, limit, options of the contestant."""


@cache
def load_task(table: str) -> Task:
    """Load a table once in every process."""
    return Task(Table(table))


def replay_one(job: Job) -> Row:
    """Run one search; return its row: the ratio of its incumbent at each of TIMES."""
    import optuna

    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.disable(logging.WARNING)
    table, name, seed, charge, limit, options = job
    task = load_task(table)
    with tempfile.TemporaryDirectory() as folder:
        contestant = make(name, task, seed, Path(folder), **options)
        result = search(
            task,
            contestant,
            rng=np.random.default_rng(seed),
            charge=charge,
            max_trials=10**9,
            until=-math.inf,
            limit=limit,
        )
    held = [held_at(result["held"], moment) for moment in TIMES]
    return {
        "table": table,
        "contestant": name,
        "seed": seed,
        "held": [min(ratio, NOTHING) for ratio, _ in held],
        "expected": [min(expected_of(task, config), NOTHING) for _, config in held],
        "trials": result["trials"],
        "cpu_s": result["cpu_s"],
    }


def held_at(
    course: list[tuple[float, float, Config | None]], moment: float
) -> tuple[float, Config | None]:
    """Return ratio and configuration of the incumbent at a moment."""
    before = [(ratio, config) for clock, ratio, config in course if clock <= moment]
    return before[-1] if before else (math.inf, None)


def expected_of(task: Task, config: Config | None) -> float:
    """Return the expected running time of a configuration over the least one."""
    return math.inf if config is None else task.expected_s(config) / task.least_expected_s


def mean_of(rows: list[Row], kind: str = "held") -> np.ndarray:
    """Return the geometric mean of the ratios, shape [len(TIMES)]."""
    return np.asarray(np.exp(np.log([row[kind] for row in rows]).mean(axis=0)))


def line_of(label: str, rows: list[Row], kind: str = "held") -> str:
    """Return one line of the table."""
    means = " | ".join(f"{one:.2f}" for one in mean_of(rows, kind))
    near = (np.array([row[kind] for row in rows]) <= NEAR).mean(axis=0)
    cpu = np.mean([1000 * row["cpu_s"] / row["trials"] for row in rows])
    shares = " | ".join(f"{one:.0%}" for one in near)
    return f"| {label} | {means} | {shares} | {cpu:.0f} |"


def table_of(rows: list[Row], options: argparse.Namespace, kind: str) -> list[str]:
    """Return the lines of the table of ratios `kind`."""
    times = " | ".join(map(str, TIMES))
    lines = [f"| | {times} | <= 5 %: {times} | CPU ms a trial |", "|---" * 16 + "|"]
    for name in options.contestants:
        own = [row for row in rows if row["contestant"] == name]
        for table in options.tables:
            of_table = [row for row in own if row["table"] == table]
            lines.append(line_of(f"{name}, {table}", of_table, kind))
        lines.append(line_of(f"{name}, all", own, kind))
    return lines


def bars(rows: list[Row]) -> list[tuple[str, float, float]]:
    """Return label, value and bar of each bar."""
    means = dict(zip(TIMES, mean_of(rows), strict=True))
    values = [(f"all, {at} best times", float(means[at]), bar) for at, bar in BARS.items()]
    for table in dict.fromkeys(row["table"] for row in rows):
        own = mean_of([row for row in rows if row["table"] == table])
        moment, bar = TABLE_BAR
        values.append((f"{table}, {moment}", float(own[TIMES.index(moment)]), bar))
    return values


def main() -> int:
    """Run the benchmark; return the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="*", default=list(NAMES))
    parser.add_argument("--contestants", nargs="*", default=[OURS])
    parser.add_argument("--seeds", default="100:120", help="FIRST:END, END excluded")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--limit", type=float, default=52.0, help="length of a search, in best times"
    )
    parser.add_argument("--charge", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    jobs: list[Job] = [
        (table, name, seed, options.charge, options.limit, {})
        for name in options.contestants
        for seed in range(first, last)
        for table in options.tables
    ]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        rows = []
        for row in pool.imap_unordered(replay_one, jobs):
            rows.append(row)
            print(f"{len(rows)} of {len(jobs)}", file=sys.stderr, flush=True)
    lines = ["## By the mean curve", "", *table_of(rows, options, "held"), ""]
    lines += ["## By the expected running time", "", *table_of(rows, options, "expected"), ""]
    held = bars([row for row in rows if row["contestant"] == OURS])
    for label, value, bar in held:
        lines.append(f"- {'met' if value <= bar else 'MISSED'}: {label}: {value:.2f} (bar {bar})")
    about = (
        f"Seeds {options.seeds}, until {options.limit:g} best times, CPU charged "
        f"{options.charge:g} times."
    )
    write_results(options.out / "anytime.md", "What a search holds at any time", about, lines)
    return int(any(value > bar for _, value, bar in held))


if __name__ == "__main__":
    raise SystemExit(main())
