"""Claim: a program that edits a training and keeps what `compare --session` calls better keeps a
useless change in at most 5 of 100 sessions.

A session begins with a configuration of a recorded table (one worker) that takes 1.5 to 10 times
(far) or 1.05 to 1.5 times (near) as long as the best, and proposes edits. A third of them change
nothing (a refactoring), the others change the optimizer, or the rate or the batch by a step of the
grid. Runs draw a recorded seed and scatter by another 3 %; the true time is the expected time over
all recorded seeds. Programs:

- `once`: keep a candidate if its run was faster than the run of the present version.
- `mean of three`: the same with the means of three runs.
- `compare`: compare every candidate in at most 20 pairs, in one `--session`.
- `run once, then compare`: drop a candidate if its first run is not faster than the median run of
  the present version, otherwise compare it with new runs (`examples/agent/loop.py`).

A false keep is a kept candidate whose true time is not better. Progress is the logarithm of the
true time at the start over that at the end of the budget. A budget counts all training seconds, in
runs of the start.

    python benchmarks/search/sessions.py [--sessions 200]

Bar: at most 5 % of sessions have a false keep, at every budget. The price of certainty is printed,
too: progress per second over that of `once`. Writes results/sessions.md; exit 1 above the bar. Five
minutes on one core.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from noisy import NOISE
from recorded import Config, Table, Task

from benchmarks.output import write_results
from raybench.stats.sequential import ALPHA, outcome_of

RESULTS = Path(__file__).parents[1] / "results" / "sessions.md"
NAMES = ("flights_mlp", "docstrings_text", "cifar_resnet", "docstrings_throttled")
BUDGETS = (30, 100, 300)
"""Training seconds of a session over the seconds of a run of its start."""
STARTS = {"far": (1.5, 10.0), "near": (1.05, 1.5)}
"""Range of the true time of a start over the best one."""
PAIRS = 20
NO_EDIT = 1 / 3
"""Share of edits that change nothing."""


class World:
    """Configurations of a table on one worker, with seconds by recorded seed and the true time."""

    def __init__(self, name: str) -> None:
        self.task = Task(Table(name))
        self.table = self.task.table
        configs = [one for one in self.table.configs() if one.num_workers == 1]
        limit = self.task.t_max
        known = {config: self.task.seed_seconds(config) for config in configs}
        self.runs = {one: np.where(s <= limit, s, math.inf) for one, s in known.items()}
        self.truth = {one: self.task.expected_s(one) for one in configs}
        best = min(self.truth.values())
        self.starts = {
            name: [one for one in configs if low * best <= self.truth[one] <= high * best]
            for name, (low, high) in STARTS.items()
        }

    def edit(self, config: Config, rng: np.random.Generator) -> Config:
        """Return an edited configuration; for a useless edit, the same one."""
        if rng.random() < NO_EDIT:
            return config
        rates = self.table.meta["rates"]
        what, step = rng.integers(3), int(rng.choice((-1, 1)))
        if what == 0:
            optimizer = str(rng.choice([one for one in rates if one != config.optimizer]))
            return replace(config, optimizer=optimizer, rate=float(rng.choice(rates[optimizer])))
        if what == 1:
            known = sorted(rates[config.optimizer])
            at = int(np.abs(np.log(known) - math.log(config.rate)).argmin())
            return replace(config, rate=known[min(max(at + step, 0), len(known) - 1)])
        batches = sorted(self.table.batches_per_worker)
        at = batches.index(config.batch_size_per_worker) + step
        return replace(config, batch_size_per_worker=batches[min(max(at, 0), len(batches) - 1)])


@dataclass
class Session:
    """A session: its present version, the seconds spent, and the candidates kept."""

    world: World
    present: Config
    rng: np.random.Generator
    spent: float = 0.0
    keeps: list[tuple[float, Config, bool]] = field(default_factory=list)
    """Each kept candidate: seconds spent by then, configuration, whether it is a false keep."""
    compared: int = 0
    known: list[float] = field(default_factory=list)
    """Log seconds of the runs of the present version."""

    def run(self, config: Config) -> float:
        """Train once; return log seconds to the target, infinite for a miss."""
        seconds = float(self.rng.choice(self.world.runs[config]))
        seconds *= math.exp(NOISE * self.rng.standard_normal())
        self.spent += min(seconds, self.world.task.t_max)
        return math.log(seconds) if math.isfinite(seconds) else math.inf

    def keep(self, candidate: Config) -> None:
        """Keep a candidate."""
        truth = self.world.truth
        self.keeps.append((self.spent, candidate, truth[candidate] >= truth[self.present]))
        self.present = candidate

    def progress_at(self, start: Config, budget: float) -> float:
        """Return the progress at the end of a budget."""
        held = [start, *(config for spent, config, _ in self.keeps if spent <= budget)][-1]
        return math.log(self.world.truth[start] / self.world.truth[held])

    def falsely_kept(self, budget: float) -> list[bool]:
        """Return for each kept candidate within the budget whether it is a false keep."""
        return [is_false for spent, _, is_false in self.keeps if spent <= budget]


def by_mean(runs: int) -> Callable[[Session, Config], None]:
    """Return the program that keeps the lower mean of `runs` runs."""

    def step(session: Session, candidate: Config) -> None:
        session.known = session.known or [session.run(session.present) for _ in range(runs)]
        found = [session.run(candidate) for _ in range(runs)]
        if fmean(found) < fmean(session.known):
            session.known = found
            session.keep(candidate)

    return step


def by_compare(session: Session, candidate: Config) -> None:
    """Compare in pairs; keep a candidate that is called better."""
    session.compared += 1
    errors = ALPHA / (session.compared * (session.compared + 1))
    sides: dict[str, list[float]] = {"A": [], "B": []}
    outcome = "undecided"
    while outcome == "undecided" and len(sides["A"]) < PAIRS:
        sides["A"].append(session.run(session.present))
        sides["B"].append(session.run(candidate))
        pairs = zip(sides["A"], sides["B"], strict=True)
        differences = [a - b for a, b in pairs if math.isfinite(a) or math.isfinite(b)]
        if len(differences) * math.log(2.0) >= math.log(1.0 / errors):  # else none can be named
            outcome = outcome_of(differences, smallest=-math.log1p(-0.02), errors=errors)
    session.known = sides["B" if outcome == "better" else "A"]
    if outcome == "better":
        session.keep(candidate)


def by_screen(session: Session, candidate: Config) -> None:
    """Drop a candidate that is slower in one run; compare the others."""
    session.known = session.known or [session.run(session.present)]
    if session.run(candidate) < median(session.known):
        by_compare(session, candidate)


PROGRAMS: dict[str, Callable[[Session, Config], None]] = {
    "once": by_mean(1),
    "mean of three": by_mean(3),
    "compare": by_compare,
    "run once, then compare": by_screen,
}
OURS = "run once, then compare"


def sessions(
    program: Callable[[Session, Config], None], worlds: list[World], starts: str, number: int
) -> Iterator[tuple[Session, Config]]:
    """Yield ended sessions and their starts, which are the same for all programs."""
    for seed in range(number):
        rng = np.random.default_rng(seed)
        world = worlds[seed % len(worlds)]
        start = world.starts[starts][rng.integers(len(world.starts[starts]))]
        session = Session(world, start, rng)
        budget = max(BUDGETS) * world.truth[start]
        while session.spent < budget:
            program(session, world.edit(session.present, rng))
        yield session, start


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    number = parser.parse_args().sessions
    worlds = [World(name) for name in NAMES]
    found = {
        (starts, name): list(sessions(one, worlds, starts, number))
        for starts in STARTS
        for name, one in PROGRAMS.items()
    }
    lines = [
        "| start | budget, runs of it | program | sessions with a false keep | false keeps "
        "| times as fast at the end | progress per second, in that of `once` |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    is_above = False
    for starts, budget in itertools.product(STARTS, BUDGETS):
        progress: dict[str, float] = {}
        for name in PROGRAMS:
            ended = found[starts, name]
            limits = [budget * one.world.truth[start] for one, start in ended]
            kept = [one.falsely_kept(s) for (one, _), s in zip(ended, limits, strict=True)]
            every = [is_false for one in kept for is_false in one]
            gains = [
                one.progress_at(start, s) for (one, start), s in zip(ended, limits, strict=True)
            ]
            progress[name] = fmean(gains)
            share = fmean(map(any, kept))
            lines.append(
                f"| {starts} | {budget} | {name} | {share:.1%} | {sum(every)} of {len(every)} | "
                f"{math.exp(progress[name]):.2f} | {progress[name] / progress['once']:.2f} |"
            )
            is_above |= name == OURS and share > ALPHA
    about = (
        f"`python benchmarks/search/sessions.py --sessions {number}`; tables {', '.join(NAMES)}."
    )
    write_results(RESULTS, "A program that edits a training", about, lines)
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main())
