"""Claim: `raybench compare` names the wrong side in at most 5 of 100 comparisons, whenever it ends.

Runs are drawn from trainings recorded with several seeds (four tables, at least five seeds of their
fastest cells); their times scatter by another 3 %, as those of runs on one machine do. "The same"
compares a configuration with itself, with seeds drawn for each side; other worlds have pairs of
configurations whose median seconds to the target differ by 5 to 15, 15 to 40 and 40 to 100 %.
Compared on the same draws: the means of three runs each, a t-test of log seconds after every pair,
and a Mann-Whitney test of fixed size.

    python benchmarks/search/compare.py [--draws 400] [--pairs 40]

Measured are the shares of comparisons that name B better if it is not (bar: 5 %) or if it is, and
the number of pairs. 3 minutes on one core. Writes results/compare.md; exit 1 above the bar.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

import numpy as np
from noisy import NOISE
from recorded import Table, Task
from scipy import stats

from benchmarks.output import write_results
from raybench.stats.sequential import ALPHA, outcome_of

RESULTS = Path(__file__).parents[1] / "results" / "compare.md"
NAMES = ("flights_mlp", "docstrings_text", "cifar_resnet", "docstrings_throttled")
WORLDS = {
    "the same": (0.0, 0.0),
    "5 to 15 %": (0.05, 0.15),
    "15 to 40 %": (0.15, 0.4),
    "40 to 100 %": (0.4, 1.0),
}
SEEDS = 5
"""Minimum number of recorded seeds of a configuration."""
FEW = 3
"""Runs of each side in `three_means`."""
Verdict = tuple[str, int]
"""Outcome and number of pairs."""


def sequential(a: np.ndarray, b: np.ndarray) -> Verdict:
    """Test after every pair, as `raybench compare` does."""
    with np.errstate(invalid="ignore"):
        differences = (a - b).tolist()
    for number in range(2, len(differences) + 1):
        known = [one for one in differences[:number] if not math.isnan(one)]
        found = outcome_of(known, errors=ALPHA)
        if found != "undecided":
            return found, number
    return "undecided", len(differences)


def three_means(a: np.ndarray, b: np.ndarray) -> Verdict:
    """Name the lower mean of three runs each; a miss is infinite."""
    return ("better" if b[:FEW].mean() < a[:FEW].mean() else "worse"), FEW


def watched_t_test(a: np.ndarray, b: np.ndarray) -> Verdict:
    """Stop at the first pair with p below 5 % on either side; misses are left out."""
    for number in range(FEW, len(a) + 1):
        ours, theirs = (one[:number][np.isfinite(one[:number])] for one in (a, b))
        if min(len(ours), len(theirs)) < 2:
            continue
        p = stats.ttest_ind(ours, theirs, alternative="greater").pvalue
        if p < ALPHA or p > 1 - ALPHA:
            return ("better" if p < ALPHA else "worse"), number
    return "undecided", len(a)


def mann_whitney(a: np.ndarray, b: np.ndarray, *, size: int = 20) -> Verdict:
    """Test once, after 20 pairs."""
    p = stats.mannwhitneyu(a[:size], b[:size], alternative="greater").pvalue
    other = stats.mannwhitneyu(a[:size], b[:size], alternative="less").pvalue
    found = "better" if p < ALPHA else "worse" if other < ALPHA else "undecided"
    return found, size


TESTS: dict[str, Callable[[np.ndarray, np.ndarray], Verdict]] = {
    "raybench compare": sequential,
    "means of three runs": three_means,
    "t-test after every pair": watched_t_test,
    "Mann-Whitney of 20 pairs": mann_whitney,
}


def known_runs() -> list[list[np.ndarray]]:
    """Return log seconds to target by table, configuration and seed, for configurations without
    misses."""
    found = []
    for name in NAMES:
        task = Task(Table(name))
        rows = []
        for config in task.table.configs():
            if len(task.table.seeds(config)) >= SEEDS:
                seconds = task.seed_seconds(config)
                if np.isfinite(seconds).all():
                    rows.append(np.log(seconds))
        found.append(rows)
    return found


def pairs_between(rows: list[np.ndarray], low: float, high: float) -> list[tuple[int, int]]:
    """Return pairs (A, B) in which B is faster by `low` to `high`, or equal ones for 0."""
    if not high:
        return [(place, place) for place in range(len(rows))]
    middles = [float(np.median(row)) for row in rows]
    return [
        (a, b)
        for a in range(len(rows))
        for b in range(len(rows))
        if math.log1p(low) <= middles[a] - middles[b] < math.log1p(high)
    ]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=40)
    options = parser.parse_args()
    rng, tables = np.random.default_rng(0), known_runs()
    lines = [
        "| B faster by | test | B named | A named | undecided | pairs, median (90 %) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    is_wrong = False
    for world, (low, high) in WORLDS.items():
        named: dict[str, list[Verdict]] = {test: [] for test in TESTS}
        for _ in range(options.draws):
            rows = tables[rng.integers(len(tables))]
            choices = pairs_between(rows, low, high)
            if not choices:
                continue
            places = choices[rng.integers(len(choices))]
            a, b = (
                rng.choice(rows[one], options.pairs) + NOISE * rng.standard_normal(options.pairs)
                for one in places
            )
            for test, run in TESTS.items():
                named[test].append(run(a, b))
        for test, found in named.items():
            share = {
                one: fmean(name == one for name, _ in found)
                for one in ("better", "worse", "undecided")
            }
            sizes = [pairs for name, pairs in found if name != "undecided"] or [0]
            lines.append(
                f"| {world} | {test} | {share['better']:.1%} | {share['worse']:.1%} | "
                f"{share['undecided']:.1%} | {median(sizes):.0f} ({np.quantile(sizes, 0.9):.0f}) |"
            )
            if world == "the same" and test == "raybench compare":
                is_wrong = max(share["better"], share["worse"]) > ALPHA
    found_in = ", ".join(f"{name} ({len(rows)})" for name, rows in zip(NAMES, tables, strict=True))
    about = (
        f"`python benchmarks/search/compare.py --draws {options.draws} --pairs {options.pairs}`; "
        f"configurations with {SEEDS} recorded seeds or more that all reach the target: "
        f"{found_in}."
    )
    write_results(RESULTS, "Is B better than A?", about, lines)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
