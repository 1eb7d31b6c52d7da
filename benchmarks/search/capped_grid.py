"""Claim: an exhaustive grid with early stopping takes a tenth of the plain grids' worker-seconds.

The recorded tables (`record_table.py`) are replayed on eight simulated slots: the whole grid of
optimizer, learning rate, batch per worker and workers. The plain grid trains every configuration
until it reaches the target, max_train_seconds (8 times the best time) or the end of its curve.
raybench's grid (`search.sampler: grid`, all other keys at their defaults) trains each curve once
for all worker counts, stops trials that can no longer win, and confirms its best configurations in
a race of 24 runs. Counted are worker-seconds of training, confirmation included. Times of trials
scatter by 3 %, as those of single runs do. The order of the grid is drawn with a seed.

    python benchmarks/search/capped_grid.py [--tables mnist_conv ...] [--orders 10]

Bars: at most 10 % of the plain grids' worker-seconds in the median, and in every order a winner
within 5 % of the best configuration. Five minutes on one core. Writes results/capped_grid.md; exit
1 below a bar.
"""

import argparse
import logging
import math
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from contestant import Raybench
from noisy import NOISE, NoisyTask, race
from recorded import NAMES, Table, Task
from replay import search

from raybench.results.store import machine, versions
from raybench.spec.study import ConfirmSpec, SearchSpec
from raybench.stats.standing import stages

RACE_RUNS, CAP_FACTOR = ConfirmSpec().race, SearchSpec().cap_factor
BAR, CLOSE = 0.10, 0.05
RESULTS = Path(__file__).parents[1] / "results"


def grid_space(task: Task) -> dict[str, Any]:
    """Return the learning rates of the table as lists instead of ranges."""
    rates = task.table.meta["rates"]
    return {
        "learning_rate": [
            {"when": {"optimizer": name}, "values": list(values)} for name, values in rates.items()
        ]
    }


def plain_grid_s(task: Task) -> float:
    """Return the worker-seconds of training every configuration to its end."""
    return sum(
        task.trial(config)[0][-1].train_s * config.num_workers for config in task.table.configs()
    )


def one_order(task: NoisyTask, seed: int) -> tuple[int, float, float]:
    """Run the grid in one order.

    Returns:
        Number of trials, worker-seconds with confirmation, and the winner's true seconds to target.
    """
    task.rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        contestant = Raybench(
            task.space, seed, Path(folder), sampler="grid", overwrite=grid_space(task)
        )
        search(task, contestant, max_trials=10**6, until=0.0, limit=math.inf)
        records = contestant.records.values()
        search_s = sum(record.ledger["train"] * record.spec.num_workers for record in records)
        raced = race(task, contestant.candidates(), stages(RACE_RUNS), seed=None)
    return len(records), search_s + raced.worker_seconds, task.tta(raced.winner)


def main() -> int:
    """Replay every table in every order; print the shares and check the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=NAMES)
    parser.add_argument("--orders", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.disable(logging.WARNING)
    lines = [
        f"{options.orders} orders; cap_factor {CAP_FACTOR}, a race of {RACE_RUNS}, times scatter "
        f"by {NOISE:.0%}.",
        "",
        "| table | grid | trials | worker-seconds, share of the plain grid's | winner within 5 % |",
        "|---|---|---|---|---|",
    ]
    is_met = True
    for name in options.tables:
        task = NoisyTask(Table(name))
        task.rng = np.random.default_rng(0)
        plain_s = plain_grid_s(task)
        orders = [one_order(task, seed) for seed in range(options.orders)]
        shares = [used_s / plain_s for _, used_s, _ in orders]
        close = sum(winner_s <= (1 + CLOSE) * task.best_s for _, _, winner_s in orders)
        is_met &= float(np.median(shares)) <= BAR and close == options.orders
        lines.append(
            f"| {name} | {len(task.table.configs())} | {orders[0][0]} | {np.median(shares):.1%} "
            f"({min(shares):.1%} - {max(shares):.1%}) | {close} of {options.orders} |"
        )
        print(lines[-1], flush=True)
    lines += ["", f"{'met' if is_met else 'MISSED'}; {machine()['processor']}, {versions()}"]
    print(lines[-1])
    (RESULTS / "capped_grid.md").write_text("\n".join(lines) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
