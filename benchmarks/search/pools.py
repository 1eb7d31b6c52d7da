"""Claim: on trainings that others recorded, raybench names a configuration nearer to the best.

Pools of AlgoPerf (listed settings of five optimizers, five seeds each) and of Zeus (batch sizes,
four to ten seeds each) in `RAYBENCH_DATA` are replayed: every run of a study is one of the
configuration's recorded seeds, drawn with replacement. A study names one configuration; its true
time is the median time to target of all its recorded seeds, where a miss counts as infinite. Two
more columns: `unused seeds` is the median of the seeds that a study did not draw, over the best
(pessimistic, because the study drew lucky ones); `each seed once` has the same studies drawn
without replacement, for the policies that need no library (optimistic, because a policy that
repeats a configuration as often as it has seeds knows its true time).

Policies: one run each; raybench's search (of a grid: every configuration once, in random order,
with a cutoff) alone, with three more runs of its best three configurations, and with its race; and
search libraries, which spend as many seconds as raybench with its race in the mean, one run at a
time. FLAML counts seconds as cost.

Bars of raybench's race of 24: within 5 % of the best in at least 93 of 100 studies on criteo1tb and
in 84 on fastmri; and no policy of at most 1.1 times its cost is within 5 % more often, in the mean
over the pools of AlgoPerf, and of Zeus, that it was run on.

    python benchmarks/search/pools.py [--replays 400] [--library-replays 60] [--pools criteo1tb ...]

Libraries that are not installed are named at the start and left out; `README.md` states how to
install them. `--policies` runs some of the policies (none without names), `--add FILE.json` joins
earlier results. Two minutes without libraries. Writes results/pools.{md,json} with losses and wins;
exit 1 below a bar.
"""

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pool_tools
from pool_policies import POLICIES, RACED, Policy
from pool_table import Cell, bars, key_of, lines_of
from pool_worlds import Draws, Pool, pools

from benchmarks import installed
from raybench.results.store import machine, versions

LIBRARIES = {name: module for name, (module, _) in pool_tools.TOOLS.items()}
"""The module that a tool needs, by the tool's name."""
PACKAGES = ("flaml",)


def library_policy(name: str, seed: int, budget_s: float, folder: Path) -> Policy:
    """Return a library's study as a policy."""

    def run(pool: Pool, draws: Draws, rng: np.random.Generator) -> Any:
        del rng
        return pool_tools.replay(pool, pool_tools.seeded(pool, name, seed, folder), draws, budget_s)

    return run


def study(pool: Pool, policy: Policy, seed: int, *, is_once: bool = False) -> dict[str, float]:
    """Replay one study; return its row, with times over the best median."""
    draws = Draws(pool, np.random.default_rng([seed, 0]), is_once=is_once)
    outcome = policy(pool, draws, np.random.default_rng([seed, 1]))
    named = outcome.named
    unused = None if named is None else draws.unused_s(named)
    return {
        "ratio": math.inf if named is None else pool.options[named].median_s / pool.best_s,
        "unused": math.nan if unused is None else unused / pool.best_s,
        "cost": outcome.seconds / pool.best_s,
        "runs": outcome.num_runs,
    }


def cell(pool: Pool, name: str, options: argparse.Namespace, budget_s: float) -> Cell:
    """Replay a policy's studies on a pool; return their means."""
    is_library = name in LIBRARIES
    number = options.library_replays if is_library else options.replays
    began = time.process_time()
    found, once = [], []
    for seed in range(options.first_seed, options.first_seed + number):
        if is_library:
            with tempfile.TemporaryDirectory() as folder:
                policy = library_policy(name, seed, budget_s, Path(folder))
                found.append(study(pool, policy, seed))
        else:
            found.append(study(pool, POLICIES[name], seed))
            once.append(study(pool, POLICIES[name], seed, is_once=True))
    ratios, costs = (np.array([one[key] for one in found]) for key in ("ratio", "cost"))
    unused = [one["unused"] for one in found if not math.isnan(one["unused"])]
    return {
        "pool": pool.name,
        "policy": name,
        "n": number,
        "within_5": float(np.mean(ratios <= 1.05)),
        "within_10": float(np.mean(ratios <= 1.10)),
        "median": float(np.quantile(ratios, 0.5, method="higher")),
        "worst_tenth": float(np.quantile(ratios, 0.9, method="higher")),
        "never": float(np.mean(np.isinf(ratios))),
        "unused_within_10": float(np.mean(np.array(unused) <= 1.10)) if unused else None,
        "unused_n": len(unused),
        "once_within_5": float(np.mean([one["ratio"] <= 1.05 for one in once])) if once else None,
        "cost": float(costs.mean()),
        "worker_seconds": float(costs.mean() * pool.best_s * pool.num_workers),
        "runs": float(np.mean([one["runs"] for one in found])),
        "cpu_s": (time.process_time() - began) / number,
    }


def run_all(options: argparse.Namespace, known: list[Pool]) -> list[Cell]:
    """Replay all policies, pool by pool; join earlier results."""
    cells: list[Cell] = []
    for pool in known if options.policies else []:
        # Libraries get the budget of the race, even if its row is not requested.
        budget = cell(pool, RACED, options, 0.0)
        budget_s = budget["cost"] * pool.best_s
        for name in options.policies:
            row = budget if name == RACED else cell(pool, name, options, budget_s)
            cells.append(row)
            print(
                f"{pool.name}, {name}: {row['within_5']:.0%} within 5 %, cost {row['cost']:.0f}, "
                f"{row['runs']:.0f} runs, {row['cpu_s']:.2f} s of CPU a study",
                file=sys.stderr,
                flush=True,
            )
    there = {key_of(row) for row in cells}
    for file in options.add:
        for row in map(_with_infinity, json.loads(file.read_text())["cells"]):
            if key_of(row) not in there and row["pool"] in {pool.name for pool in known}:
                cells.append(row)
                there.add(key_of(row))
    order = [*POLICIES, *LIBRARIES]
    names = [pool.name for pool in known]
    return sorted(cells, key=lambda r: (names.index(r["pool"]), order.index(r["policy"])))


def _with_infinity(row: Cell) -> Cell:
    """Read a cell from JSON, where infinity is null."""
    return row | {k: math.inf if row[k] is None else row[k] for k in ("median", "worst_tenth")}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("RAYBENCH_DATA"))
    parser.add_argument("--pools", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--policies", nargs="*", choices=[*POLICIES, *LIBRARIES])
    parser.add_argument("--replays", type=int, default=400)
    parser.add_argument("--library-replays", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], help="results to join; the first counts"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    if options.data is None or not (options.data / "algoperf").is_dir():
        parser.error("--data (or RAYBENCH_DATA) must name the folder that holds algoperf/, zeus/")
    for file in options.add:
        if not file.is_file():
            parser.error(f"--add: no file {file}")
    wanted = [*POLICIES, *LIBRARIES] if options.policies is None else options.policies
    options.left_out = installed.left_out(
        {name: [LIBRARIES[name]] for name in wanted if name in LIBRARIES}
    )
    installed.print_left_out(Path(sys.argv[0]).name, options.left_out)
    options.policies = [name for name in wanted if name not in options.left_out]
    return options


def main() -> int:
    options = parse()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    known = list(pools(options.data))
    names = [pool.name for pool in known]
    if unknown := set(options.pools or []) - set(names):
        sys.exit(f"--pools: no pool {sorted(unknown)[0]}; there are {', '.join(names)}.")
    known = [pool for pool in known if options.pools is None or pool.name in options.pools]
    cells = run_all(options, known)
    held = bars(cells)
    programs = versions() | installed.package_versions(PACKAGES)
    lines = [
        *lines_of(known, cells, held),
        *installed.note(options.left_out),
        f"n studies of each policy from seed {options.first_seed}: pools.py; "
        f"{machine()['processor']}, {programs}",
    ]
    options.out.mkdir(exist_ok=True)
    (options.out / "pools.md").write_text("\n".join(lines) + "\n")
    content = {"bars": held, "cells": cells, "versions": programs}
    text = json.dumps(content, indent=1).replace(": Infinity", ": null")
    (options.out / "pools.json").write_text(text + "\n")
    print("\n".join(lines))
    return 0 if all(good for *_, good in held) else 1


if __name__ == "__main__":
    sys.exit(main())
