"""Claim: raybench's search finds the fastest configuration sooner than other search tools.

Recorded tables (`record_table.py`: optimizer, learning rate, global batch; step times of one and
two workers, extrapolated to eight) are replayed on a simulated clock with eight slots. Every tool
is its own library's code (`peer_ray.py`, `peer_optuna.py`, ...) and gets the same score. Measured
is the simulated time, in multiples of the best configuration's time to target, until the true time
to target of the tool's incumbent is within 5 % (and 20, 10, 1 %) of the best one. A tool's CPU
seconds count on that clock: as measured, or with `--charge 0.01` as if all trainings were a hundred
times as long.

Every table is replayed twice: with the mean of its seeds, so that repeated trials are equal, and
"by chance": every trial draws one of its recorded seeds. True times are those of the mean curve in
both.

By chance, every tool, raybench's search too, holds a configuration that was lucky in a single run;
a study then continues with a race. "raybench, then its race" searches for as many trials as the
default study, races in the same slots, and then holds the configuration that the race names.

Bars, on the geometric mean over tables of a tool's median over raybench's (`--margin`, 5 %): stock
Ray by seconds >= 2.5, Syne Tune's best >= 2.5, Optuna alone >= 3, random >= 20; and every search of
raybench gets there. A search ends after 400 best times to target or 600 trials; one that has not
got there counts with the time at which it ended, which favors the tool.

    python benchmarks/search/search_table.py [--tables mnist_conv ...] [--seeds 20] [--jobs 2]

Syne Tune comes with `pip install 'raybench[benchmarks]'`. Contestants whose library is not
installed are named at the start and left out, with the bar that compares with them. Twelve minutes
on two cores without Syne Tune's BORE and CQR, alone or in ASHA: these take up to half a second of
CPU for every suggestion, and 90 minutes with `--limit 60`. `--contestants` runs some of them,
`--add FILE.json` joins earlier results. Writes results/search_table.{md,json} with losses and wins;
exit 1 below a bar, 2 if no contestant is installed.
"""

import argparse
import json
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
from noisy import race
from recorded import NAMES, TABLES, Table, Task
from registry import CONTESTANTS, OURS, RACED, REGISTRY, SEARCHED, make, needs
from replay import LIMIT, MARGINS, MAX_TRIALS, search

from benchmarks import installed
from raybench.results.store import machine, versions
from raybench.stats.standing import stages

BARS = (
    ("stock Ray by seconds", "Ray, ASHA by seconds", 2.5),
    ("Syne Tune's best", "Syne Tune", 2.5),
    ("Optuna alone", "Optuna", 3.0),
    ("random", "random", 20.0),
)
"""Label, contestant (or the beginning of several names: the best of these in each table), ratio."""
RACED_BAR = 3.0
RACE_RUNS = 24
"""Runs of the race, as in the default study."""
BY_CHANCE = ", by chance"
"""Suffix of a table's name if every trial draws one of its recorded seeds."""
SEEDS = {"mean": ("",), "chance": (BY_CHANCE,), "both": ("", BY_CHANCE)}
Row = dict[str, Any]
"""A search: table, contestant, seed, time until it was within each margin, clock, CPU seconds and
number of trials."""
Job = tuple[str, str, int, argparse.Namespace]
Cells = dict[tuple[str, str], dict[str, Any]]
"""Summary of a contestant's searches, by table and contestant."""
Bar = tuple[str, float, float, bool]
"""Label, value, bar, and whether it is met."""


def key_of(margin: float) -> str:
    """Return the key of the time within a margin."""
    return f"within_{round(100 * margin)}"


@cache
def load_task(table: str, folder: Path, target: float | None) -> Task:
    """Load a table once in every process."""
    return Task(Table(table.removesuffix(BY_CHANCE), folder), target)


def replay_one(job: Job) -> Row:
    """Run one search in this process."""
    import optuna

    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.disable(logging.WARNING)
    table, name, seed, options = job
    task = load_task(table, options.folder, options.targets.get(table))
    rng = np.random.default_rng(seed) if table.endswith(BY_CHANCE) else None
    with tempfile.TemporaryDirectory() as folder:
        contestant = make(name, task, seed, Path(folder))
        is_raced = name == RACED
        result = search(
            task,
            contestant,
            rng=rng,
            charge=options.charge,
            max_trials=SEARCHED if is_raced else options.trials,
            until=math.inf if is_raced else min(MARGINS),  # the race begins when the search ends
            limit=options.limit,
        )
        if is_raced:
            add_race(task, contestant, result, None if rng is None else seed)
    within, _ = result.pop("within"), result.pop("held")
    times = {key_of(margin): time for margin, time in within.items()}
    return {"table": table, "contestant": name, "seed": seed, **times, **result}


def add_race(task: Task, contestant: Any, result: dict[str, Any], seed: int | None) -> None:
    """Race the best configurations of a search; afterwards the search holds the race's winner."""
    if not (leaders := contestant.candidates()):
        return
    raced = race(task, leaders, stages(RACE_RUNS), seed=seed)
    result["clock"] += raced.wall_s / task.best_s
    for margin, since in result["within"].items():
        if math.isinf(since) and task.tta(raced.winner) <= (1 + margin) * task.best_s:
            result["within"][margin] = result["clock"]


def raced_lines(cells: Cells, margin: float) -> list[str]:
    """Compare every peer with raybench's search and race, on the tables by chance."""
    key = key_of(margin)
    tables = [table for table, name in cells if name == RACED and table.endswith(BY_CHANCE)]
    if not tables:  # --runs mean
        return []
    own = {table: cells[table, RACED][key] for table in tables}
    gains = {}
    for peer in dict.fromkeys(name for _, name in cells if not name.startswith(OURS)):
        if all((table, peer) in cells for table in tables):
            medians = [cells[table, peer][key]["median"] / own[table]["median"] for table in tables]
            gains[peer] = geometric_mean(medians)
    if not gains:
        return []
    best = min(gains, key=lambda peer: gains[peer])
    never = max(cell["never"] for cell in own.values())
    return [
        f"- by chance, {peer} over {RACED}: {gain:.2f}"
        + (
            f", the best peer (bar {RACED_BAR:g}) {'met' if gain >= RACED_BAR else 'BELOW'}"
            if peer == best
            else ""
        )
        for peer, gain in sorted(gains.items(), key=lambda item: item[1])
    ] + [f"- {RACED}, never: {never:.0%} (bar 0 %) {'met' if never == 0 else 'BELOW'}"]


def summary(rows: list[Row]) -> dict[str, Any]:
    """Return median, mean, quartiles and share of misses of a contestant's searches on a table."""
    content: dict[str, Any] = {"n": len(rows)}
    for key in (key_of(margin) for margin in MARGINS):
        times = np.array([min(row[key], row["clock"]) for row in rows])
        low, median, high = np.percentile(times, [25, 50, 75])
        content[key] = {
            "median": float(median),
            "mean": float(times.mean()),
            "low": float(low),
            "high": float(high),
            "never": float(np.mean([math.isinf(row[key]) for row in rows])),
        }
    content["cpu_s"] = float(np.mean([row["cpu_s"] for row in rows]))
    content["trials"] = float(np.mean([row["trials"] for row in rows]))
    return content


def summaries(rows: list[Row]) -> Cells:
    """Summarise every table and contestant, in the order of the rows."""
    keys = dict.fromkeys((row["table"], row["contestant"]) for row in rows)
    return {
        key: summary([row for row in rows if (row["table"], row["contestant"]) == key])
        for key in keys
    }


def ratios(cells: Cells, beginning: str, key: str) -> list[float]:
    """Return the median of the best contestant of that name over raybench's, for each table."""
    names = [n for n in CONTESTANTS if n == beginning] or [
        n for n in CONTESTANTS if n.startswith(beginning)
    ]
    values = []
    for table in dict.fromkeys(table for table, _ in cells):
        medians = [cells[table, n][key]["median"] for n in names if (table, n) in cells]
        if medians and (table, OURS) in cells:
            values.append(min(medians) / cells[table, OURS][key]["median"])
    return values


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean; not a number for no values."""
    if not values:
        return math.nan
    return math.exp(sum(math.log(value) for value in values) / len(values))


def table_lines(tasks: dict[str, Task], cells: Cells, margin: float) -> list[str]:
    """Return the lines that describe every table and the search times of its contestants."""
    columns = ("contestant", *2 * ("within {}", "mean", "never"), "CPU s", "trials")
    lines = []
    for table, task in tasks.items():
        c = task.best_config
        lines += [
            f"{table}: target {task.target:.1%}, best {task.best_s:.3f} s ({c.optimizer}, rate "
            f"{c.rate:g}, {c.num_workers} x {c.batch_size_per_worker}); of "
            f"{len(task.table.configs())} configurations "
            + ", ".join(f"{task.close_configs(m)} within {m:.0%}" for m in MARGINS),
            "",
            f"| {' | '.join(columns)} |".format(f"{margin:.0%}", f"{MARGINS[-1]:.0%}"),
            "|---" * len(columns) + "|",
        ]
        for (where, name), cell in cells.items():
            if where == table:
                near = " | ".join(
                    f"{'> ' * (v['never'] >= 0.5)}{v['median']:.1f} ({v['low']:.1f} - "
                    f"{v['high']:.1f}) | {v['mean']:.1f} | {v['never']:.0%}"
                    for v in (cell[key_of(margin)], cell[key_of(MARGINS[-1])])
                )
                lines.append(f"| {name} | {near} | {cell['cpu_s']:.2f} | {cell['trials']:.0f} |")
        lines.append("")
    return lines


def ratio_lines(cells: Cells, margin: float) -> tuple[list[str], list[Bar]]:
    """Compare every contestant with raybench over the tables; return the lines and the bars."""
    heads = " | ".join(f"within {m:.0%}" for m in MARGINS)
    lines = [f"| times raybench's median | {heads} |", "|---" * (len(MARGINS) + 1) + "|"]
    for name in dict.fromkeys(name for _, name in cells if name in CONTESTANTS):
        means = [geometric_mean(ratios(cells, name, key_of(m))) for m in MARGINS]
        lines.append(f"| {name} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    lines.append("")
    bars: list[Bar] = []
    for label, beginning, bar in BARS:
        if values := ratios(cells, beginning, key_of(margin)):
            bars.append((label, geometric_mean(values), bar, geometric_mean(values) >= bar))
        else:
            lines.append(f"- {label}: not compared (bar {bar:g})")
    never = max(cell[key_of(margin)]["never"] for (_, name), cell in cells.items() if name == OURS)
    bars.append(("raybench never", never, 0.0, never == 0))
    lines += [
        f"- {label}: {value:.2f} (bar {bar:g}) {'met' if is_met else 'BELOW'}"
        for label, value, bar, is_met in bars
    ]
    return [*lines, ""], bars


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=NAMES)
    parser.add_argument("--targets", nargs="*", default=[], metavar="TABLE=ACCURACY")
    parser.add_argument("--contestants", nargs="+", choices=REGISTRY)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--margin", type=float, choices=MARGINS, default=0.05, help="margin of the bars"
    )
    parser.add_argument(
        "--runs",
        choices=SEEDS,
        default="both",
        help="mean: the mean of the seeds; chance: every trial draws one",
    )
    parser.add_argument(
        "--charge", type=float, default=1.0, help="factor on the CPU seconds of tools"
    )
    parser.add_argument(
        "--trials", type=int, default=MAX_TRIALS, help="maximum number of trials of a search"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="maximum length of a search, in best times"
    )
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], help="earlier results (JSON) to join"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=TABLES, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    targets = {k: float(v) for k, _, v in (text.partition("=") for text in options.targets)}
    options.targets = {k + how: v for k, v in targets.items() for how in SEEDS["both"]}
    options.tables = [table + how for how in SEEDS[options.runs] for table in options.tables]
    for file in options.add:
        if not file.is_file():
            parser.error(f"--add: no file {file}")
    wanted = options.contestants or list(CONTESTANTS)
    options.left_out = installed.left_out({name: needs(name) for name in wanted})
    options.contestants = [name for name in wanted if name not in options.left_out]
    program = Path(sys.argv[0]).name
    installed.print_left_out(program, options.left_out)
    if not options.contestants and not options.add:
        installed.exit_without_tools(program)
    return options


def run_all(options: argparse.Namespace) -> list[Row]:
    """Run every search, interleaved: all contestants with one seed before the next seed."""
    names = options.contestants
    jobs: list[Job] = [
        (table, name, seed, options)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for table in options.tables
        for name in names
    ]
    # One thread for each search: CPU seconds are seconds, and searches do not disturb each other.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    rows = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for number, row in enumerate(pool.imap_unordered(replay_one, jobs), 1):
            rows.append(row)
            times = " / ".join(f"{row[key_of(margin)]:.1f}" for margin in MARGINS)
            print(
                f"{number} of {len(jobs)}: {row['table']}, {row['contestant']}, seed {row['seed']}"
                f": {times}, {row['trials']} trials, {row['cpu_s']:.1f} s CPU",
                file=sys.stderr,
                flush=True,
            )
    for file in options.add:
        for row in map(_with_infinity, json.loads(file.read_text())["searches"]):
            if row["table"] in options.tables and row["contestant"] not in names:
                rows.append(row)
    order = list(REGISTRY)
    return sorted(rows, key=lambda r: (r["table"], order.index(r["contestant"]), r["seed"]))


def _with_infinity(row: Row) -> Row:
    """Read a search from JSON, where never is null."""
    return row | {
        key_of(m): math.inf if row[key_of(m)] is None else row[key_of(m)] for m in MARGINS
    }


def main() -> int:
    options = parse()
    tasks = {t: load_task(t, options.folder, options.targets.get(t)) for t in options.tables}
    rows = run_all(options)
    cells = summaries(rows)

    lines = table_lines(tasks, cells, options.margin)
    bars: list[Bar] = []
    if any(name == OURS for _, name in cells):
        ratio_text, bars = ratio_lines(cells, options.margin)
        lines += [*ratio_text[:-1], *raced_lines(cells, options.margin), ratio_text[-1]]
    programs = versions() | installed.package_versions(("syne-tune", "xgboost", "scikit-learn"))
    lines += installed.note(options.left_out)
    lines += [
        "Search time in best times to target: median (quartiles) and mean; a search that never "
        "gets there counts with the time at which it ended.",
        f"{options.seeds} seeds from {options.first_seed}, tools' CPU seconds charged "
        f"{options.charge:g}; {machine()['processor']}, load {os.getloadavg()[0]:.1f}, {programs}",
    ]
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    (options.out / "search_table.md").write_text("\n".join(lines) + "\n")
    content = {
        "bars": bars,
        "cells": [{"table": t, "contestant": n, **cell} for (t, n), cell in cells.items()],
        "searches": rows,
        "margin": options.margin,
        "charge": options.charge,
        "max_trials": options.trials,
        "versions": programs,
    }
    # JSON has no infinity: never is null.
    text = json.dumps(content, indent=1).replace(": Infinity", ": null")
    (options.out / "search_table.json").write_text(text + "\n")
    return 0 if all(good for *_, good in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
