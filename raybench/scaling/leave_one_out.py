"""How far a throughput model is off where it did not see the cell that it predicts."""

from dataclasses import dataclass

import numpy as np

from raybench.scaling.fit import Prediction, ThroughputModel

MOST = 40
"""Cells that are left out, one after the other: enough to tell the median error."""


@dataclass(frozen=True)
class LeftOut:
    """A measured cell, predicted from all others."""

    measured_s: float
    """Median of its repeats."""
    predicted: Prediction

    @property
    def error(self) -> float:
        """Relative: 0.1 is predicted 10 % too slow."""
        return self.predicted.step_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s


def leave_one_out(model: ThroughputModel) -> list[LeftOut]:
    """Return measured cells as the others predict them; nothing for a single one.

    Of more than MOST cells, so many are left out, evenly from the first to the last: each of them
    is a fit.
    """
    observed = model.observed
    number = len(observed.cells)
    if number < 2:
        return []
    seconds = np.exp(observed.log_seconds)
    chosen = np.unique(np.linspace(0, number - 1, min(number, MOST)).round().astype(int))
    return [
        LeftOut(float(seconds[i]), model.without(i).predict([observed.cells[i]])[0])
        for i in map(int, chosen)
    ]


def median_error(cells: list[LeftOut]) -> float:
    """Return the median of the relative errors' sizes."""
    return float(np.median([abs(cell.error) for cell in cells]))
