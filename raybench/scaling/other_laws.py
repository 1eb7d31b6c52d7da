"""Laws that others proposed, each fitted as its authors did: they are averaged with ours where they
were right, and benchmarks measure them beside it."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize, nnls

from raybench.scaling.measurements import Cell, Floats, Layout

Rows = Sequence[tuple[Cell, float]]
"""Cells and seconds of a step in them."""
LEAST_S = 1e-9


def ernest(rows: Rows, cells: Sequence[Cell]) -> Floats:
    """Return seconds by Ernest (Venkataraman 2016): a constant, the samples of a worker, log
    workers and workers, none of them negative, by least relative squares."""

    def design(some: Sequence[Cell]) -> Floats:
        at = Layout.of(some)
        return np.stack([np.ones_like(at.batch), at.batch, np.log(at.workers), at.workers], axis=1)

    return relative_least_squares(design([cell for cell, _ in rows]), rows, design(cells))


def relative_least_squares(known: Floats, rows: Rows, asked: Floats) -> Floats:
    """Return seconds as a sum of columns with factors of at least zero, fitted to `rows`."""
    seconds = np.array([one for _, one in rows])
    matrix = known / seconds[:, None]
    widths = np.maximum(matrix.max(axis=0), 1e-12)
    found = nnls(matrix / widths, np.ones(len(seconds)), maxiter=1000)[0] / widths
    return np.asarray(np.maximum(asked @ found, LEAST_S))


def pollux(rows: Rows, cells: Sequence[Cell]) -> Floats:
    """Return seconds by Pollux (Qiao 2021, section 4.3): compute affine in the batch, exchange
    affine in the workers within and between nodes, a p-norm of both; RMSLE with its penalties,
    bounded L-BFGS, and parameters pinned that nothing was measured of."""
    at = Layout.of([cell for cell, _ in rows])
    logs = np.log([seconds for _, seconds in rows])

    def step(x: Floats, at: Layout) -> Floats:
        compute = np.log(x[0] + x[1] * at.batch)
        away = np.maximum(at.workers - 2, 0)
        wire = np.where(at.nodes > 1, x[2] + x[3] * away, x[4] + x[5] * away)
        both = np.logaddexp(x[6] * compute, x[6] * np.log(wire)) / x[6]
        last = np.where(at.workers > 1, both, compute)
        return np.asarray((at.accumulate - 1) * np.exp(compute) + np.exp(last))

    def loss(x: Floats) -> float:
        squares = (np.log(step(x, at)) - logs) ** 2
        error = math.sqrt(np.mean(squares))
        alone = at.workers == 1
        if alone.any():  # the only rows whose compute is seen by itself
            error += math.sqrt(np.mean(squares[alone]))
        pull = 1e-3 * (x[6] - 1) ** 2
        return float(error + pull + 1e-2 * ((x[3] / x[2]) ** 2 + (x[5] / x[4]) ** 2))

    mean = float(np.mean(np.exp(logs)))
    per_sample = mean / 2 / float(at.batch.mean())
    start = np.array([mean / 2, per_sample, mean / 4, mean / 100, mean / 8, mean / 100, 2])
    low, high = np.full(7, 1e-8), np.full(7, np.inf)
    low[6], high[6] = 1.0, 10.0
    if len(set(at.batch)) == 1:
        start[0] = low[0] = high[0] = mean / 2
    between = at.nodes > 1
    if not between.any():
        start[2], start[3] = 1.1 * start[4], 1.1 * start[5]
    if not (between & (at.workers > 2)).any():
        start[3] = low[3] = high[3] = 1e-8
    if not (~between & (at.workers > 2)).any():
        start[5] = low[5] = high[5] = 1e-8
    # In units of where it starts: slopes are by differences here, Pollux has exact ones.
    bounds = [(a / c, b / c) for a, b, c in zip(low, high, start, strict=True)]
    found = minimize(lambda u: loss(start * u), np.ones(7), method="L-BFGS-B", bounds=bounds)
    x = start * found.x
    if not between.any():
        x[2], x[3] = max(x[2], 1.1 * x[4]), max(x[3], 1.1 * x[5])
    return step(x, Layout.of(cells))
