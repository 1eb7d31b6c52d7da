"""Claim: a search that is killed and resumed ten times finds as much as an undisturbed one.

The searches of `anytime.py` (same tables, clock and measure), undisturbed and with ten kills at
equal intervals. A kill ends all running trials; the next session has only the records and the
journal, as after `kill -9` of the driver, and continues trials from their last evaluation. Starting
Ray again takes no time here.

    python benchmarks/search/resumed.py [--seeds 100:110] [--jobs 2] [--tables ...]

Bar: found after 20 best times, geometric mean over tables and seeds, at most 3 % above that of the
undisturbed searches. Ten minutes on two cores. Writes results/resumed.md; exit 1 above the bar.
"""

import argparse
import math
import multiprocessing
import os
import tempfile
from pathlib import Path

import numpy as np
from anytime import NOTHING, TIMES, held_at, load_task
from recorded import NAMES
from registry import OURS, make
from replay import search

from benchmarks.output import write_results

RESULTS = Path(__file__).parents[1] / "results"
LIMIT = 20.5
NUM_KILLS = 10
BAR = 1.03
MOMENT = 20
Job = tuple[str, int, bool]


def replay_one(job: Job) -> list[float]:
    """Run one search; return the log of its incumbent's ratio at each of TIMES."""
    table, seed, is_killed = job
    task = load_task(table)
    kills = [LIMIT * (at + 1) / (NUM_KILLS + 1) for at in range(NUM_KILLS)] if is_killed else []
    with tempfile.TemporaryDirectory() as folder:
        result = search(
            task,
            make(OURS, task, seed, Path(folder)),
            rng=np.random.default_rng(seed),
            charge=0.0,
            max_trials=10**9,
            until=-math.inf,
            limit=LIMIT,
            kills=kills,
        )
    return [math.log(min(held_at(result["held"], moment)[0], NOTHING)) for moment in TIMES]


def main() -> int:
    """Run the benchmark; return the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="*", default=list(NAMES))
    parser.add_argument("--seeds", default="100:110", help="FIRST:END, END excluded")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    pairs = [(table, seed) for table in options.tables for seed in range(first, last)]
    jobs = [(*pair, is_killed) for pair in pairs for is_killed in (False, True)]
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        logs = np.array(pool.map(replay_one, jobs, chunksize=1)).reshape(len(pairs), 2, len(TIMES))
    at = [TIMES.index(moment) for moment in TIMES if moment <= LIMIT]
    times = [TIMES[one] for one in at]
    lines = [f"| found over the best after | {' | '.join(map(str, times))} |"]
    lines.append("|---" * (len(times) + 1) + "|")
    groups = {table: [pair[0] == table for pair in pairs] for table in options.tables}
    for what, rows in {**groups, "all": [True] * len(pairs)}.items():
        for row, name in enumerate(("undisturbed", "killed")):
            means = np.exp(logs[rows, row].mean(axis=0))[at]
            lines.append(f"| {what}, {name} | {' | '.join(f'{one:.2f}' for one in means)} |")
    differences = (logs[:, 1] - logs[:, 0])[:, TIMES.index(MOMENT)]
    ratio = float(np.exp(differences.mean()))
    error = float(differences.std(ddof=1) / math.sqrt(len(differences)))
    is_met = ratio <= BAR
    about = f"Seeds {options.seeds} of {len(options.tables)} tables, CPU not charged."
    verdict = (
        f"- {'met' if is_met else 'MISSED'}: after {MOMENT} best times {ratio:.3f} times that of "
        f"the undisturbed (standard error of the log {error:.3f}; bar {BAR})"
    )
    lines += ["", verdict]
    write_results(options.out / "resumed.md", "A search killed and resumed", about, lines)
    return int(not is_met)


if __name__ == "__main__":
    raise SystemExit(main())
