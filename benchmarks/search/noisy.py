"""Recorded tables with the noise of single runs, and the ways to confirm a winner on them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from recorded import SLOTS, Config, Point, Task

from raybench.search.race import Race
from raybench.stats.replicates import Replicate
from raybench.stats.standing import Candidate, Stages

NOISE = 0.03
"""Of a trial's seconds, as a standard deviation of their logarithm; measured between runs."""
Leader = tuple[Config, float | None]
"""A configuration that reached the target, and the seconds of the search's own run of it; None
where that run was elsewhere or does not count."""


class NoisyTask(Task):
    """A task whose trials are each a little faster or slower than the truth."""

    rng: np.random.Generator

    def trial(
        self, config: Config, rng: np.random.Generator | None = None
    ) -> tuple[list[Point], str]:
        """Stretch the times of the recorded trial."""
        factor = float(np.exp(NOISE * self.rng.standard_normal()))
        step_s = self.table.step_s
        self.table.step_s = lambda *setup: factor * step_s(*setup)  # type: ignore[method-assign]
        try:
            return super().trial(config, rng)
        finally:
            self.table.step_s = step_s  # type: ignore[method-assign]


def seed_of(seed: int | None, round_number: int) -> np.random.Generator | None:
    """Return what the runs of a round draw their seed from, all the same; None where none does."""
    return None if seed is None else np.random.default_rng([seed, round_number])


def confirm(
    task: Task, leaders: Sequence[Config], *, repeats: int, seed: int | None = None
) -> tuple[Config, list[float]]:
    """Train every leader anew, `repeats` times, with the same seeds; None draws none.

    Returns the one with the lowest median time to target, and each one's slot-seconds.
    """
    times, used = {}, []
    for config in leaders:
        ends = [task.trial(config, seed_of(seed, number))[0][-1] for number in range(repeats)]
        reached = [math.inf if e.time_to_target_s is None else e.time_to_target_s for e in ends]
        times[config] = float(np.median(reached))
        used.append(sum(end.train_s for end in ends) * config.num_workers)
    return min(times, key=lambda config: times[config]), used


class Raced(NamedTuple):
    """What a race came to."""

    winner: Config
    slot_seconds: float
    """Of its runs."""
    wall_s: float
    """In SLOTS slots, those that are due together beside each other."""


def race(task: Task, leaders: Sequence[Leader], plan: Stages, *, seed: int | None) -> Raced:
    """Race the leaders over the stages of a plan (`search.race`); they are best first.

    With a `seed`, runs draw recorded seeds, those of a round all the same one.
    """
    configs = {str(place): config for place, (config, _) in enumerate(leaders)}
    candidates = [
        Candidate(str(place), None if own is None else Replicate(own, True), config.num_workers)
        for place, (config, own) in enumerate(leaders)
    ]
    found = Race(candidates, plan, axis="seconds")
    used = wall_s = 0.0
    while due := found.due():
        together = []
        for run in due:
            config = configs[run.name]
            repeat = _run(task, config, seed_of(seed, run.round), found.cap_s(run.name))
            used += repeat.seconds * config.num_workers
            together.append((repeat.seconds, config.num_workers))
            found.learn(run.name, run.round, repeat)
        wall_s += _makespan(together)
    return Raced(configs[found.leader() or "0"], used, wall_s)


def _makespan(runs: Sequence[tuple[float, int]]) -> float:
    """Return when the last of some runs (seconds, workers) ends, first come, first served."""
    free_at = [0.0] * SLOTS
    for seconds, workers in runs:
        free_at.sort()
        end = free_at[workers - 1] + seconds
        free_at[:workers] = [end] * workers
    return max(free_at)


def _run(
    task: Task, config: Config, rng: np.random.Generator | None, cap: float | None
) -> Replicate:
    """Train once, to the target, the task's limit, or the first evaluation after the cap."""
    for point in task.trial(config, rng)[0]:
        if point.time_to_target_s is not None:
            return Replicate(point.time_to_target_s, True)
        if cap is not None and point.train_s >= cap:
            break
    return Replicate(point.train_s, False)
