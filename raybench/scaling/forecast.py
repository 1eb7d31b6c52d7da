"""Learning rate, batch size and loss of a large training run, predicted from small runs.

Runs with the same number of model parameters N and the same number of training samples D form a
*cell*. Within a cell, the log loss is modeled as quadratic in log learning rate and log batch size
near its optimum. All cells share the curvature. The learning rate and batch size at the optimum
follow power laws in N and D, up to a random deviation of each cell:

    log rate  = a0 + aN log N + aD log D + deviation
    log batch = b0 + bN log N + bD log D + deviation

The loss at the optimum follows the law in `loss_law`. All parameters have priors; the priors of the
exponents come from published laws (`EXPONENTS`). The posterior is approximated by a normal
distribution at its mode (Laplace). `benchmarks/scaling/forecast.py` tests the predictions on 1,900
language models.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from raybench.scaling.loss_law import FLOPS_PER_SAMPLE, LossLaw, gradient, heavy_tailed, interval
from raybench.scaling.measurements import NINE_OF_TEN, Floats, Predicted
from raybench.spec.errors import ErrorCode, UserError

EXPONENTS = {"rate": ((-0.125, 0.1), (-0.275, 0.14)), "batch": ((0.225, 0.1), (-0.225, 0.12))}
"""Prior mean and standard deviation of the exponents of N D and of N / D, for the best learning
rate and for the best batch size. Published laws: rate (N D)^-0.20 (N / D)^-0.51 and batch (N
D)^0.29 (N / D)^-0.29 (StepLaw, arXiv 2503.04715); rate (N D)^-0.125 and batch (N D)^0.33 (DeepSeek
LLM, arXiv 2401.02954); rate (N D)^-0.28 (N / D)^0.05 (arXiv 2409.19913). The standard deviations
were chosen by the likelihood and interval coverage at model sizes that were left out of the fit
(docs/benchmarks.md)."""
DEVIATIONS, DEVIATION_CELLS = (0.05, 0.1), 4
"""DEVIATIONS: prior standard deviation of a cell's best log learning rate and best log batch size
around the power laws. DEVIATION_CELLS: weight of this prior, as a number of measured cells."""
CURVATURE = (math.log(0.02), 1.0)
"""Prior mean and standard deviation of the log of the second derivative of the log loss."""
TILT_DEVIATION = 0.7
"""Prior standard deviation of artanh(r), where r is the correlation between log learning rate and
log batch size in the quadratic function."""
POSITION_DEVIATION, LEVEL_DEVIATION = 2.0, 0.05
"""POSITION_DEVIATION: prior standard deviation of the log learning rate and log batch size at the
optimum, around the mean of the best runs. LEVEL_DEVIATION: prior standard deviation of the log loss
at the optimum of a cell, around the loss of its best run."""
WIDTH, FEWEST_NEAR = 0.02, 6
"""Limits on the runs to which the quadratic function is fitted. Their log loss exceeds that of the
best run of their cell by at most WIDTH. If losses are noisy, the limit is higher; it is also raised
until FEWEST_NEAR runs of the cell remain."""
NOISE, MISFIT = 0.002, 0.6
"""NOISE: minimum standard deviation of the log loss between seeds. MISFIT: standard deviation of
the error of the quadratic function, as a fraction of a run's log loss above that of the best
run."""
FEWEST_RUNS = 6
FIT_ROUNDS = 3
"""Number of fits; each uses the noise that was estimated by the previous fit."""
NUM_SHARED = 9
"""Number of parameters of `OptimumModel` that all cells share."""


class SmallRun(NamedTuple):
    """A small training run; until it has been trained, its loss has no meaning."""

    parameters: float
    samples: float
    """Number of training samples (tokens for a language model)."""
    batch: float
    """Global batch size in samples."""
    learning_rate: float
    loss: float
    """Loss at the end of the run, or another positive value to minimize, such as an error rate."""

    @property
    def size(self) -> tuple[float, float]:
        """Cell of the run: (model parameters, training samples)."""
        return self.parameters, self.samples

    @property
    def compute(self) -> float:
        """Number of floating-point operations of the run."""
        return FLOPS_PER_SAMPLE * self.parameters * self.samples


class Planned(NamedTuple):
    """Small runs that are planned, and how accurately they will determine the optimum of the large
    run."""

    runs: list[SmallRun]
    """Planned runs, whose losses are not known yet. The run with the most information per cost
    comes first."""
    rate_factor: float
    """Half-width of the 90 % interval of the large run's best learning rate, as a factor."""
    batch_factor: float
    """Half-width of the 90 % interval of the large run's best batch size, as a factor."""


@dataclass(frozen=True)
class Forecast:
    """Prediction for a large run.

    Args:
        learning_rate: Best learning rate, at the given batch size if there is one.
        batch: Best global batch size in samples.
        loss: Loss at the best learning rate and batch size.
        off_by_two: Relative increase of the loss if the learning rate (key "rate") or the batch
            size (key "batch") differs from the best by a factor of two.
        doubts: Sentences with reasons not to trust the prediction.
    """

    learning_rate: Predicted
    batch: Predicted
    loss: Predicted
    off_by_two: dict[str, float]
    doubts: tuple[str, ...]


class OptimumModel:
    """Model of the best learning rate and batch size for any model size, fitted to small runs.

    Args:
        runs: Small runs, at least one.
        sizes: Cells (model parameters, samples) without runs that are to be candidates of `choose`.

    Raises:
        UserError: There is no run, or a value is not positive.
    """

    def __init__(self, runs: Iterable[SmallRun], sizes: Iterable[tuple[float, float]] = ()) -> None:
        self._runs = _checked(list(runs))
        self.cells = sorted({run.size for run in self._runs}, key=math.prod)
        num_measured = len(self.cells)
        self.cells += [size for size in dict.fromkeys(sizes) if size not in self.cells]
        self._cell_of = np.array([self.cells.index(run.size) for run in self._runs])
        logs = np.log(np.array(self._runs, float))
        self._rate, self._batch, self._loss = logs[:, 3], logs[:, 2], logs[:, 4]
        self._center = np.log(np.array(self.cells[:num_measured])).mean(axis=0)
        self._rows = np.array([self._row(*cell) for cell in self.cells])
        self._fit(num_measured)

    @property
    def levels(self) -> dict[tuple[float, float], float]:
        """Loss at the optimum of each cell with runs, keyed by cell (model parameters, samples)."""
        measured = sorted(set(self._cell_of))
        return {self.cells[index]: math.exp(self._mode[NUM_SHARED + index]) for index in measured}

    @property
    def level_error(self) -> float:
        """Typical standard deviation of the log losses in `levels`: the median over their cells."""
        variances = np.diag(self._covariance)[NUM_SHARED : NUM_SHARED + len(self.levels)]
        return math.sqrt(float(np.median(variances)))

    def optimum(self, parameters: float, samples: float) -> tuple[Predicted, Predicted]:
        """Predict the best learning rate and batch size of a run."""
        row = self._row(parameters, samples)
        intervals = []
        for axis, deviation in enumerate(self._deviations):
            at = slice(3 * axis, 3 * axis + 3)
            variance = float(row @ self._covariance[at, at] @ row) + deviation**2
            intervals.append(interval(float(row @ self._mode[at]), math.sqrt(variance)))
        return intervals[0], intervals[1]

    def rate_of(self, parameters: float, samples: float, batch: float) -> Predicted:
        """Predict the best learning rate of a run at a given batch size."""
        row = self._row(parameters, samples)

        def log_rate(mode: Floats) -> Floats:
            batch_offset = math.log(batch) - row @ mode[3:6]
            log_optimum: Floats = (
                row @ mode[0:3]
                - np.tanh(mode[8]) * np.exp(0.5 * (mode[7] - mode[6])) * batch_offset
            )
            return log_optimum

        slopes = gradient(log_rate, self._mode)
        variance = float(slopes @ self._covariance @ slopes) + self._deviations[0] ** 2
        return interval(float(log_rate(self._mode)), math.sqrt(variance))

    def off_by_two(self) -> dict[str, float]:
        """Return the relative increase of the loss if the learning rate (key "rate") or the batch
        size (key "batch") differs from the best by a factor of two."""
        step = 0.5 * math.log(2.0) ** 2
        curvature = {"rate": self._mode[6], "batch": self._mode[7]}
        return {
            name: math.expm1(step * math.exp(log_curvature))
            for name, log_curvature in curvature.items()
        }

    def position(self, size: tuple[float, float]) -> tuple[float, float]:
        """Return the best learning rate and batch size of a cell (model parameters, samples) that
        is part of the fit."""
        cell, number = self.cells.index(size), len(self.cells)
        moved = self._mode[NUM_SHARED + number :].reshape(2, number)[:, cell]
        row = self._rows[cell]
        rate, batch = row @ self._mode[0:3] + moved[0], row @ self._mode[3:6] + moved[1]
        return math.exp(rate), math.exp(batch)

    def choose(
        self,
        candidates: Sequence[SmallRun],
        large: tuple[float, float],
        costs: Sequence[float],
        budget: float,
        within: float | None = None,
    ) -> Planned:
        """Choose which small runs to train, greedily by information per cost.

        The information of a run is the expected decrease of the large run's loss, if the large run
        uses the learning rate and batch size that are then predicted.

        Args:
            candidates: Possible runs, in cells of this model; their losses are not used.
            large: Model parameters and samples of the large run.
            costs: Cost of each candidate, such as seconds.
            budget: Maximum total cost of the chosen runs.
            within: Stop once the best learning rate and batch size are known within this factor;
                None uses the whole budget.
        """
        targets = np.zeros((2, len(self._mode)))
        targets[0, 0:3] = targets[1, 3:6] = self._row(*large)
        a, b = np.exp(self._mode[6:8])
        tilt = math.tanh(self._mode[8]) * math.sqrt(a * b)
        weight = np.array([[a, tilt], [tilt, b]])
        gradients, noise = self._gradients(candidates)
        prices = np.array(costs)
        covariance, is_left, chosen = self._covariance, np.full(len(prices), True), list[SmallRun]()

        def factors() -> Floats:
            variance = np.diag(targets @ covariance @ targets.T) + self._deviations**2
            interval_factors: Floats = np.exp(NINE_OF_TEN * np.sqrt(variance))
            return interval_factors

        while (is_left := is_left & (prices <= budget)).any():
            if within is not None and factors().max() <= within:
                break
            across = covariance @ gradients.T
            variance = np.einsum("ip,pi->i", gradients, across) + noise
            toward = targets @ across
            gains = 0.5 * np.einsum("ai,ab,bi->i", toward, weight, toward) / variance / prices
            best = int(np.where(is_left, gains, -1.0).argmax())
            covariance = covariance - np.outer(across[:, best], across[:, best]) / variance[best]
            budget -= prices[best]
            is_left[best] = False
            chosen.append(candidates[best])
        rate, batch = factors()
        return Planned(chosen, float(rate), float(batch))

    def doubts(self) -> list[str]:
        """Return sentences with reasons not to trust a prediction."""
        sentences = []
        measured = [self.cells[index] for index in sorted(set(self._cell_of))]
        if len({parameters for parameters, _ in measured}) == 1:
            sentences.append(
                "all runs have one model size, so the effect of size is a published prior"
            )
        if len({samples for _, samples in measured}) == 1:
            sentences.append(
                "all runs have one length, so the effect of length is a published prior"
            )
        for name, values in (("learning rate", self._rate), ("batch", self._batch)):
            at_end = 0
            for cell in set(self._cell_of):
                cell_runs = np.flatnonzero(self._cell_of == cell)
                best = cell_runs[np.argmin(self._loss[cell_runs])]
                is_end = values[best] in (values[cell_runs].min(), values[cell_runs].max())
                at_end += is_end and len(set(values[cell_runs])) > 1
            if 2 * at_end > len(measured):
                sentences.append(f"the best {name} is at an end of the tried range in most cells")
        return sentences

    def _row(self, parameters: float, samples: float) -> Floats:
        """Return (1, log(N D), log(N / D)) relative to the mean cell: the terms of the power
        laws."""
        size, length = np.log([parameters, samples]) - self._center
        return np.array([1.0, size + length, size - length])

    def _fit(self, num_measured: int) -> None:
        """Find the posterior mode and covariance of all parameters: power laws, curvature and
        cells.

        Args:
            num_measured: Number of cells with runs, which are the first of `self.cells`.
        """
        runs_by_cell = [np.flatnonzero(self._cell_of == cell) for cell in range(num_measured)]
        best = np.array([at[self._loss[at].argmin()] for at in runs_by_cell])
        number = len(self.cells)
        lowest = [*self._loss[best], *[self._loss.min()] * (number - num_measured)]
        excess = self._loss - np.array(lowest)[self._cell_of]
        nearest = [np.sort(excess[at])[:FEWEST_NEAR] for at in runs_by_cell]
        min_excess = np.array([excesses[-1] for excesses in nearest])[self._cell_of]
        shared = [
            *((self._rate[best].mean(), POSITION_DEVIATION), *EXPONENTS["rate"]),
            *((self._batch[best].mean(), POSITION_DEVIATION), *EXPONENTS["batch"]),
            *(CURVATURE, CURVATURE, (0.0, TILT_DEVIATION)),
        ]
        self._deviations = np.array(DEVIATIONS)
        self._noise = max(NOISE, float(np.median([np.median(excesses) for excesses in nearest])))
        self._mode = np.array([mean for mean, _ in shared] + lowest + [0.0] * 2 * number)
        for _ in range(FIT_ROUNDS):
            # If losses are noisy, runs farther from the optimum are needed for the fit.
            wider = self._noise / NOISE
            levels = [(level, LEVEL_DEVIATION * wider) for level in lowest]
            moves = [(0.0, deviation) for deviation in self._deviations for _ in self.cells]
            near = excess <= np.maximum(min_excess, WIDTH * wider)
            self._fit_near(near, excess, np.array(shared + levels + moves))
            at = slice(NUM_SHARED + number, None)
            squares = self._mode[at] ** 2 + np.diag(self._covariance)[at]
            squares = squares.reshape(2, number)[:, :num_measured].sum(axis=1)
            prior_squares = DEVIATION_CELLS * np.array(DEVIATIONS) ** 2
            self._deviations = np.sqrt((prior_squares + squares) / (DEVIATION_CELLS + num_measured))

    def _fit_near(self, near: npt.NDArray[np.bool_], excess: Floats, priors: Floats) -> None:
        """Fit all parameters to the runs near the optimum, starting from the previous mode.

        Args:
            near: Whether each run is used, shape [runs].
            excess: Log loss of each run above that of the best run of its cell, shape [runs].
            priors: Mean and standard deviation of each parameter, shape [parameters, 2].
        """
        runs = self._cell_of[near], self._rate[near], self._batch[near]
        errors = np.hypot(self._noise, MISFIT * excess[near])

        def misfit(mode: Floats) -> Floats:
            solution: Floats = self._expected(mode, *runs) - self._loss[near]
            return solution

        def residuals(mode: Floats) -> Floats:
            prior = (mode - priors[:, 0]) / priors[:, 1]
            return np.concatenate([heavy_tailed(misfit(mode) / errors), prior])

        solution = least_squares(residuals, self._mode)
        self._mode = solution.x
        self._covariance: Floats = np.linalg.inv(solution.jac.T @ solution.jac)
        self._noise = max(NOISE, 1.48 * float(np.median(np.abs(misfit(self._mode)))))

    def _expected(
        self, mode: Floats, cells: npt.NDArray[np.int64], rate: Floats, batch: Floats
    ) -> Floats:
        """Return the expected log losses of runs, shape [runs].

        Args:
            mode: Parameters of this `OptimumModel`.
            cells: Cell of each run, as an index into `self.cells`.
            rate: Log learning rate of each run.
            batch: Log batch size of each run.
        """
        number = len(self.cells)
        levels = mode[NUM_SHARED : NUM_SHARED + number]
        moved = mode[NUM_SHARED + number :].reshape(2, number)
        u = rate - (self._rows @ mode[0:3] + moved[0])[cells]
        v = batch - (self._rows @ mode[3:6] + moved[1])[cells]
        a, b, tilt = math.exp(mode[6]), math.exp(mode[7]), math.tanh(mode[8])
        log_losses: Floats = levels[cells] + 0.5 * (
            a * u**2 + b * v**2 + 2 * tilt * math.sqrt(a * b) * u * v
        )
        return log_losses

    def _gradients(self, runs: Sequence[SmallRun]) -> tuple[Floats, Floats]:
        """Linearize the expected log losses of runs around the mode.

        Returns:
            - Derivatives with respect to the fitted parameters, shape [runs, parameters].
            - Variances of the residuals, shape [runs].
        """
        cells = np.array([self.cells.index(run.size) for run in runs])
        logs = np.log([(run.learning_rate, run.batch) for run in runs])

        def expected(mode: Floats) -> Floats:
            return self._expected(mode, cells, logs[:, 0], logs[:, 1])

        above = expected(self._mode) - self._mode[NUM_SHARED + cells]
        return gradient(expected, self._mode).T, self._noise**2 + (MISFIT * above) ** 2


class LargeRunModel:
    """Model of the best learning rate, batch size and loss of a large run, fitted to small runs.

    Args:
        runs: At least six small runs, in two or more cells (model parameters, samples).

    Raises:
        UserError: There are too few runs or cells, a value is not positive, or the loss does not
            fall with size.
    """

    def __init__(self, runs: Iterable[SmallRun]) -> None:
        self.runs = list(runs)
        if len(self.runs) < FEWEST_RUNS:
            raise UserError(
                f"forecast: needs at least {FEWEST_RUNS} runs; has {len(self.runs)}.",
                ErrorCode.TOO_FEW,
            )
        self.optimum = OptimumModel(self.runs)
        levels = self.optimum.levels
        sizes = np.array([*levels])
        losses = np.array([*levels.values()])
        self.loss = LossLaw(sizes[:, 0], sizes[:, 1], losses, self.optimum.level_error)

    def predict(self, parameters: float, samples: float, batch: float | None = None) -> Forecast:
        """Predict the best learning rate, batch size and loss of a large run.

        Args:
            parameters: Parameters of the large model.
            samples: Training samples of the large run.
            batch: Global batch size for which to predict the learning rate; None for the best batch
                size.

        Raises:
            UserError: The large run needs less compute than the largest small run.
        """
        largest = max(run.compute for run in self.runs)
        if FLOPS_PER_SAMPLE * parameters * samples < largest:
            raise UserError(
                "forecast: the large run needs less compute than the largest small run; name a "
                "larger one.",
                ErrorCode.INVALID_VALUE,
            )
        rate, best_batch = self.optimum.optimum(parameters, samples)
        if batch is not None:
            rate = self.optimum.rate_of(parameters, samples, batch)
        return Forecast(
            rate,
            best_batch,
            self.loss.predict(parameters, samples),
            self.optimum.off_by_two(),
            tuple(self.optimum.doubts()),
        )


def _checked(runs: list[SmallRun]) -> list[SmallRun]:
    if not runs:
        raise UserError("forecast: no run has a loss; name runs that have one.", ErrorCode.TOO_FEW)
    for number, run in enumerate(runs, 1):
        for name, value in run._asdict().items():
            if not (math.isfinite(value) and value > 0):
                raise UserError(
                    f"forecast: run {number}: {name} is {value:g}, and must be above 0.",
                    ErrorCode.INVALID_DATA,
                )
    return runs
