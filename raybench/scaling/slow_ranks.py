"""Which worker is slow: from steps that each takes for itself, without an exchange.

In an exchange all wait for the last one, so that its seconds look alike on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raybench.scaling.measurements import Floats

SLOW = 1.1
"""Times the seconds of the others from which on a worker is called slow."""
OFTEN = 0.75
"""Share of the measurements in which it is."""
FEWEST = 6
"""Measurements, below which nothing is said."""


@dataclass(frozen=True)
class SlowRank:
    """A worker that all others wait for."""

    rank: int
    where: str
    """Its host and device."""
    times: float
    """Its seconds for the same work over those of the others, the median of all measurements."""
    is_input: bool
    """Whether it is slow only where it reads its samples."""

    @property
    def sentence(self) -> str:
        """What is said of it."""
        what = "its steps alone are not: its data come slowly" if self.is_input else "its steps are"
        advice = (
            "look at how that host reads them"
            if self.is_input
            else "look for a throttled or shared device there, or leave the host out"
        )
        return (
            f"Worker {self.rank} ({self.where}) takes {self.times:.2g} times as long as the others "
            f"for the same work, and every step waits for it; {what}: {advice}."
        )


def slow_ranks(alone: Floats, reading: Floats, where: Sequence[str]) -> list[SlowRank]:
    """Return the workers that stay slower than the others.

    `alone`: seconds of each measurement (row) and rank (column), on synthetic data in memory;
    `reading`: the same with the run's own data; `where`: of each rank. One that is slow in both is
    slow itself.
    """
    found = {rank: SlowRank(rank, where[rank], times, False) for rank, times in _slow(alone)}
    for rank, times in _slow(reading):
        found.setdefault(rank, SlowRank(rank, where[rank], times, True))
    return [found[rank] for rank in sorted(found)]


def moves(alone: Floats) -> float | None:
    """Return how many times as long the slowest takes where that is another worker each time; None
    where one stays slow, or all are about as fast."""
    if len(alone) < FEWEST or _slow(alone):
        return None
    times = float(np.median(_beside_others(alone).max(axis=1)))
    return times if times >= SLOW else None


def _beside_others(seconds: Floats) -> Floats:
    """Return each rank's seconds over those of the one in the middle, the lower of two."""
    middle = np.sort(seconds, axis=1)[:, (seconds.shape[1] - 1) // 2]
    return np.asarray(seconds / middle[:, None])


def _slow(seconds: Floats) -> list[tuple[int, float]]:
    """Return the ranks that are slow in most measurements, and how many times."""
    if len(seconds) < FEWEST or seconds.shape[1] < 2:
        return []
    times = _beside_others(seconds)
    often = (times >= SLOW).mean(axis=0) >= OFTEN
    return [(int(rank), float(np.median(times[:, rank]))) for rank in np.flatnonzero(often)]
