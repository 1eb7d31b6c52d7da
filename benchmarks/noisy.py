"""Recorded tables with the noise of single runs, and a confirm phase on them."""

import math

import numpy as np
from recorded import Config, Point, Task

NOISE = 0.03
"""Of a trial's seconds, as a standard deviation of their logarithm; measured between runs."""


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


def confirm(
    task: Task, leaders: list[Config], *, repeats: int, rng: np.random.Generator | None = None
) -> tuple[Config, list[float]]:
    """Train every leader anew, `repeats` times.

    Returns the one with the lowest median time to target, and each one's slot-seconds.
    """
    times, used = {}, []
    for config in leaders:
        ends = [task.trial(config, rng)[0][-1] for _ in range(repeats)]
        reached = [math.inf if e.time_to_target_s is None else e.time_to_target_s for e in ends]
        times[config] = float(np.median(reached))
        used.append(sum(end.train_s for end in ends) * config.num_workers)
    return min(times, key=lambda config: times[config]), used
