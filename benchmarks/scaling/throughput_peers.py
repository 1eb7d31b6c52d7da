"""Other models of step times for `throughput_model.py`; each fits and predicts in one call."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from raybench.scaling.averaged import ernest, pollux, relative_least_squares
from raybench.scaling.measurements import Cell, MeasuredSteps

Predictor = Callable[[MeasuredSteps, Sequence[Cell]], np.ndarray]


def linear_scaling(rows: MeasuredSteps, cells: Sequence[Cell]) -> np.ndarray:
    """Predict the step time of the fewest measured workers, without a cost of scaling."""
    fewest = min(cell.num_workers for cell, _ in rows)
    few = [(cell, s) for cell, s in rows if cell.num_workers == fewest]
    x = np.log([cell.batch_size_per_worker for cell, _ in few])
    y = np.log([seconds for _, seconds in few])
    order = np.argsort(x)
    return np.exp([np.interp(math.log(c.batch_size_per_worker), x[order], y[order]) for c in cells])


def amdahl(rows: MeasuredSteps, cells: Sequence[Cell]) -> np.ndarray:
    """Predict seconds per sample as a serial part and a part divided by the workers."""

    def design(some: Sequence[Cell]) -> np.ndarray:
        k = np.array([c.num_workers for c in some], float)
        b = np.array([c.batch_size_per_worker for c in some], float)
        return np.stack([np.ones_like(b), b, b * k], axis=1)

    return relative_least_squares(design([cell for cell, _ in rows]), rows, design(cells))


def boosting(rows: MeasuredSteps, cells: Sequence[Cell]) -> np.ndarray:
    """Predict by gradient-boosted trees on the logarithms."""
    from sklearn.ensemble import GradientBoostingRegressor

    model = GradientBoostingRegressor(n_estimators=100, max_depth=3, random_state=0)
    model.fit(_features([cell for cell, _ in rows]), np.log([s for _, s in rows]))
    return np.exp(model.predict(_features(cells)))


def nearest(rows: MeasuredSteps, cells: Sequence[Cell]) -> np.ndarray:
    """Predict the step time of the nearest measured cell, by doublings."""
    have, want = _features([cell for cell, _ in rows]), _features(cells)
    apart = np.abs(want[:, None] - have[None]).sum(axis=2)
    return np.array([s for _, s in rows])[apart.argmin(axis=1)]


def _columns(cells: Sequence[Cell]) -> tuple[np.ndarray, ...]:
    rows = [(c.num_workers, c.num_nodes, c.batch_size_per_worker, c.accumulate) for c in cells]
    return tuple(np.array(rows, float).T)


def _features(cells: Sequence[Cell]) -> np.ndarray:
    return np.log2(np.stack(_columns(cells), axis=1))


PEERS: dict[str, Predictor] = {
    "linear scaling": linear_scaling,
    "Amdahl": amdahl,
    "Ernest": ernest,
    "Pollux": pollux,
    "boosting": boosting,
    "nearest": nearest,
}
