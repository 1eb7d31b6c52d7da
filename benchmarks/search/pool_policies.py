"""Policies that name a configuration of a pool of recorded runs, and their cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pool_worlds import Draws, Pool, Run

from raybench.search.race import Race
from raybench.spec.study import SearchSpec
from raybench.stats.replicates import Replicate
from raybench.stats.standing import Candidate, stages

TOP, REPEATS = 3, 3
"""Number of best configurations that run again, and of their new runs, in `name_median`."""


@dataclass(frozen=True)
class Outcome:
    """Result of a study."""

    named: int | None
    """The named option; None if none reached the target."""
    seconds: float
    """Training seconds of all runs."""
    num_runs: int


Policy = Callable[[Pool, Draws, np.random.Generator], Outcome]


def until(run: Run, cap_s: float) -> Replicate:
    """Return a run that is stopped if its next evaluation would come after `cap_s` seconds."""
    if math.isfinite(run.reached_s) and run.reached_s <= cap_s:
        return Replicate(run.reached_s, is_hit=True)
    within = run.seconds[run.seconds <= cap_s]
    spent = within[-1] if len(within) else run.seconds[0]
    return Replicate(min(float(spent), run.spent_s), is_hit=False)


def search(
    pool: Pool,
    draws: Draws,
    rng: np.random.Generator,
    cap_factor: float | None,
) -> dict[int, Replicate]:
    """Run every option once, in random order, as raybench's search does with a grid.

    Runs are stopped at `cap_factor` times the best time so far; None stops no run.
    """
    runs: dict[int, Replicate] = {}
    times: list[float] = []
    for option in rng.permutation(len(pool.options)).tolist():
        cap_s = math.inf
        if cap_factor is not None and times:
            cap_s = cap_factor * min(times)
        runs[option] = until(draws.next(option), cap_s)
        if runs[option].is_hit:
            times.append(runs[option].seconds)
    return runs


def leaders(found: dict[int, Replicate]) -> list[int]:
    """Return the options that reached the target, best single run first."""
    hits = [option for option, repeat in found.items() if repeat.is_hit]
    return sorted(hits, key=lambda option: found[option].seconds)


def name_single(pool: Pool, draws: Draws, rng: np.random.Generator) -> Outcome:
    """Run every option once, to its end; name the fastest."""
    return _name_best(search(pool, draws, rng, None))


def name_single_capped(pool: Pool, draws: Draws, rng: np.random.Generator) -> Outcome:
    """Run raybench's search alone; name the fastest."""
    return _name_best(search(pool, draws, rng, SearchSpec().cap_factor))


def _name_best(found: dict[int, Replicate]) -> Outcome:
    order = leaders(found)
    seconds = sum(repeat.seconds for repeat in found.values())
    return Outcome(order[0] if order else None, seconds, len(found))


def name_median(pool: Pool, draws: Draws, rng: np.random.Generator) -> Outcome:
    """Run raybench's search, then its best three options again; name the least median."""
    found = search(pool, draws, rng, SearchSpec().cap_factor)
    spent = [repeat.seconds for repeat in found.values()]
    medians: dict[int, float] = {}
    for option in leaders(found)[:TOP]:
        runs = [draws.next(option) for _ in range(REPEATS)]
        spent += [run.spent_s for run in runs]
        medians[option] = float(np.median([run.reached_s for run in runs]))
    named = min(medians, key=lambda option: medians[option]) if medians else None
    return Outcome(named, sum(spent), len(spent))


def name_raced(pool: Pool, draws: Draws, rng: np.random.Generator, number: int) -> Outcome:
    """Run raybench's search, then a race of `number` new runs; all options have equal workers."""
    found = search(pool, draws, rng, SearchSpec().cap_factor)
    spent = [repeat.seconds for repeat in found.values()]
    candidates = [Candidate(str(o), found[o], pool.num_workers) for o in leaders(found)]
    race = Race(candidates, stages(number), axis="seconds")
    while due := race.due():
        # As in a study, the runs of a stage start together, so all have the same cap.
        learned = [(one, until(draws.next(int(one.name)), _cap(race, one.name))) for one in due]
        for one, repeat in learned:
            race.learn(one.name, one.round, repeat)
            spent.append(repeat.seconds)
    leader = race.leader()
    return Outcome(None if leader is None else int(leader), sum(spent), len(spent))


def _cap(race: Race, name: str) -> float:
    cap_s = race.cap_s(name)
    return math.inf if cap_s is None else cap_s


RACED = "raybench, race of 24"
POLICIES: dict[str, Policy] = {
    "one run each, the fastest": name_single,
    "raybench's search, no repetitions": name_single_capped,
    "raybench's search, 3 x 3 medians": name_median,
    "raybench, race of 10": lambda pool, draws, rng: name_raced(pool, draws, rng, 10),
    RACED: lambda pool, draws, rng: name_raced(pool, draws, rng, 24),
    "raybench, race of 40": lambda pool, draws, rng: name_raced(pool, draws, rng, 40),
}
"""Policies that need no search library."""
