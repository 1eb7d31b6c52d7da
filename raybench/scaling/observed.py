"""Measured cells, each once: repeats are taken together, and say how noisy the machine is."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from raybench.scaling.cells import Cell, Floats

USUAL_NOISE = 0.03
"""Relative spread from repeat to repeat that is expected, and how many repeats that weighs."""
USUAL_WEIGHT = 4
STALL = 4.0
"""A repeat further from its cell's median than so many times the usual counts as that far."""


@dataclass(frozen=True)
class Observed:
    """What was measured."""

    cells: tuple[Cell, ...]
    log_seconds: Floats
    """Logarithm of each cell's median step."""
    repeats: Floats
    noise: float
    """Variance of a measurement's logarithm from repeat to repeat; 0 where none was repeated:
    then it is part of what the law leaves over."""

    @classmethod
    def of(cls, rows: Iterable[tuple[Cell, float]]) -> "Observed":
        """Return measurements (cell, seconds of a step) by cell; a median bears a stall."""
        logs: dict[Cell, list[float]] = {}
        for cell, seconds in rows:
            logs.setdefault(cell, []).append(float(np.log(seconds)))
        cells = tuple(sorted(logs))
        medians = np.array([np.median(logs[cell]) for cell in cells])
        more = sum(len(values) - 1 for values in logs.values())
        apart = [abs(value - medians[i]) for i, cell in enumerate(cells) for value in logs[cell]]
        squares = float(np.sum(np.minimum(apart, _bound(apart)) ** 2))
        noise = (squares + USUAL_WEIGHT * USUAL_NOISE**2) / (more + USUAL_WEIGHT) if more else 0.0
        return cls(cells, medians, np.array([len(logs[c]) for c in cells], float), float(noise))

    def without(self, index: int) -> "Observed":
        """Return the measurements without those of a cell."""
        cells = self.cells[:index] + self.cells[index + 1 :]
        kept = [np.delete(values, index) for values in (self.log_seconds, self.repeats)]
        return Observed(cells, kept[0], kept[1], self.noise)


def _bound(apart: list[float]) -> float:
    """Return how far a repeat counts: a stall of hours is no sign that all are noisy."""
    usual = [value for value in apart if value > 0]
    return STALL * float(np.median(usual)) if usual else 0.0
