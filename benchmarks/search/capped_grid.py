"""Claim: an exhaustive grid with `search.sampler: grid` costs a tenth, and finds the same best.

Replays the recorded tables (`record_table.py`) on eight simulated slots: the whole grid of
optimizer, rate, batch per worker and workers. Exhaustive is every configuration trained until it
reaches the target, max_train_seconds (8 times the best) or the end of its curve; raybench's grid
caps trials at 1.1 times the best, trains a curve once for all worker counts, and confirms its
best three by three runs each. Counted are slot-seconds of training, confirming included. Every
trial's times get a noise of 3 % (as single runs here have), so the cap leaves three sigma.
Orders are drawn; rates near the usual ones come first (`search.priors`, the default), or not
(`--no-priors`). Bars: at most 10 %, and the same best configuration (truly within 5 %) in all
orders.

    python benchmarks/search/capped_grid.py [--tables mnist_conv ...] [--orders 20]

About 5 minutes. Writes results/capped_grid.{md,png}; exit 1 below a bar.
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
from matplotlib.figure import Figure
from noisy import NOISE, NoisyTask, confirm
from recorded import NAMES, Table, Task
from replay import search

from raybench.results.store import machine, versions

CAP = 1.1
NUM_CONFIRMED, REPEATS = 3, 3
BAR, CLOSE = 0.10, 0.05
RESULTS = Path(__file__).parents[1] / "results"


def grid_space(task: Task) -> dict[str, Any]:
    """Return what the contestant searches: lists instead of ranges."""
    rates = task.table.meta["rates"]
    return {
        "learning_rate": [
            {"when": {"optimizer": name}, "values": list(values)} for name, values in rates.items()
        ]
    }


def exhaustive(task: Task) -> float:
    """Slot-seconds of training every configuration to its end."""
    return sum(
        task.trial(config)[0][-1].train_s * config.num_workers for config in task.table.configs()
    )


def one_order(task: NoisyTask, seed: int, *, priors: bool) -> tuple[list[float], float]:
    """Run the grid in one order; return slot-seconds run by run, and the winner's true time.

    The last `NUM_CONFIRMED` runs are the confirming ones, each of `REPEATS` trainings.
    """
    task.rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        contestant = Raybench(
            task.space,
            seed,
            Path(folder),
            sampler="grid",
            priors=priors,
            cap_factor=CAP,
            overwrite=grid_space(task),
        )
        search(task, contestant, max_trials=10**6, until=0.0, limit=math.inf)
        leaders = contestant.leaders(NUM_CONFIRMED)
        used = [
            record.ledger["train"] * record.spec.num_workers
            for record in contestant.records.values()
        ]
    winner, confirming = confirm(task, leaders, repeats=REPEATS)
    return used + confirming, task.tta(winner)


def draw(shares: dict[str, list[list[float]]], file: Path) -> None:
    """Plot the slot-seconds used, as a share of the exhaustive grid's, over the trials ended."""
    figure = Figure(figsize=(4.6 * len(shares), 4), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(shares), squeeze=False, sharey=True)[0]
    for axes, (table, orders) in zip(panels, shares.items(), strict=True):
        for used in orders:
            axes.plot(100 * np.cumsum([0.0, *used]), color="#000000", linewidth=0.8, alpha=0.5)
        trials = len(orders[0]) - NUM_CONFIRMED
        axes.axvline(trials, color="#999999", linewidth=1, linestyle=":")
        axes.annotate("confirming", (trials, 0.2), ha="right", fontsize=9, color="#666666")
        axes.axhline(100 * BAR, color="#999999", linewidth=1, linestyle="--")
        axes.annotate("bar", (0, 100 * BAR), va="bottom", fontsize=9, color="#666666")
        axes.set_ylim(0, 1.2 * max(100 * BAR, *(100 * sum(used) for used in orders)))
        axes.set_title(f"{table}: {len(orders)} orders", fontsize=10)
        axes.set_xlabel("trials ended")
        axes.grid(color="#EEEEEE")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("slot-seconds [% of the exhaustive grid's]")
    figure.savefig(file)


def main() -> int:
    """Replay every table in every order; print shares and hold the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=NAMES)
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--no-priors", action="store_true", help="in no order at all")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.disable(logging.WARNING)
    how = "orders drawn" if options.no_priors else "usual rates first, else drawn"
    lines = [f"{options.orders} orders, {how}; cap {CAP}, noise {NOISE:.0%}.", ""]
    lines += ["| table | grid | trials | slot-seconds, share of the exhaustive | same best |"]
    lines.append("|---|---|---|---|---|")
    is_met = True
    courses = {}
    for name in options.tables:
        task = NoisyTask(Table(name))
        task.rng = np.random.default_rng(0)
        whole = exhaustive(task)
        found = [
            one_order(task, seed, priors=not options.no_priors) for seed in range(options.orders)
        ]
        courses[name] = [[seconds / whole for seconds in used] for used, _ in found]
        shares = [sum(course) for course in courses[name]]
        trials = len(courses[name][0]) - NUM_CONFIRMED
        same = sum(seconds <= (1 + CLOSE) * task.best_s for _, seconds in found)
        is_met &= float(np.median(shares)) <= BAR and same == options.orders
        lines.append(
            f"| {name} | {len(task.table.configs())} | {trials} | {np.median(shares):.1%} "
            f"({min(shares):.1%} - {max(shares):.1%}) | {same} of {options.orders} |"
        )
    lines += ["", f"{'met' if is_met else 'MISSED'}; {machine()['processor']}, {versions()}"]
    print("\n".join(lines))
    (RESULTS / "capped_grid.md").write_text("\n".join(lines) + "\n")
    draw(courses, RESULTS / "capped_grid.png")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
