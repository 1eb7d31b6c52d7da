"""Throughput model: a weighted average of our law (`throughput`) and published laws, with intervals
that also hold beyond the measurements.

Laws are weighted by how well they extrapolate to the largest cells (worker counts and batch sizes).
The cells with the most workers are left out, then also those with the second most. All laws are
fitted to the rest. Their errors at the cells left out give the weights (as for normal errors of
unknown size, a power of the mean square error that grows with the number of cells) and the factor
by which the intervals of our law are widened.

Within the measured range only our law, with its residuals, counts. The weight of the published laws
grows over the first doubling of the workers beyond that range, and they never move a prediction by
more than LARGEST_MOVE.
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

    The step time is a non-negative combination of a constant, the samples per worker, the log of
    the number of workers and the number of workers, fitted by relative least squares.
    """

    def design(group: Sequence[Cell]) -> Floats:
        layout = Layout.of(group)
        return np.stack(
            [np.ones_like(layout.batch), layout.batch, np.log(layout.workers), layout.workers],
            axis=1,
        )

    return relative_least_squares(design([cell for cell, _ in rows]), rows, design(cells))


def relative_least_squares(
    measured_columns: Floats, rows: MeasuredSteps, asked_columns: Floats
) -> Floats:
    """Return predicted seconds as a non-negative combination of columns, fitted to `rows`.

    `measured_columns`: of the measured cells; `asked_columns`: of the cells to predict.
    """
    seconds = np.array([step_s for _, step_s in rows])
    matrix = measured_columns / seconds[:, None]
    widths = np.maximum(matrix.max(axis=0), 1e-12)
    coefficients = nnls(matrix / widths, np.ones(len(seconds)), maxiter=1000)[0] / widths
    return np.asarray(np.maximum(asked_columns @ coefficients, LEAST_S))


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
        if is_single.any():  # only these rows show the compute time by itself
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
"""Weight of our law before any evidence, relative to each published law. TRUSTED_UNSEEN applies to
cells on several nodes if all measured cells are on a single node, TRUSTED to all other cells."""
EQUAL_ERROR = 0.05
"""Relative error below which laws are equally good."""
LARGEST_ERROR = 1.0
"""Maximum log error of a law; larger errors are clipped."""
CELLS_A_POWER, MOST_POWER = 4, 2.0
"""Number of predicted cells per power of the mean square error in the weights; maximum power."""
LARGEST_MOVE = 0.3
"""Maximum log factor by which a published law moves a prediction."""
NUM_CUTS = 2
"""Number of the largest worker counts that are left out: first the largest, then both."""

WIDTH_PER_DOUBLING = 0.06
"""Log half-width that is added to an interval in quadrature for each doubling of workers or batch
size beyond the measured range, for effects that no law covers."""
PRIOR_CELLS, LEAST_WIDTH, LARGEST_DISTANCE = 8, 0.8, 4.0
"""Weight of the nominal width of intervals, as a number of cells; minimum factor on that width;
maximum distance of a cell from its prediction, in half-widths."""


@dataclass(frozen=True)
class StepPrediction:
    """Predicted seconds of a step, with the 90 % interval of a measurement."""

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
    """Errors of laws fitted to cells with few workers, at the cells with the most workers."""

    errors: Floats
    """Logarithms of predicted over measured seconds, shape (laws, cells); ours is first."""
    distances: Floats
    """Distances of our law's predictions from the measurements, in half-widths of its interval."""

    @classmethod
    def of(cls, observed: Observed, priors: Priors) -> "HeldOutErrors":
        """Leave out the cells with the largest worker count, then those with the two largest, and
        predict them from the rest."""
        layout = Layout.of(observed.cells)
        errors, distances = [np.zeros((1 + len(PUBLISHED_LAWS), 0))], [np.zeros(0)]
        for num_workers in np.unique(layout.workers)[:-1][::-1][:NUM_CUTS]:
            few, many = layout.workers <= num_workers, layout.workers > num_workers
            if layout.nodes[few].max() == 1:
                many &= layout.nodes == 1  # `few` does not show the network between nodes
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

    def shares(self, trusted: float) -> Floats:
        """Return the weights of the laws, which sum to 1.

        `trusted`: weight of our law before any evidence.
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
        """Factor on the width of intervals beyond the measured worker counts."""
        usual = 1 / NINE_OF_TEN**2
        total = PRIOR_CELLS * usual + np.sum(self.distances**2)
        return max(LEAST_WIDTH, float(np.sqrt(total / usual / (PRIOR_CELLS + len(self.distances)))))


def published_predictions(law: LawFit, cells: Sequence[Cell]) -> Floats:
    """Fit the published laws to the measurements of our law; return the log seconds that they
    predict, shape (laws, cells)."""
    observed, unit = law.observed, law.scale.seconds  # bounds in the laws depend on the unit
    seconds = np.exp(observed.log_seconds) / unit
    rows: MeasuredSteps = list(zip(observed.cells, map(float, seconds), strict=True))
    return np.asarray(np.log([predict(rows, cells) for predict in PUBLISHED_LAWS]) + np.log(unit))


@dataclass(frozen=True)
class ThroughputModel:
    """Our law fitted to measurements, and the errors from which all laws are weighted."""

    law: LawFit
    held_out: HeldOutErrors

    @classmethod
    def fit(cls, observed: Observed, priors: Priors = PRIORS) -> "ThroughputModel":
        """Fit to measured cells; a single cell is enough, but leaves most parameters to the
        priors."""
        return cls(LawFit.fit(observed, priors), HeldOutErrors.of(observed, priors))

    @property
    def observed(self) -> Observed:
        """Measured step times."""
        return self.law.observed

    def without(self, index: int) -> "ThroughputModel":
        """Return the model fitted without a cell; residual levels and weights of laws are kept."""
        return replace(self, law=self.law.without(index))

    def predict(self, cells: Sequence[Cell]) -> list[StepPrediction]:
        """Return the predictions for cells, in their order."""
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
            unseen, usual = map(self.held_out.shares, (TRUSTED_UNSEEN, TRUSTED))
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
"""Steps of the short run that measures a cell and determines its cost."""
MOST_BATCHES = 12
"""Number of measured batch sizes to try, nearest to the requested batch size."""
TIE = 1.05
"""Cells whose interval is within this factor of the narrowest are tied: the cheapest wins."""


@dataclass(frozen=True)
class NextCell:
    """A cell to measure, and how accurately the requested cell is then predicted."""

    cell: Cell
    worker_seconds: float
    """Worker-seconds of NUM_STEPS steps."""
    spread: float
    """Relative half-width of the requested cell's 90 % interval once this cell and those proposed
    before it are measured."""


def least_sure(model: ThroughputModel, cells: Sequence[Cell]) -> Cell:
    """Return the cell whose prediction has the widest interval."""
    return max(
        model.predict(cells), key=lambda prediction: (prediction.spread, prediction.cell)
    ).cell


def next_cells(
    model: ThroughputModel, asked: Cell, placed: Callable[[Cell], Cell | None] = lambda cell: cell
) -> list[NextCell]:
    """Return at most NUM_PROPOSED cells (workers, nodes, batch size) to measure, best first.

    They are those that would narrow the interval of a prediction most, by the covariance of both
    log step times over the draws of our law and its residuals (treated as normal). Each further
    cell is chosen as if those before it were measured.

    Args:
        model: Fitted throughput model.
        asked: The cell whose prediction is to be narrowed.
        placed: Returns a cell with the number of nodes on which it would run; None if it cannot.
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
    """Return cells that might be measured, including those that already are.

    Workers: at most twice the largest measured count and half of the requested count, on nodes as
    full as the fullest measured node; or two on two nodes. Batch sizes: requested and measured.
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
