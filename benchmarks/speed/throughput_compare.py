"""Claim: `raybench compare --metric samples_per_s --smallest 3%` fails a CI job in at most 5 of 100
cases if the training has not become slower, however the machine drifts, and in most cases if it
has.

Runs of A and B are simulated one after the other, in the order that `compare` draws. The speed of
the machine drifts: not at all, evenly by 10 % over 40 runs (it heats up), in waves of 5 % over 8
runs (another job comes and goes), by a step of 20 % after the tenth run (another job stays), or as
a random walk of 1 % per run. In addition, each run scatters by 1 % or 3 %. Compared with:

- `one run each`: B is slower by more than 3 % in one run each, A first.
- `10 and 10, t-test`: ten runs of A, then ten of B, Welch's test at 5 % one-sided.

    python benchmarks/speed/throughput_compare.py [--jobs 800]

Bars: with equal speeds at most 5 % of the jobs fail in every world (exit code 5); if B is 3 %
slower, at most 5 % are called equal within 3 % (exit code 6). Also printed is how often `compare`
is undecided after 20 pairs. Writes results/throughput_compare.md; exit 1 above a bar. 3 minutes on
one core.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

import numpy as np
from scipy import stats

from benchmarks.output import write_results
from raybench.runs.compare import order_of
from raybench.stats.sequential import ALPHA, outcome_of

RESULTS = Path(__file__).parents[1] / "results" / "throughput_compare.md"
PAIRS, SMALLEST = 20, 0.03
RUNS = 2 * PAIRS
SCATTERS = (0.01, 0.03)
SLOWER = (0.0, 0.03, 0.05)
Drift = Callable[[np.random.Generator], np.ndarray]
"""Draws the log seconds that the machine adds to each of RUNS runs."""
DRIFTS: dict[str, Drift] = {
    "none": lambda rng: np.zeros(RUNS),
    "even, 10 %": lambda rng: np.linspace(0.0, math.log(1.1), RUNS),
    "waves, 5 %": lambda rng: 0.05 * np.sin(np.arange(RUNS) * math.tau / 8 + rng.uniform(0, 6.3)),
    "a step, 20 %": lambda rng: math.log(1.2) * (np.arange(RUNS) >= 10),
    "random walk, 1 % a run": lambda rng: np.cumsum(0.01 * rng.standard_normal(RUNS)),
}


def by_compare(a: np.ndarray, b: np.ndarray, seed: int) -> tuple[str, int]:
    """Return the outcome of `compare`, and its pairs; a[i] and b[i] are log seconds at time i."""
    differences: list[float] = []
    outcome = "undecided"
    for number in range(PAIRS):
        order = order_of({"A": None, "B": None}, number, seed=seed)
        times = {name: 2 * number + place for place, name in enumerate(order)}
        differences.append(float(a[times["A"]] - b[times["B"]]))
        if len(differences) * math.log(2.0) >= math.log(1.0 / ALPHA):  # else none can be named
            outcome = outcome_of(differences, smallest=-math.log1p(-SMALLEST), errors=ALPHA)
        if outcome != "undecided":
            break
    return outcome, len(differences)


def by_one_run(a: np.ndarray, b: np.ndarray, seed: int) -> tuple[str, int]:
    """Fail where one run of B is slower than one of A by more than 3 %."""
    del seed
    return ("worse" if b[1] - a[0] > -math.log1p(-SMALLEST) else "same"), 1


def by_t_test(a: np.ndarray, b: np.ndarray, seed: int) -> tuple[str, int]:
    """Fail where ten runs of B after ten of A are slower by Welch's test."""
    del seed
    p = stats.ttest_ind(a[:10], b[10:20], alternative="less", equal_var=False).pvalue
    return ("worse" if p < ALPHA else "same"), 10


TESTS = {
    "raybench compare": by_compare,
    "one run each": by_one_run,
    "10 and 10, t-test": by_t_test,
}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=800)
    jobs = parser.parse_args().jobs
    rng = np.random.default_rng(0)
    lines = [
        "| B slower by | drift | scatter | test | worse: the job fails | same | better | undecided "
        "| pairs, median (90 %) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    is_above = False
    for slower in SLOWER:
        for drift, of_machine in DRIFTS.items():
            for scatter in SCATTERS:
                found: dict[str, list[tuple[str, int]]] = {name: [] for name in TESTS}
                for seed in range(jobs):
                    common = of_machine(rng)
                    a, b = (common + scatter * rng.standard_normal(RUNS) for _ in range(2))
                    b -= math.log1p(-slower)
                    for name, test in TESTS.items():
                        found[name].append(test(a, b, seed))
                for name, ended in found.items():
                    share = {
                        outcome: fmean(one == outcome for one, _ in ended)
                        for outcome in ("worse", "same", "better", "undecided")
                    }
                    pairs = [number for _, number in ended]
                    lines.append(
                        f"| {slower:.0%} | {drift} | {scatter:.0%} | {name} | "
                        f"{' | '.join(f'{one:.1%}' for one in share.values())} | "
                        f"{median(pairs):.0f} ({np.quantile(pairs, 0.9):.0f}) |"
                    )
                    if name == "raybench compare" and slower in (0.0, SMALLEST):
                        is_above |= share["same" if slower else "worse"] > ALPHA
    about = (
        f"`python benchmarks/speed/throughput_compare.py --jobs {jobs}`; at most {PAIRS} pairs "
        f"each, --smallest {SMALLEST:.0%}."
    )
    write_results(RESULTS, "Has the training become slower?", about, lines)
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main())
