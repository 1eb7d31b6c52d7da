"""Other ways to predict step times, for `throughput_model.py`; each fits and predicts in a call."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize, nnls

from raybench.scaling.measurements import Cell

Rows = Sequence[tuple[Cell, float]]
Predictor = Callable[[Rows, Sequence[Cell]], np.ndarray]


def linear_scaling(rows: Rows, cells: Sequence[Cell]) -> np.ndarray:
    """A step takes what it takes on the fewest workers measured: no cost of scaling."""
    fewest = min(cell.num_workers for cell, _ in rows)
    few = [(cell, s) for cell, s in rows if cell.num_workers == fewest]
    x = np.log([cell.batch_size_per_worker for cell, _ in few])
    y = np.log([seconds for _, seconds in few])
    order = np.argsort(x)
    return np.exp([np.interp(math.log(c.batch_size_per_worker), x[order], y[order]) for c in cells])


def amdahl(rows: Rows, cells: Sequence[Cell]) -> np.ndarray:
    """Seconds for a sample of the whole batch: a serial part and one that divides by workers."""

    def design(some: Sequence[Cell]) -> np.ndarray:
        k = np.array([c.num_workers for c in some], float)
        b = np.array([c.batch_size_per_worker for c in some], float)
        return np.stack([np.ones_like(b), b, b * k], axis=1)

    return _relative_nnls(design, rows, cells)


def ernest(rows: Rows, cells: Sequence[Cell]) -> np.ndarray:
    """Ernest (NSDI'16): 1, samples / workers, log workers, workers; non-negative."""

    def design(some: Sequence[Cell]) -> np.ndarray:
        k = np.array([c.num_workers for c in some], float)
        b = np.array([c.batch_size_per_worker for c in some], float)
        return np.stack([np.ones_like(b), b, np.log(k), k], axis=1)

    return _relative_nnls(design, rows, cells)


def _relative_nnls(
    design: Callable[[Sequence[Cell]], np.ndarray], rows: Rows, cells: Sequence[Cell]
) -> np.ndarray:
    seconds = np.array([s for _, s in rows])
    matrix = design([cell for cell, _ in rows]) / seconds[:, None]
    widths = np.maximum(matrix.max(axis=0), 1e-12)
    found = nnls(matrix / widths, np.ones(len(seconds)))[0] / widths
    return np.maximum(design(cells) @ found, 1e-9)


def pollux(rows: Rows, cells: Sequence[Cell]) -> np.ndarray:
    """Pollux's law and recipe: RMSLE with its penalties, bounded L-BFGS, pinned parameters."""
    k, n, b, s = _columns([cell for cell, _ in rows])
    seconds = np.array([value for _, value in rows])

    def predict(x: np.ndarray, cols: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        k, n, b, s = cols
        compute = x[0] + x[1] * b
        away = np.maximum(k - 2, 0)
        wire = np.where(n > 1, x[2] + x[3] * away, x[4] + x[5] * away)
        wire = np.where(k > 1, wire, 0.0)
        gamma = x[6]
        last = compute * (1 + (wire / compute) ** gamma) ** (1 / gamma)
        return compute, (s - 1) * compute + last

    def loss(x: np.ndarray) -> float:
        _, total = predict(x, (k, n, b, s))
        error = math.sqrt(np.mean((np.log(total) - np.log(seconds)) ** 2))
        alone = k == 1
        if alone.any():  # the only rows whose compute is seen by itself
            error += math.sqrt(np.mean((np.log(total) - np.log(seconds))[alone] ** 2))
        pull = 1e-3 * (x[6] - 1) ** 2
        return error + pull + 1e-2 * ((x[3] / x[2]) ** 2 + (x[5] / x[4]) ** 2)

    mean = float(np.mean(seconds))
    start = np.array([mean / 2, mean / 2 / b.mean(), mean / 4, mean / 100, mean / 8, mean / 100, 2])
    low = np.full(7, 1e-8)
    high = np.full(7, np.inf)
    low[6], high[6] = 1.0, 10.0
    if len(set(b)) == 1:
        start[0] = low[0] = high[0] = mean / 2
    if not (n > 1).any():
        start[2], start[3] = 1.1 * start[4], 1.1 * start[5]
    if not ((n > 1) & (k > 2)).any():
        start[3] = low[3] = high[3] = 1e-8
    if not ((n == 1) & (k > 2)).any():
        start[5] = low[5] = high[5] = 1e-8
    # In units of where it starts: slopes are by differences here, Pollux has exact ones.
    bounds = [(a / c, b / c) for a, b, c in zip(low, high, start, strict=True)]
    found = minimize(lambda u: loss(start * u), np.ones(7), method="L-BFGS-B", bounds=bounds)
    x = start * found.x
    if not (n > 1).any():
        x[2], x[3] = max(x[2], 1.1 * x[4]), max(x[3], 1.1 * x[5])
    return predict(x, _columns(cells))[1]


def boosting(rows: Rows, cells: Sequence[Cell]) -> np.ndarray:
    """Gradient-boosted trees on the logarithms."""
    from sklearn.ensemble import GradientBoostingRegressor

    model = GradientBoostingRegressor(n_estimators=100, max_depth=3, random_state=0)
    model.fit(_features([cell for cell, _ in rows]), np.log([s for _, s in rows]))
    return np.exp(model.predict(_features(cells)))


def nearest(rows: Rows, cells: Sequence[Cell]) -> np.ndarray:
    """The measured cell that is nearest in doublings."""
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
