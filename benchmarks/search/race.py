"""Claim: a race over seeds names a better configuration than 3 x 3 runs, and what it prints holds.

The best single runs of a search are partly lucky. Here each of 30 configurations (or those of a
recorded pool) has had one run in the search, and a policy chooses among them by more runs. Worlds
(`race_worlds.py`): plateaus of 30 configurations evenly spaced up to 40 % behind the best, whose
seeds share 26 % of their variance, as measured, or nothing; one whose configurations differ in
sigma; one with misses, judged by expected running time; measured repetitions of `search_real.py`;
and three pools of AlgoPerf (with `RAYBENCH_DATA`), judged by the medians of their five seeds.

1. The share of studies whose named winner is within 5 and 10 % of the best, and the seconds of the
   new runs over those of three by three runs, also with other budgets. The oracle knows 24 new runs
   of every configuration.
2. What is printed: whether the ties include the best configuration that ran at least twice, the
   error of the printed time (the median of three fresh runs of the winner), and how often the 90 %
   interval holds the median of 20 more runs; the same for the time from the runs that chose it.
3. Wall-clock of the race in the slots of a search, with three fresh runs alone, over that of nine
   runs alone.

    RAYBENCH_DATA=DIR python benchmarks/search/race.py [--replays 400]

Bars: `BARS` below, for the default race of 24. Five minutes on one core. Writes results/race.md
with losses and wins; exit 1 below a bar.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from race_calibration import Calibration, calibrate
from race_policies import (
    Outcome,
    Policy,
    oracle,
    raced,
    single,
    three_by_three,
    wall_s,
)
from race_worlds import PRINTED, Study, World, misses, plateau, pool, real, uneven

from raybench.results.store import machine, versions
from raybench.stats.standing import stages

RESULTS = Path(__file__).parents[1] / "results" / "race.md"
DEFAULT, THREE_BY_THREE = "race 24", "three by three, least median"
WIDER = "race 40, without caps"
DEEP = "21 runs: 9 x 1, 5 x 1, 3 x 1, 2 x 2"
DEEPER = ((9, 1), (5, 1), (3, 1), (2, 2))
"""Stages with a quarter fewer configurations and an eighth fewer runs."""
POLICIES: dict[str, Policy] = {
    "one run each": single,
    THREE_BY_THREE: three_by_three,
    "race 10": raced(stages(10)),
    DEFAULT: raced(stages(24)),
    WIDER: raced(stages(40), caps=False),
    "race 84, without caps": raced(stages(84), caps=False),
    "race 24, 20 more on the undecided": raced(stages(24), extra=20),
    DEEP: raced(DEEPER),
    "oracle: 24 new runs of every one": oracle(24),
}
BARS = {  # a world: shares of 100 within 5 and 10 %
    "plateau of 30, sigma 0.3, shared 26%": (50, 72),
    "plateau of 30, sigma 0.2, shared 26%": (60, 85),
    "misses: 40 % hit in 40 - 100 %, sigma 0.3": (40, 55),
    "AlgoPerf criteo1tb": (93, 0),
    "AlgoPerf fastmri": (84, 0),
}
COST_BAR, REGRET_BAR, REGRET_WORLD = 2.7, 0.20, "plateau of 30, sigma 0.3, shared 26%"
SURER = 4
"""Factor on the number of replays behind a bar, so that luck does not decide it."""
SLOTS = (1, 2, 4, 8)


def worlds() -> list[World]:
    """Return all worlds; pools that RAYBENCH_DATA lacks are left out with a message."""
    found = [plateau(0.3), plateau(0.2), plateau(0.3, 0.0), plateau(0.5), uneven(), misses()]
    found.append(real())
    folder = Path(os.environ.get("RAYBENCH_DATA", "nowhere")) / "algoperf"
    if not folder.is_dir():
        print(f"AlgoPerf's pools are left out: {folder} is not there; set RAYBENCH_DATA.")
        return found
    names = ("criteo1tb_pytorch", "fastmri_pytorch", "ogbg_pytorch")
    return found + [pool(folder / f"{name}.json.gz") for name in names]


def chosen(world: World, outcomes: dict[str, list[Outcome]]) -> list[str]:
    """Return a table of all policies in a world."""
    base = np.mean([outcome.spent_s for outcome in outcomes[THREE_BY_THREE]])
    lines = [f"### {world.name}", ""]
    lines += ["| policy | within 5 / 10 % | 90 % regret | cost | runs |", "|---|---|---|---|---|"]
    for name, found in outcomes.items():
        regrets = regrets_of(world, found)
        cost = np.mean([outcome.spent_s for outcome in found]) / base
        runs = np.mean([sum(map(len, outcome.stages_s)) for outcome in found])
        within = " / ".join(f"{share(regrets, margin):.1f}" for margin in (0.05, 0.10))
        tail = np.quantile(regrets, 0.9, method="higher")
        lines.append(f"| {name} | {within} | {tail:.0%} | {cost:.2f} | {runs:.1f} |")
    return [*lines, ""]


def regrets_of(world: World, outcomes: Sequence[Outcome]) -> np.ndarray:
    """Return by how much winners are slower than the best; infinite if none was named."""
    return np.array(
        [np.inf if one.winner is None else world.regret(one.winner) for one in outcomes]
    )


def share(regrets: np.ndarray, margin: float) -> float:
    """Return how many of 100 regrets are within a margin."""
    return 100 * float(np.mean(regrets <= margin + 1e-9))


def walls(world: World, studies: Sequence[Study], outcomes: dict[str, list[Outcome]]) -> list[str]:
    """Return a table of wall-clock by slots, including the winner's runs alone."""
    lines = ["| slots | " + " | ".join(map(str, SLOTS)) + " |", "|---" * (1 + len(SLOTS)) + "|"]
    base = np.mean([outcome.spent_s for outcome in outcomes[THREE_BY_THREE]])
    for name in (DEFAULT, DEEP, WIDER):
        cells = []
        for slots in SLOTS:
            found = [
                wall_s(outcome.stages_s, slots) + sum(run.seconds for run in study.printed(winner))
                for outcome, study in zip(outcomes[name], studies, strict=True)
                if (winner := outcome.winner) is not None
            ]
            cells.append(f"{np.mean(found) / base:.2f}")
        lines.append(f"| {name} and {PRINTED} alone | " + " | ".join(cells) + " |")
    return [f"Wall-clock over that of nine runs alone; {world.name}.", "", *lines, ""]


def held_bars(
    world: World, raced_now: Sequence[Outcome], base_s: float, printed: Calibration
) -> list[tuple[str, bool]]:
    """Return the bars of the default race in a world, each with its figures and whether it is met.

    `base_s` are the mean seconds of three by three runs in the same studies.
    """
    regrets = regrets_of(world, raced_now)
    found = []
    if world.name in BARS:
        bars = BARS[world.name]
        figures = [share(regrets, margin) for margin in (0.05, 0.10)]
        is_met = all(figure >= bar for figure, bar in zip(figures, bars, strict=True))
        asked = " / ".join(str(bar) for bar in bars if bar)
        has = " / ".join(f"{figure:.1f}" for figure, bar in zip(figures, bars, strict=True) if bar)
        found.append(
            (f"{world.name}: within 5{' / 10' if bars[1] else ''} % {has} ({asked})", is_met)
        )
    if world.name == REGRET_WORLD:
        tail = float(np.quantile(regrets, 0.9))
        found.append((f"90 % regret {tail:.1%} ({REGRET_BAR:.0%})", tail <= REGRET_BAR))
        cost = float(np.mean([outcome.spent_s for outcome in raced_now]) / base_s)
        whole = cost + PRINTED / 9
        found.append((f"cost of the race {cost:.2f} ({COST_BAR})", cost <= COST_BAR))
        found.append((f"the runs alone included {whole:.2f} ({COST_BAR})", whole <= COST_BAR))
    return found + (printed.bars() if world.name in BARS else [])


def main() -> int:
    """Replay every policy in every world; print the shares and check the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replays", type=int, default=400)
    options = parser.parse_args()
    error = 50 / math.sqrt(options.replays)
    lines = [
        f"{options.replays} studies a world and policy (standard error of a share at most "
        f"{error:.1f} points); bars and what is printed on {SURER} times as many others "
        f"({error / math.sqrt(SURER):.1f}) where there is a bar.",
        "",
    ]
    calibrations, bars, wall = [], [], list[str]()
    for world in worlds():
        studies = [world.draw(np.random.default_rng([15, i])) for i in range(options.replays)]
        outcomes = {name: list(map(policy, studies)) for name, policy in POLICIES.items()}
        table = chosen(world, outcomes)
        print("\n".join(table), flush=True)
        lines += table
        wall = wall or walls(world, studies, outcomes)
        if world.name in BARS:
            count = SURER * options.replays
            studies = [world.draw(np.random.default_rng([16, i])) for i in range(count)]
        default = list(map(POLICIES[DEFAULT], studies))
        base_s = float(np.mean([three_by_three(study).spent_s for study in studies]))
        calibrations.append(calibrate(world, studies, default))
        bars += held_bars(world, default, base_s, calibrations[-1])
    said = len(lines)
    lines += ["### What is printed", "", *Calibration.table(calibrations), "", *wall]
    lines += [f"- {what}: {'met' if is_met else 'MISSED'}" for what, is_met in bars]
    lines += ["", f"{machine()['processor']}, {versions()}"]
    print("\n".join(lines[said:]))
    RESULTS.write_text("\n".join(lines) + "\n")
    return 0 if all(is_met for _, is_met in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
