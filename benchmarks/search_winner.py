"""Claim: the winner of a search with the default settings is truly near-best.

As `capped_grid.py` (recorded tables, eight simulated slots, times of trials with a noise of 3 %),
but the default sampler over ranges, with the trials of the default search space
(`search_spaces/digits.yaml`). What the search found is confirmed in several ways: by a race of 24
new runs (`search.race`, the default), by one of 40, and as it was before races: the best three
trained three times each, the lowest median wins. "By chance" are runs that each draw one of the
recorded seeds of their curve; otherwise every run has the mean of its seeds.

"Bound" is what no search and no race of 24 runs can pass by much: the three configurations that are
truly best are given, with a run of each, all 24 new runs are theirs, and the best by expected
running time is named.

Bar: on every table the winner is truly within 5 % of the exhaustive grid's best in nine of ten
searches; by chance in 16 of 20. Truly is the time of the seeds' mean curve. Beside it stands how
near the winner is in expected running time over its recorded seeds: what a user waits for who
trains it again, and what races go by; the two do not name the same configurations.

    python benchmarks/search_winner.py [--tables mnist_conv ...] [--seeds 20]

About 8 minutes; what ran apart (`--only`, `--tables`) can be put into one table (`--add
FILE.json`). Writes results/search_winner.{md,json,png}; exit 1 below the bar.
"""

import argparse
import json
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optuna
import yaml
from contestant import Raybench
from matplotlib.figure import Figure
from noisy import NOISE, Leader, NoisyTask, confirm, race
from recorded import NAMES, SLOTS, Config, Table
from replay import search

from raybench.core.standing import stages
from raybench.results.store import machine, versions

CLOSE, NEAR = 0.05, 0.10
BAR, BAR_BY_CHANCE = 0.9, 0.8
RESULTS = Path(__file__).with_name("results")
DEFAULTS = yaml.safe_load((Path(__file__).parents[1] / "search_spaces" / "digits.yaml").read_text())
TOP, REPEATS = 3, 3
DEFAULT_WAY, BOUND = "race of 24", "bound"
NUM_GIVEN, RUNS_GIVEN = 3, 8
Way = Callable[[NoisyTask, list[Leader], int | None], tuple[Config, float]]
"""Of a task, what reached the target (best first) and a seed: the winner and slot-seconds."""


def three_by_three(
    task: NoisyTask, leaders: list[Leader], seed: int | None
) -> tuple[Config, float]:
    """Confirm the best three as searches did before there were races."""
    winner, used = confirm(task, [one for one, _ in leaders[:TOP]], repeats=REPEATS, seed=seed)
    return winner, sum(used)


def by_race(
    number: int, task: NoisyTask, leaders: list[Leader], seed: int | None
) -> tuple[Config, float]:
    """Race them."""
    return race(task, leaders, stages(number), seed=seed)[:2]


def whole(task: NoisyTask, leaders: list[Leader], seed: int | None) -> tuple[Config, float]:
    """Give all of them all of their runs before any is left out."""
    return race(task, leaders, ((NUM_GIVEN, RUNS_GIVEN),), seed=seed)[:2]


WAYS: dict[str, Way] = {
    DEFAULT_WAY: partial(by_race, 24),
    "race of 40": partial(by_race, 40),
    "3 x 3, medians": three_by_three,
}


class Found(NamedTuple):
    """A search's winner: how far it is from the best, and what naming it took."""

    truly: float
    """Its mean curve's time to target, best in the grid 1."""
    expected: float
    """Its expected running time, best in the grid 1."""
    search_s: float
    """Slot-seconds, in best times to target."""
    confirm_s: float


def search_once(task: NoisyTask, seed: int, *, by_chance: bool) -> tuple[list[Leader], float]:
    """Run the default search; return what reached the target, best first, and slot-seconds."""
    task.rng = np.random.default_rng(seed)
    rng = np.random.default_rng(seed) if by_chance else None
    trials = DEFAULTS["search"]["trials"]
    with tempfile.TemporaryDirectory() as folder:
        contestant = Raybench(task.space, seed, Path(folder))
        # Not charged for its thinking, so that a search is the same on any machine.
        search(task, contestant, rng=rng, charge=0.0, max_trials=trials, until=0.0, limit=math.inf)
        records = contestant.records.values()
        used = sum(record.ledger["train"] * record.spec.num_workers for record in records)
        return contestant.contenders(), used


def given(task: NoisyTask, seed: int, *, by_chance: bool) -> list[Leader]:
    """Return the configurations that are truly best, with a run of each, best run first."""
    task.rng = np.random.default_rng(seed)
    rng = np.random.default_rng([seed, 4]) if by_chance else None
    seconds = task.expected_s if by_chance else task.tta
    best = sorted(task.table.configs(), key=seconds)[:NUM_GIVEN]
    ends = [(config, task.trial(config, rng)[0][-1].time_to_target_s) for config in best]
    return sorted(ends, key=lambda one: math.inf if one[1] is None else one[1])


def winners(task: NoisyTask, seeds: range, *, by_chance: bool) -> dict[str, list[Found]]:
    """Search with every seed, and confirm in every way."""
    configs = task.table.configs()
    best_expected = min(map(task.expected_s, configs))
    found: dict[str, list[Found]] = {name: [] for name in (*WAYS, BOUND)}
    for seed in seeds:
        leaders, used = search_once(task, seed, by_chance=by_chance)
        best = given(task, seed, by_chance=by_chance)
        for name, way in [*WAYS.items(), (BOUND, whole)]:
            of, spent = (best, 0.0) if name == BOUND else (leaders, used)
            winner, confirming = way(task, of, seed if by_chance else None)
            truly, expected = task.tta(winner), task.expected_s(winner)
            ratios = truly / task.best_s, expected / best_expected
            found[name].append(Found(*ratios, spent / task.best_s, confirming / task.best_s))
    return found


def row(table: str, world: str, name: str, found: list[Found]) -> str:
    """Return a line of the table."""
    truly = [one.truly for one in found]
    near = " | ".join(
        f"{sum(value <= 1 + margin for value in values)} of {len(found)}"
        for values in (truly, [one.expected for one in found])
        for margin in (CLOSE, NEAR)
    )
    seconds = f"{np.mean([o.search_s for o in found]):.0f} + "
    seconds = "" if name == BOUND else seconds
    return (
        f"| {table} | {world} | {name} | {np.median(truly):.2f} ({min(truly):.2f} - "
        f"{max(truly):.2f}) | {near} | {seconds}{np.mean([o.confirm_s for o in found]):.0f} |"
    )


def draw(found: dict[str, list[float]], file: Path) -> None:
    """Plot every search's winner, over the exhaustive best."""
    figure = Figure(figsize=(6.4, 1.2 + 0.9 * len(found)), dpi=100, layout="constrained")
    axes = figure.subplots()
    for row, ratios in enumerate(found.values()):
        # Spread those that found the same cell, so that each is seen.
        offsets = [0.05 * sorted(ratios)[:i].count(x) for i, x in enumerate(sorted(ratios))]
        heights = [row - 0.3 + offset for offset in offsets]
        axes.plot(sorted(ratios), heights, "o", color="#000000", markersize=3.5)
    axes.axvline(1 + CLOSE, color="#999999", linewidth=1, linestyle="--")
    axes.annotate("within 5 %", (1 + CLOSE, -0.45), rotation=90, fontsize=8, color="#666666")
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(-0.5, len(found) - 0.1)
    axes.set_xlabel("true time to target of the winner [best in the grid]")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#EEEEEE")
    figure.savefig(file)


def main() -> int:
    """Search every table with every seed; print the winners and hold the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    worlds = {False: "mean of seeds", True: "by chance"}
    parser.add_argument("--only", choices=worlds.values(), help="of the two kinds of runs")
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="results/*.json to join")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.disable(logging.WARNING)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    lines = [
        f"{options.seeds} searches a table from seed {options.first_seed}, "
        f"{DEFAULTS['search']['trials']} trials; noise of times {NOISE:.0%}. Slot-seconds are "
        f"means, in best times to target; {SLOTS} slots.",
        "",
        "| table | runs | confirmed by | winner, best in the grid = 1: median (lowest - highest) | "
        "within 5 % | within 10 % | expected within 5 % | within 10 % | slot-seconds |",
        "|---" * 9 + "|",
    ]
    content: dict[str, dict[str, dict[str, list[Found]]]] = {}
    for file in options.add:
        for name, kinds in json.loads(file.read_text()).items():
            content.setdefault(name, {}).update(kinds)
    for name in options.tables:
        task = NoisyTask(Table(name))
        for by_chance, world in worlds.items():
            if options.only in (None, world) and world not in content.get(name, {}):
                found = winners(task, seeds, by_chance=by_chance)
                content.setdefault(name, {})[world] = found
    is_met, drawn = True, {}
    for name, kinds in content.items():
        for world, ways in kinds.items():
            found = {way: [Found(*one) for one in ends] for way, ends in ways.items()}
            lines += [row(name, world, way, ends) for way, ends in found.items()]
            truly = [one.truly for one in found[DEFAULT_WAY]]
            bar = BAR_BY_CHANCE if world == worlds[True] else BAR
            is_met &= sum(ratio <= 1 + CLOSE for ratio in truly) >= bar * len(truly)
            drawn[f"{name}, {world}"] = truly
    lines += ["", f"{'met' if is_met else 'MISSED'}; {machine()['processor']}, {versions()}"]
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    (options.out / "search_winner.md").write_text("\n".join(lines) + "\n")
    (options.out / "search_winner.json").write_text(json.dumps(content) + "\n")
    draw(drawn, options.out / "search_winner.png")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
