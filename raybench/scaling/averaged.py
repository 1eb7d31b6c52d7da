"""Throughput model: a weighted average of the law in `throughput` ("our law") and of published
laws, with intervals that remain valid beyond the measured range.

A cell is a combination of worker count, node count and batch size. Laws are weighted by how well
they extrapolate to cells with more workers. First the cells with the largest worker count are left
out, then also those with the second largest, and all laws are fitted to the other cells. Their
errors at the cells left out determine two things: the weights of the laws, and the factor by which
the intervals of our law are widened. The weight of a law is a negative power of its mean squared
error, as for normal errors of unknown variance; the power grows with the number of cells.

Within the measured range, predictions come from our law and its residuals alone. The weight of the
published laws rises from 0 over the first doubling of the workers beyond that range, and they never
change a prediction by more than LARGEST_MOVE.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize, nnls

from raybench.scaling.measurements import NINE_OF_TEN, Cell, Floats, Layout, MeasuredSteps, Observed
from raybench.scaling.throughput import PRIORS, LawFit, Priors

LEAST_S = 1e-9


def ernest(rows: MeasuredSteps, cells: Sequence[Cell]) -> Floats:
    """Return step times predicted by Ernest (Venkataraman 2016).

    The step time is a linear combination, with non-negative coefficients, of four terms: a
    constant, the samples per worker, the worker count and the log of the worker count. It is fitted
    by relative least squares.

    Args:
        rows: Measured step times, to which the model is fitted.
        cells: Cells to predict.

    Returns:
        Seconds per step, shape [cells].
    """

    def design(group: Sequence[Cell]) -> Floats:
        layout = Layout.of(group)
        return np.stack(
            [np.ones_like(layout.batch), layout.batch, np.log(layout.workers), layout.workers],
            axis=1,
        )

    seconds = np.array([step_s for _, step_s in rows])
    matrix = design([cell for cell, _ in rows]) / seconds[:, None]
    widths = np.maximum(matrix.max(axis=0), 1e-12)
    coefficients = nnls(matrix / widths, np.ones(len(seconds)), maxiter=1000)[0] / widths
    return np.asarray(np.maximum(design(cells) @ coefficients, LEAST_S))


def pollux(rows: MeasuredSteps, cells: Sequence[Cell]) -> Floats:
    """Return step times predicted by the model of Pollux (Qiao 2021, section 4.3).

    Compute time is affine in the batch size, communication time affine in the number of workers
    (within and between nodes), and both are combined by a p-norm. The fit minimizes RMSLE with
    Pollux's penalties by bounded L-BFGS; parameters without measurements are fixed.
    """
    layout = Layout.of([cell for cell, _ in rows])
    logs = np.log([seconds for _, seconds in rows])

    def step(x: Floats, layout: Layout) -> Floats:
        compute = np.log(x[0] + x[1] * layout.batch)
        extra_workers = np.maximum(layout.workers - 2, 0)
        exchange = np.where(
            layout.nodes > 1, x[2] + x[3] * extra_workers, x[4] + x[5] * extra_workers
        )
        overlapped = np.logaddexp(x[6] * compute, x[6] * np.log(exchange)) / x[6]
        last_pass = np.where(layout.workers > 1, overlapped, compute)
        return np.asarray((layout.accumulate - 1) * np.exp(compute) + np.exp(last_pass))

    def loss(x: Floats) -> float:
        squares = (np.log(step(x, layout)) - logs) ** 2
        error = math.sqrt(np.mean(squares))
        is_single = layout.workers == 1
        if is_single.any():  # the step time of a single worker is compute time only
            error += math.sqrt(np.mean(squares[is_single]))
        penalty = 1e-3 * (x[6] - 1) ** 2
        return float(error + penalty + 1e-2 * ((x[3] / x[2]) ** 2 + (x[5] / x[4]) ** 2))

    mean = float(np.mean(np.exp(logs)))
    per_sample = mean / 2 / float(layout.batch.mean())
    start = np.array([mean / 2, per_sample, mean / 4, mean / 100, mean / 8, mean / 100, 2])
    low, high = np.full(7, 1e-8), np.full(7, np.inf)
    low[6], high[6] = 1.0, 10.0
    if len(set(layout.batch)) == 1:
        start[0] = low[0] = high[0] = mean / 2
    between = layout.nodes > 1
    if not between.any():
        start[2], start[3] = 1.1 * start[4], 1.1 * start[5]
    if not (between & (layout.workers > 2)).any():
        start[3] = low[3] = high[3] = 1e-8
    if not (~between & (layout.workers > 2)).any():
        start[5] = low[5] = high[5] = 1e-8
    # In units of the start values, since gradients are finite differences here (exact in Pollux).
    bounds = [(a / c, b / c) for a, b, c in zip(low, high, start, strict=True)]
    optimum = minimize(lambda u: loss(start * u), np.ones(7), method="L-BFGS-B", bounds=bounds)
    x = start * optimum.x
    if not between.any():
        x[2], x[3] = max(x[2], 1.1 * x[4]), max(x[3], 1.1 * x[5])
    return step(x, Layout.of(cells))


# These constants were chosen on the public step times and simulated clusters of
# benchmarks/scaling/extrapolation.py, so its tables are no independent evidence for them. Doubling
# or halving any of them changes no table by much.
PUBLISHED_LAWS = (ernest, pollux)
TRUSTED, TRUSTED_UNSEEN = 4.0, 30.0
"""Prior weight of our law, relative to that of each published law. TRUSTED_UNSEEN applies to cells
on several nodes if all measured cells are on a single node; TRUSTED applies to all other cells."""
EQUAL_ERROR = 0.05
"""Relative error that is added in quadrature to the error of each law before weights are computed.
Laws with much smaller errors therefore count as equally good."""
LARGEST_ERROR = 1.0
"""Maximum log error of a law; larger errors are clipped."""
CELLS_A_POWER, MOST_POWER = 4, 2.0
"""Constants of the power p. A law has the weight (mean squared error)^-p, where p = (number of
predicted cells) / CELLS_A_POWER, but at most MOST_POWER."""
LARGEST_MOVE = 0.3
"""Maximum log factor by which published laws change a prediction."""
NUM_CUTS = 2
"""Number of fits that leave out the largest worker counts: the first leaves out the largest count,
the second the two largest."""

WIDTH_PER_DOUBLING = 0.06
"""Log half-width that is added to an interval in quadrature for each doubling of the worker count
or batch size beyond the measured range. It covers effects that are in no law."""
PRIOR_CELLS, LEAST_WIDTH, LARGEST_DISTANCE = 8, 0.8, 4.0
"""Constants for the widening of intervals by the errors at cells left out. PRIOR_CELLS: the weight
of the unwidened interval, expressed as a number of cells. LEAST_WIDTH: the minimum factor on the
width. LARGEST_DISTANCE: the error of a prediction in half-widths is clipped to this value."""


@dataclass(frozen=True)
class StepPrediction:
    """Predicted seconds of a step, and the 90 % prediction interval for a measurement."""

    cell: Cell
    step_s: float
    low_s: float
    high_s: float

    @property
    def samples_per_s(self) -> float:
        """Throughput of all workers together."""
        return self.cell.samples / self.step_s

    @property
    def spread(self) -> float:
        """Relative half-width of the interval: 0.1 is ±10 %."""
        return math.sqrt(self.high_s / self.low_s) - 1


@dataclass(frozen=True)
class HeldOutErrors:
    """Errors of all laws at the cells with the most workers, if those are left out of the fits."""

    errors: Floats
    """log(predicted / measured seconds), shape [laws, cells]; our law is the first row."""
    distances: Floats
    """Absolute errors of our law divided by the half-width of its interval, shape [cells]."""

    @classmethod
    def of(cls, observed: Observed, priors: Priors) -> "HeldOutErrors":
        """Predict the cells with the largest worker count from all other cells, then those with the
        two largest worker counts, and return the errors."""
        layout = Layout.of(observed.cells)
        errors, distances = [np.zeros((1 + len(PUBLISHED_LAWS), 0))], [np.zeros(0)]
        for num_workers in np.unique(layout.workers)[:-1][::-1][:NUM_CUTS]:
            few, many = layout.workers <= num_workers, layout.workers > num_workers
            if layout.nodes[few].max() == 1:
                many &= layout.nodes == 1  # no cell of `few` uses the network between nodes
            if np.sum(few) < 2 or not many.any():
                continue
            law, held_out = LawFit.fit(observed.chosen(few), priors), observed.chosen(many)
            low, middle, high = law.quantiles(held_out.cells)
            log_errors = (
                np.stack([middle, *published_predictions(law, held_out.cells)])
                - held_out.log_seconds
            )
            half_widths = np.where(log_errors[0] < 0, high - middle, middle - low)
            errors.append(np.clip(log_errors, -LARGEST_ERROR, LARGEST_ERROR))
            distances.append(np.minimum(np.abs(log_errors[0]) / half_widths, LARGEST_DISTANCE))
        return cls(np.concatenate(errors, axis=1), np.concatenate(distances))

    def weights(self, trusted: float) -> Floats:
        """Return the weights of the laws, which sum to 1, shape [laws].

        Args:
            trusted: Prior weight of our law, relative to that of each published law.
        """
        number = self.errors.shape[1]
        if not number:
            return np.asarray(np.eye(1 + len(PUBLISHED_LAWS))[0])
        power = min(MOST_POWER, number / CELLS_A_POWER)
        shares = np.power(EQUAL_ERROR**2 + np.mean(self.errors**2, axis=1), -power)
        shares[0] *= trusted
        return np.asarray(shares / np.sum(shares))

    @property
    def widening(self) -> float:
        """Factor by which intervals are widened beyond the measured worker counts."""
        usual = 1 / NINE_OF_TEN**2
        total = PRIOR_CELLS * usual + np.sum(self.distances**2)
        return max(LEAST_WIDTH, float(np.sqrt(total / usual / (PRIOR_CELLS + len(self.distances)))))


def published_predictions(law: LawFit, cells: Sequence[Cell]) -> Floats:
    """Predict cells by the published laws, fitted to the same measurements as our law.

    Returns:
        Predicted log seconds per step, shape [laws, cells].
    """
    # Seconds are normalized, because the bounds on parameters of the laws depend on the unit.
    observed, unit = law.observed, law.scale.seconds
    seconds = np.exp(observed.log_seconds) / unit
    rows: MeasuredSteps = list(zip(observed.cells, map(float, seconds), strict=True))
    return np.asarray(np.log([predict(rows, cells) for predict in PUBLISHED_LAWS]) + np.log(unit))


@dataclass(frozen=True)
class ThroughputModel:
    """Throughput model fitted to one series: our law, and the errors that weight all laws."""

    law: LawFit
    held_out: HeldOutErrors

    @classmethod
    def fit(cls, observed: Observed, priors: Priors = PRIORS) -> "ThroughputModel":
        """Fit the model to measured cells.

        A single cell is enough, but most parameters then keep their priors.
        """
        return cls(LawFit.fit(observed, priors), HeldOutErrors.of(observed, priors))

    @property
    def observed(self) -> Observed:
        """Measured step times."""
        return self.law.observed

    def without(self, index: int) -> "ThroughputModel":
        """Return the model refitted without one cell.

        The standard deviations of the residuals and the weights of the laws are kept.
        """
        return replace(self, law=self.law.without(index))

    def predict(self, cells: Sequence[Cell]) -> list[StepPrediction]:
        """Predict the step times of cells; the predictions are in the order of `cells`."""
        if not cells:
            return []
        low, middle, high = self.law.quantiles(cells)
        layout, measured = Layout.of(cells), Layout.of(self.observed.cells)
        worker_doublings = np.maximum(np.log2(layout.workers / measured.workers.max()), 0.0)
        batch_doublings = np.log2(
            layout.batch / np.clip(layout.batch, measured.batch.min(), measured.batch.max())
        )
        fade_in = np.minimum(worker_doublings, 1.0)
        shift, disagreement = np.zeros(len(cells)), np.zeros(len(cells))
        if self.held_out.errors.size and fade_in.any():
            offsets = (
                np.clip(
                    published_predictions(self.law, cells) - middle, -LARGEST_MOVE, LARGEST_MOVE
                )
                * fade_in
            )
            offsets = np.vstack([np.zeros(len(cells)), offsets])
            is_unseen = (measured.nodes.max() == 1) & (layout.nodes > 1)
            unseen, usual = map(self.held_out.weights, (TRUSTED_UNSEEN, TRUSTED))
            shares = np.where(is_unseen, unseen[:, None], usual[:, None])
            shift = np.sum(shares * offsets, axis=0)
            disagreement = np.sum(shares * (offsets - shift) ** 2, axis=0)
        extra_variance = NINE_OF_TEN**2 * disagreement + WIDTH_PER_DOUBLING**2 * (
            worker_doublings**2 + batch_doublings**2
        )
        half_widths = np.sqrt(np.stack([middle - low, high - middle]) ** 2 + extra_variance)
        half_widths *= self.held_out.widening**fade_in
        ends = np.exp(
            middle + shift + np.stack([np.zeros(len(cells)), -half_widths[0], half_widths[1]])
        )
        return [
            StepPrediction(cell, *map(float, row)) for cell, row in zip(cells, ends.T, strict=True)
        ]

    def efficiency(self, cells: Sequence[Cell]) -> list[float]:
        """Return each cell's throughput per worker divided by the throughput of one worker with the
        same batch size."""
        alone = self.predict([replace(cell, num_workers=1, num_nodes=1) for cell in cells])
        together = self.predict(cells)
        return [single.step_s / group.step_s for single, group in zip(alone, together, strict=True)]


NUM_PROPOSED = 2
"""Number of cells that are proposed for measurement."""
NUM_STEPS = 100
"""Number of steps in the short run that would measure a cell; it determines the cost of
measuring."""
MOST_BATCHES = 12
"""Largest number of measured batch sizes to combine with worker counts; those nearest to the
requested batch size are used."""
TIE = 1.05
"""Candidate cells are tied if the intervals that they would lead to differ by at most this factor.
Among tied cells, the one that is cheapest to measure is chosen."""


@dataclass(frozen=True)
class NextCell:
    """A cell to measure next, and how accurate the requested prediction then becomes."""

    cell: Cell
    worker_seconds: float
    """Cost of the measurement: worker-seconds of NUM_STEPS steps."""
    spread: float
    """Relative half-width of the 90 % interval of the requested prediction, once this cell and the
    cells proposed before it have been measured."""


def least_sure(model: ThroughputModel, cells: Sequence[Cell]) -> Cell:
    """Return the cell whose prediction has the widest interval."""
    return max(
        model.predict(cells), key=lambda prediction: (prediction.spread, prediction.cell)
    ).cell


def next_cells(
    model: ThroughputModel, asked: Cell, placed: Callable[[Cell], Cell | None] = lambda cell: cell
) -> list[NextCell]:
    """Choose the cells whose measurement would most improve the prediction of a requested cell.

    At most NUM_PROPOSED cells (workers, nodes, batch size) are chosen, best first. The best cell is
    the one whose measurement would narrow the 90 % interval of the requested cell most. Its
    effect follows from the covariance of the log step times of both cells, which is computed from
    the posterior draws of our law and its residuals; the log step times are treated as normal. The
    second cell is chosen as if the first had been measured.

    Args:
        model: Fitted throughput model.
        asked: The requested cell.
        placed: Function that returns a cell with the number of nodes on which it would run on this
            cluster; None if it cannot run.
    """
    candidates = {placed(cell) for cell in _candidates(model, asked)} - set(model.observed.cells)
    tried = sorted(cell for cell in candidates if cell is not None)
    if not tried:
        return []
    law, predicted = model.law, model.predict([asked, *tried])
    centre, residual_covariance = law.outcomes([asked, *tried])
    covariance = np.cov(centre.T) + residual_covariance
    noise = law.levels.cell**2 + law.observed.noise
    half_width, variance = (
        math.log(predicted[0].high_s / predicted[0].low_s) / 2,
        covariance[0, 0] + noise,
    )
    costs = {
        i: NUM_STEPS * predicted[i].step_s * predicted[i].cell.num_workers
        for i in range(1, len(predicted))
    }
    proposed: list[NextCell] = []
    while costs and len(proposed) < NUM_PROPOSED:
        narrowed = {
            i: covariance[0, 0] - covariance[0, i] ** 2 / (covariance[i, i] + noise) for i in costs
        }
        narrowest = min(narrowed.values())
        equal = [i for i in costs if narrowed[i] + noise <= TIE**2 * (narrowest + noise)]
        best = min(equal, key=lambda i: costs[i])
        share = math.sqrt(max(narrowed[best], 0.0) + noise) / math.sqrt(variance)
        spread = math.expm1(half_width * min(share, 1.0))
        proposed.append(NextCell(predicted[best].cell, costs.pop(best), spread))
        gain = covariance[:, best] / (covariance[best, best] + noise)
        covariance = covariance - np.outer(gain, covariance[best])
    return proposed


def _candidates(model: ThroughputModel, asked: Cell) -> set[Cell]:
    """Return cells that could be measured next, including those that already are.

    Worker counts are at most twice the largest measured count and at most half of the requested
    count; each node has as many workers as the fullest measured node. If several nodes are
    requested, two workers on two nodes are a candidate too. Batch sizes are the requested one and
    measured ones.
    """
    seen = model.observed.cells
    max_workers = min(2 * max(cell.num_workers for cell in seen), max(asked.num_workers // 2, 1))
    full = max(cell.num_workers / cell.num_nodes for cell in seen)
    doublings = {2**i for i in range(max_workers.bit_length()) if 2**i <= max_workers}
    sizes = {(k, math.ceil(k / full)) for k in doublings | {max_workers}}
    if asked.num_nodes > 1 and max_workers >= 2:
        sizes.add((2, 2))
    asked_batch = asked.batch_size_per_worker
    measured = {cell.batch_size_per_worker for cell in seen} - {asked_batch}
    near = sorted(measured, key=lambda batch: (abs(math.log(batch / asked_batch)), batch))[
        :MOST_BATCHES
    ]
    return {Cell(k, n, batch, asked.accumulate) for k, n in sizes for batch in (asked_batch, *near)}
