"""How far a throughput model is off where it did not see the cell that it predicts."""

from dataclasses import dataclass

import numpy as np

from raybench.scaling.fit import Prediction, ThroughputModel


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
    """Return every measured cell as the others predict it; nothing for a single one."""
    observed = model.observed
    if len(observed.cells) < 2:
        return []
    seconds = np.exp(observed.log_seconds)
    return [
        LeftOut(float(seconds[i]), model.without(i).predict([cell])[0])
        for i, cell in enumerate(observed.cells)
    ]


def median_error(cells: list[LeftOut]) -> float:
    """Return the median of the relative errors' sizes."""
    return float(np.median([abs(cell.error) for cell in cells]))
