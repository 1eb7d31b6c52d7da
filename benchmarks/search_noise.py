"""Claim: the cap and the number of trials are what finds the truly best for equal seconds.

Single runs differ by their seeds: by 30 % in `search_real.json`. Policies of a search are compared
in worlds that are cheap enough for many replays (`seed_worlds.py`: recorded seeds, recorded means
that a seed stretches, smooth plateaus) with a light sampler (`light.py`) and the real cap, rungs
and race. Printed are, for each policy, the slot-seconds of searching and of confirming, how often
the winner is truly within 5 and 10 % of the best, and the geometric mean of what it lacks; and
what became of the trials that were within 10 %: stopped by the cap, or by rungs.

    python benchmarks/search_noise.py [--worlds mlp ...] [--seeds 40] [--policies ...]

About 12 minutes on one core. Writes results/search_noise.{md,json}; has no bar. Losses are printed
like wins.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from light import Light
from noisy import Leader, NoisyTask, confirm, race
from recorded import Table
from replay import search
from seed_worlds import Alone, Plateau, Stretched

from raybench.core.standing import stages
from raybench.results.store import machine, versions
from raybench.search.policy import DEFAULT, Reference, SearchPolicy, third_best

RESULTS = Path(__file__).with_name("results")
WORLDS: dict[str, Callable[[], Table]] = {
    "recorded mlp": lambda: Alone("mnist_mlp"),
    "conv, sigma 0.3": lambda: Stretched("mnist_conv", 0.3),
    "mlp, sigma 0.3": lambda: Stretched("mnist_mlp", 0.3),
    "plateau, sigma 0.3": lambda: Plateau(0.3),
    "flatter, sigma 0.3": lambda: Plateau(0.3, steepness=1.0),
}
LUCK = (0.0, 0.56, 0.85, 1.03, 1.16, 1.27, 1.35, 1.42, 1.49, 1.54)
"""How far below their mean the least of 1, 2, ... normal numbers is expected."""


def nth_best(number: int) -> Reference:
    """Return the reference that is the n-th best of the times."""
    return lambda times: times[min(number, len(times)) - 1]


def lower_quarter(times: Sequence[float]) -> float:
    """Return the lower quartile of all times."""
    return float(np.quantile(times, 0.25))


def less_luck(times: Sequence[float], sigma: float = 0.3) -> float:
    """Return the best time without the luck to expect of so many that may be as good.

    No configuration runs twice in a search, so sigma is what other studies had.
    """
    near = sum(one <= times[0] * math.exp(2 * sigma) for one in times)
    return times[0] * math.exp(sigma * LUCK[min(near, len(LUCK)) - 1])


@dataclass(frozen=True)
class Way:
    """A policy of a search."""

    reference: Reference = third_best
    cap: float | None = 1.5
    trials: int = 120
    num_compared: int = DEFAULT.num_compared
    num_best: int = DEFAULT.num_best
    resolution: float = DEFAULT.resolution
    rung_factor: float = DEFAULT.rung_factor

    @property
    def policy(self) -> SearchPolicy:
        """Return it as the search has it."""
        return replace(
            DEFAULT,
            reference=self.reference,
            num_compared=self.num_compared,
            num_best=self.num_best,
            resolution=self.resolution,
            rung_factor=self.rung_factor,
        )


WAYS: dict[str, Way] = {
    "the best x 1.5": Way(nth_best(1)),
    "third x 1.5": Way(),
    "lower quartile x 1.5": Way(lower_quarter, num_compared=1000),
    "best less luck x 1.5": Way(less_luck, num_compared=1000),
    "third x 1.25": Way(cap=1.25),
    "the best x 2": Way(nth_best(1), cap=2.0),
    "no cap": Way(cap=None),
    "third, 80 trials": Way(trials=80),
    "third, 60 trials": Way(trials=60),
    "the best x 1.5, 80 trials": Way(nth_best(1), trials=80),
    "third, neighbours of 8": Way(num_best=8),
    "third, repeats nearer": Way(resolution=0.02),
    "third, a third goes on": Way(rung_factor=3.0),
}
CONFIRMS = ("3 x 3", "24", "40", "84")
WORST = 4.0
"""No winner counts as further from the best than so many times its seconds."""
Summary = dict[str, list[float]]


def study(task: NoisyTask, seed: int, way: Way) -> Summary:
    """Search once and confirm in every way: what it took, and how far winners are from the best."""
    task.rng = np.random.default_rng([seed, 0])
    one = Light(task.space, seed, policy=way.policy, cap_factor=way.cap)
    rng = np.random.default_rng([seed, 0, 1])  # of no round of a confirm phase
    search(task, one, rng=rng, charge=0.0, max_trials=way.trials, until=0.0, limit=math.inf)
    near = [t for t, config in one.configs.items() if task.tta(config) <= 1.1 * task.best_s]
    stopped = [sum(one.why.get(t) == why for t in near) for why in ("cap", "scheduler")]
    used = sum(record.ledger["train"] for record in one.records.values()) / task.best_s
    found = {"search": [used, len(near), *stopped]}
    leaders: list[Leader] = one.contenders()
    for name in CONFIRMS:
        if not leaders:
            found[name] = [math.inf, 0.0]
        elif name == "3 x 3":
            winner, spent = confirm(task, [c for c, _ in leaders[:3]], repeats=3, seed=seed)
            found[name] = [task.tta(winner) / task.best_s, sum(spent) / task.best_s]
        else:
            winner, seconds, _ = race(task, leaders, stages(int(name)), seed=seed)
            found[name] = [task.tta(winner) / task.best_s, seconds / task.best_s]
    return found


def summary(studies: list[Summary]) -> Summary:
    """Return means over the studies: of `search` as it is; of a way to confirm the shares within
    5 and 10 %, the logarithm of what the winner takes over the best, and the slot-seconds."""
    found = {
        "search": [fmean(values) for values in zip(*(s["search"] for s in studies), strict=True)]
    }
    for name in CONFIRMS:
        ratios = [one[name][0] for one in studies]
        found[name] = [
            *(fmean(ratio <= 1 + margin + 1e-9 for ratio in ratios) for margin in (0.05, 0.1)),
            fmean(math.log(min(ratio, WORST)) for ratio in ratios),
            fmean(one[name][1] for one in studies),
        ]
    return found


def line(name: str, found: Summary) -> str:
    """Return a policy's line of a table."""
    used, near, capped, halved = found["search"]
    cells = [
        f"{100 * close:.0f} / {100 * fair:.0f}, {100 * math.expm1(lack):.0f} %, {used + spent:.0f}"
        for close, fair, lack, spent in (found[one] for one in CONFIRMS)
    ]
    return f"| {name} | {used:.0f} | {near:.1f}, {capped:.1f}, {halved:.1f} | {' | '.join(cells)} |"


def mean_of(rows: list[Summary]) -> Summary:
    """Return the mean over worlds."""
    return {
        name: [fmean(values) for values in zip(*(row[name] for row in rows), strict=True)]
        for name in ("search", *CONFIRMS)
    }


def tables(found: dict[str, dict[str, Summary]]) -> list[str]:
    """Return a table of every world, and that of their mean."""
    names = [name for name in WAYS if any(name in ways for ways in found.values())]
    whole = {
        name: mean_of([ways[name] for ways in found.values()])
        for name in names
        if all(name in ways for ways in found.values())
    }
    lines = []
    for world, ways in {f"mean of {len(found)} worlds": whole, **found}.items():
        confirms = " | ".join(
            "best 3 x 3, medians" if name == "3 x 3" else f"race of {name}" for name in CONFIRMS
        )
        lines += [
            f"| {world} | search | near, capped, behind | {confirms} |",
            "|---" * (3 + len(CONFIRMS)) + "|",
            *(line(name, ways[name]) for name in names if name in ways),
            "",
        ]
    return lines


def main() -> int:
    """Replay every world with every policy; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="*", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--policies", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="results/*.json to join")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found: dict[str, dict[str, Summary]] = {}
    for file in options.add:
        for world, ways in json.loads(file.read_text()).items():
            found.setdefault(world, {}).update(ways)
    for world in options.worlds:
        task = NoisyTask(WORLDS[world]())
        for name in options.policies:
            studies = [study(task, seed, WAYS[name]) for seed in range(options.seeds)]
            found.setdefault(world, {})[name] = summary(studies)
            print(world, line(name, found[world][name]), file=sys.stderr, flush=True)
    lines = [
        *tables(found),
        "search: slot-seconds in best times to target. near, capped, behind: trials a search that "
        "were truly within 10 % of the best, and how many of these the cap and the rungs stopped. "
        "Then for each way to confirm: winners truly within 5 / 10 % of the best, of 100 "
        "searches; what the winner takes beyond the best (geometric mean); slot-seconds of search "
        "and confirm together.",
        f"{options.seeds} searches a world and policy; {machine()['processor']}, {versions()}",
    ]
    print("\n".join(lines))
    options.out.mkdir(exist_ok=True)
    (options.out / "search_noise.md").write_text("\n".join(lines) + "\n")
    (options.out / "search_noise.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
