"""Learning rate, batch and loss of a large training run, predicted from small runs.

Runs of one model size and one number of training samples form a *cell*. Within a cell the log loss
is a quadratic of log learning rate and log batch near its optimum. The curvature is shared by all
cells, and the optimum follows power laws of parameters N and samples D, up to a random deviation
of each cell:

    log rate  = a0 + aN log N + aD log D + deviation
    log batch = b0 + bN log N + bD log D + deviation

The loss at the optimum follows Hoffmann et al. 2022 (arXiv 2203.15556, equation 2):
L = E + A / N^alpha + B / D^beta. All parameters have priors, those of the exponents from published
laws (`EXPONENTS`, `LOSS_EXPONENTS`). The posterior is approximated by a normal distribution at its
mode (Laplace). `benchmarks/scaling/forecast.py` measures it on 1,900 language models.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import counted

Array = NDArray[np.float64]
EXPONENTS = {"rate": ((-0.4, 0.2), (0.15, 0.2)), "batch": ((0.0, 0.12), (0.45, 0.2))}
"""Prior mean and standard deviation of the exponents of N and D. Published: rate N^-0.71 D^0.31 and
batch D^0.57 (StepLaw, arXiv 2503.04715); rate C^-0.125 and batch C^0.33 of the compute C = 6 N D
(DeepSeek LLM, arXiv 2401.02954)."""
DEVIATIONS = (0.1, 0.15)
"""Standard deviation of a cell's log rate and log batch from the power laws."""
CURVATURE = (math.log(0.02), 1.0)
"""Prior mean and standard deviation of the log second derivative of the log loss."""
LOSS_EXPONENTS = (0.34, 0.30, 0.2)
"""Prior means of alpha and beta (0.34 and 0.28 in Hoffmann et al. 2022; 0.29 to 0.37 in later
refits), and their standard deviation in log."""
IRREDUCIBLE = (0.6, 0.15)
"""Prior mean of E over the least loss of the small runs, and its standard deviation in log."""
WIDTH = 0.02
"""Largest log loss above the best of the cell at which the quadratic is fitted."""
NOISE, MISFIT = 0.002, 0.6
"""Standard deviation of the log loss between seeds, and of the misfit of the quadratic relative to
the distance from the best."""
LEVEL_NOISE = 0.004
"""Standard deviation of the log loss of a cell's optimum from the law of the loss."""
NINE_OF_TEN = 1.645
LEAST_RUNS, LEAST_CELLS = 6, 2
FLOPS_PER_SAMPLE = 6.0
"""Floating-point operations per parameter and sample: forward and backward pass of a transformer on
tokens (Kaplan et al. 2020, arXiv 2001.08361, section 2.1)."""


class SmallRun(NamedTuple):
    """One finished training run."""

    parameters: float
    samples: float
    """Training samples (of a language model: tokens)."""
    batch: float
    """Global batch size, samples."""
    learning_rate: float
    loss: float

    @property
    def compute(self) -> float:
        """Floating-point operations of the run."""
        return FLOPS_PER_SAMPLE * self.parameters * self.samples


class Predicted(NamedTuple):
    """A value with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Prediction for a large run.

    Args:
        learning_rate: Best learning rate.
        batch: Best global batch size, samples.
        loss: Loss at these.
        off_by_two: Relative increase of the loss if "rate" or "batch" is off by a factor of two.
        doubts: Reasons not to trust the prediction, in sentences.
    """

    learning_rate: Predicted
    batch: Predicted
    loss: Predicted
    off_by_two: dict[str, float]
    doubts: tuple[str, ...]


class LargeRunModel:
    """Posterior of the optimum and its loss, given small runs.

    Args:
        runs: Small runs, at least six in two cells.

    Raises:
        UserError: There are too few runs or cells, a value is not positive, or the loss does not
            fall with size.
    """

    def __init__(self, runs: Iterable[SmallRun]) -> None:
        self._runs = _checked(list(runs))
        sizes = [(one.parameters, one.samples) for one in self._runs]
        self._cells = sorted(set(sizes), key=lambda cell: cell[0] * cell[1])
        if len(self._cells) < LEAST_CELLS:
            raise UserError(
                "forecast: all runs have one size and one number of samples; add runs of another.",
                ErrorCode.TOO_FEW,
            )
        self._cell_of = np.array([self._cells.index(size) for size in sizes])
        logs = np.log(np.array(self._runs, float))
        self._rate, self._batch, self._loss = logs[:, 3], logs[:, 2], logs[:, 4]
        self._center = np.log(np.array(self._cells)).mean(axis=0)
        self._fit_optimum()
        self._fit_loss()

    def predict(self, parameters: float, samples: float) -> Forecast:
        """Predict the best learning rate, batch and loss of a large run.

        Args:
            parameters: Parameters of the large model.
            samples: Training samples of the large run.

        Raises:
            UserError: The run is smaller than the small runs.
        """
        largest = max(one.compute for one in self._runs)
        if FLOPS_PER_SAMPLE * parameters * samples < largest:
            raise UserError(
                "forecast: the large run needs less compute than the largest small run; name a "
                "larger one.",
                ErrorCode.INVALID_VALUE,
            )
        row = self._row(parameters, samples)
        found = []
        for axis, deviation in enumerate(DEVIATIONS):
            at = slice(3 * axis, 3 * axis + 3)
            mean = float(row @ self._mode[at])
            error = math.sqrt(float(row @ self._covariance[at, at] @ row) + deviation**2)
            found.append(_interval(mean, error))
        rate, batch = found
        mean, error = self._loss_at(parameters, samples)
        curvature = np.exp(self._mode[6:8])
        step = 0.5 * math.log(2.0) ** 2
        off = {
            name: math.expm1(step * float(one))
            for name, one in zip(("rate", "batch"), curvature, strict=True)
        }
        return Forecast(rate, batch, _interval(mean, error), off, tuple(self._doubts()))

    def gains(
        self, candidates: Sequence[SmallRun], parameters: float, samples: float
    ) -> list[float]:
        """Return how much each candidate run would narrow the prediction of the optimum.

        Args:
            candidates: Runs that could be made; their loss is not used. Their size and number of
                samples must be those of an existing cell.
            parameters: Parameters of the large model.
            samples: Training samples of the large run.

        Returns:
            Expected decrease of the variance of log rate plus log batch of the large run, by
            candidate.
        """
        row = self._row(parameters, samples)
        targets = np.zeros((2, len(self._mode)))
        targets[0, 0:3] = targets[1, 3:6] = row
        before = targets @ self._covariance
        found = []
        for one in candidates:
            cell = self._cells.index((one.parameters, one.samples))
            at = np.array([math.log(one.learning_rate)]), np.array([math.log(one.batch)])
            gradient, distance = self._gradient(cell, *at)
            error = math.hypot(NOISE, MISFIT * distance)
            variance = float(gradient @ self._covariance @ gradient) + error**2
            found.append(float(((before @ gradient) ** 2).sum()) / variance)
        return found

    def _row(self, parameters: float, samples: float) -> Array:
        log = np.log([parameters, samples]) - self._center
        return np.array([1.0, *log])

    def _fit_optimum(self) -> None:
        """Find mode and covariance of the laws of the optimum, the curvature and the cells."""
        number = len(self._cells)
        rows = np.array([self._row(*cell) for cell in self._cells])
        best = np.array(
            [
                min(np.flatnonzero(self._cell_of == cell), key=lambda at: self._loss[at])
                for cell in range(number)
            ]
        )
        least = self._loss[best]
        excess = self._loss - least[self._cell_of]
        near = excess < WIDTH
        errors = np.hypot(NOISE, MISFIT * excess[near])
        rate, batch = EXPONENTS["rate"], EXPONENTS["batch"]
        means = np.concatenate(
            [
                [self._rate[best].mean(), rate[0][0], rate[1][0]],
                [self._batch[best].mean(), batch[0][0], batch[1][0]],
                [CURVATURE[0], CURVATURE[0], 0.0],
                least,
                np.zeros(2 * number),
            ]
        )
        spreads = np.concatenate(
            [
                [2.0, rate[0][1], rate[1][1]],
                [2.0, batch[0][1], batch[1][1]],
                [CURVATURE[1], CURVATURE[1], 0.7],
                np.full(number, 0.05),
                np.repeat(DEVIATIONS, number),
            ]
        )
        cells, self._rows = self._cell_of[near], rows

        def residuals(mode: Array) -> Array:
            away = (self._expected(mode, cells, self._rate[near], self._batch[near])) - self._loss[
                near
            ]
            scaled = away / errors
            # Heavy tails: the residuals of a Cauchy distribution grow with the log of the distance.
            robust = np.sign(scaled) * np.sqrt(2 * np.log1p(scaled**2 / 2))
            return np.concatenate([robust, (mode - means) / spreads])

        found = least_squares(residuals, means.copy())
        self._mode: Array = found.x
        self._covariance: Array = np.linalg.inv(found.jac.T @ found.jac)
        self._near = near

    def _expected(self, mode: Array, cells: Array, rate: Array, batch: Array) -> Array:
        """Return the expected log losses of runs, shape [runs]; `cells`: number of each cell."""
        number = len(self._cells)
        levels, moved = mode[9 : 9 + number], mode[9 + number :].reshape(2, number)
        u = rate - (self._rows @ mode[0:3] + moved[0])[cells]
        v = batch - (self._rows @ mode[3:6] + moved[1])[cells]
        a, b, tilt = math.exp(mode[6]), math.exp(mode[7]), math.tanh(mode[8])
        found: Array = levels[cells] + 0.5 * (
            a * u**2 + b * v**2 + 2 * tilt * math.sqrt(a * b) * u * v
        )
        return found

    def _gradient(self, cell: int, rate: Array, batch: Array) -> tuple[Array, float]:
        """Return the gradient of a run's expected log loss by the parameters, and how far above the
        optimum it is."""
        at = np.array([cell])
        here = float(self._expected(self._mode, at, rate, batch)[0])
        step, gradient = 1e-5, np.empty(len(self._mode))
        for axis in range(len(self._mode)):
            moved = self._mode.copy()
            moved[axis] += step
            gradient[axis] = (float(self._expected(moved, at, rate, batch)[0]) - here) / step
        return gradient, max(here - float(self._mode[9 + cell]), 0.0)

    def _fit_loss(self) -> None:
        """Fit the law of the loss to the losses at the cells' optima."""
        number = len(self._cells)
        levels = self._mode[9 : 9 + number]
        if levels[-1] >= levels[0]:
            raise UserError(
                "forecast: the loss does not fall from the smallest to the largest runs; there is "
                "nothing to extrapolate.",
                ErrorCode.INVALID_DATA,
            )
        least, part = float(np.exp(levels.min())), (1 - IRREDUCIBLE[0]) / 2
        alpha, beta, spread = LOSS_EXPONENTS
        means = np.log([IRREDUCIBLE[0] * least, part * least, alpha, part * least, beta])
        spreads = np.array([IRREDUCIBLE[1], 0.8, spread, 0.8, spread])
        cells = np.log(np.array(self._cells)) - self._center

        def residuals(law: Array) -> Array:
            away = (_log_loss(law, cells) - levels) / LEVEL_NOISE
            return np.concatenate([away, (law - means) / spreads])

        found = least_squares(residuals, means)
        self._law: Array = found.x
        self._law_covariance: Array = np.linalg.inv(found.jac.T @ found.jac)

    def _loss_at(self, parameters: float, samples: float) -> tuple[float, float]:
        """Return mean and standard deviation of the log loss at the optimum."""
        cell = (np.log([parameters, samples]) - self._center)[None, :]
        mean, step = float(_log_loss(self._law, cell)[0]), 1e-4
        gradient = np.array(
            [
                (float(_log_loss(self._law + step * unit, cell)[0]) - mean) / step
                for unit in np.eye(len(self._law))
            ]
        )
        variance = float(gradient @ self._law_covariance @ gradient)
        return mean, math.sqrt(variance + LEVEL_NOISE**2)

    def _doubts(self) -> list[str]:
        """Return reasons not to trust a prediction."""
        found = []
        if len({parameters for parameters, _ in self._cells}) == 1:
            found.append("all runs have one model size, so the effect of size is a published prior")
        if len({samples for _, samples in self._cells}) == 1:
            found.append("all runs have one length, so the effect of length is a published prior")
        for name, values in (("learning rate", self._rate), ("batch", self._batch)):
            at_end = 0
            for cell in range(len(self._cells)):
                own = np.flatnonzero(self._cell_of == cell)
                best = own[np.argmin(self._loss[own])]
                is_end = values[best] in (values[own].min(), values[own].max())
                at_end += is_end and len(set(values[own])) > 1
            if 2 * at_end > len(self._cells):
                found.append(f"the best {name} is an end of the tried ones in most cells")
        return found


def _checked(runs: list[SmallRun]) -> list[SmallRun]:
    if len(runs) < LEAST_RUNS:
        raise UserError(
            f"forecast: {counted(len(runs), 'run')} are too few; name {LEAST_RUNS}.",
            ErrorCode.TOO_FEW,
        )
    for number, run in enumerate(runs, 1):
        for name, value in run._asdict().items():
            if not (math.isfinite(value) and value > 0):
                raise UserError(
                    f"forecast: run {number}: {name} is {value:g}, and must be above 0.",
                    ErrorCode.INVALID_DATA,
                )
    return runs


def _log_loss(law: Array, cells: Array) -> Array:
    """Return the log loss by the law (log E, log A, log alpha, log B, log beta) of cells, given as
    centered logs of parameters and samples, shape [cells, 2]."""
    alpha, beta = np.exp(law[2]), np.exp(law[4])
    parts = np.exp(law[0]) + np.exp(law[1] - alpha * cells[:, 0])
    found: Array = np.log(parts + np.exp(law[3] - beta * cells[:, 1]))
    return found


def _interval(mean: float, error: float) -> Predicted:
    low, high = mean - NINE_OF_TEN * error, mean + NINE_OF_TEN * error
    return Predicted(math.exp(mean), math.exp(low), math.exp(high))
