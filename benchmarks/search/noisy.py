"""Recorded tables with the noise of single runs, and the race that confirms a winner on them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from recorded import SLOTS, Config, Point, Task

from raybench.search.race import Race
from raybench.stats.replicates import Replicate
from raybench.stats.standing import Candidate, Stages

NOISE = 0.03
"""Standard deviation of the log seconds between runs of one configuration on one machine, as
measured."""
Leader = tuple[Config, float | None]
"""A configuration that reached the target, and the seconds of its run in the search; None if that
run had another placement or does not count."""


class NoisyTask(Task):
    """A task whose trials scatter around the recorded times."""

    rng: np.random.Generator

    def trial(
        self, config: Config, rng: np.random.Generator | None = None
    ) -> tuple[list[Point], str]:
        """Return the recorded trial with all times multiplied by one random factor."""
        factor = float(np.exp(NOISE * self.rng.standard_normal()))
        step_s = self.table.step_s
        self.table.step_s = lambda *setup: factor * step_s(*setup)  # type: ignore[method-assign]
        try:
            return super().trial(config, rng)
        finally:
            self.table.step_s = step_s  # type: ignore[method-assign]


def round_rng(seed: int | None, round_number: int) -> np.random.Generator | None:
    """Return a generator that draws the same recorded seed for all runs of a round, or None if runs
    draw no seed."""
    return None if seed is None else np.random.default_rng([seed, round_number])


class Raced(NamedTuple):
    """Result of a race."""

    winner: Config
    worker_seconds: float
    """Training seconds times workers, summed over the runs."""
    wall_s: float
    """Duration in SLOTS slots; runs that are due together run side by side."""


def race(task: Task, leaders: Sequence[Leader], plan: Stages, *, seed: int | None) -> Raced:
    """Race the leaders, best first, over the stages of a plan (`raybench.search.race`).

    With a `seed`, runs draw recorded seeds; all runs of a round draw the same one.
    """
    configs = {str(place): config for place, (config, _) in enumerate(leaders)}
    candidates = [
        Candidate(str(place), None if own is None else Replicate(own, True), config.num_workers)
        for place, (config, own) in enumerate(leaders)
    ]
    state = Race(candidates, plan, axis="seconds")
    used = wall_s = 0.0
    while due := state.due():
        together = []
        for run in due:
            config = configs[run.name]
            repeat = _run(task, config, round_rng(seed, run.round), state.cap_s(run.name))
            used += repeat.seconds * config.num_workers
            together.append((repeat.seconds, config.num_workers))
            state.learn(run.name, run.round, repeat)
        wall_s += _makespan(together)
    return Raced(configs[state.leader() or "0"], used, wall_s)


def _makespan(runs: Sequence[tuple[float, int]]) -> float:
    """Return when the last of some runs (seconds, workers) ends, in the order of their start."""
    free_at = [0.0] * SLOTS
    for seconds, workers in runs:
        free_at.sort()
        end = free_at[workers - 1] + seconds
        free_at[:workers] = [end] * workers
    return max(free_at)


def _run(
    task: Task, config: Config, rng: np.random.Generator | None, cap: float | None
) -> Replicate:
    """Train once: to the target, the task's time limit, or the first evaluation after the cap."""
    for point in task.trial(config, rng)[0]:
        if point.time_to_target_s is not None:
            return Replicate(point.time_to_target_s, True)
        if cap is not None and point.train_s >= cap:
            break
    return Replicate(point.train_s, False)
