"""Learning rate, batch size and loss of a large training run, predicted from small runs.

Runs of one model size and one number of training samples form a *cell*. Within a cell, the log loss
is quadratic in log learning rate and log batch size near its optimum. All cells share the
curvature. The optimum follows power laws of parameters N and samples D, up to a random deviation of
each cell:

    log rate  = a0 + aN log N + aD log D + deviation
    log batch = b0 + bN log N + bD log D + deviation

The loss at the optimum follows `loss_law`. All parameters have priors, those of the exponents from
published laws (`EXPONENTS`). The posterior is approximated by a normal distribution at its mode
(Laplace). `benchmarks/scaling/forecast.py` tests the predictions on 1,900 language models.
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
from raybench.spec.text import counted

EXPONENTS = {"rate": ((-0.125, 0.1), (-0.275, 0.14)), "batch": ((0.225, 0.1), (-0.225, 0.12))}
"""Prior mean and standard deviation of the exponents of N D and N / D. Published: rate (N D)^-0.20
(N / D)^-0.51 and batch (N D)^0.29 (N / D)^-0.29 (StepLaw, arXiv 2503.04715); rate (N D)^-0.125 and
batch (N D)^0.33 (DeepSeek LLM, arXiv 2401.02954); rate (N D)^-0.28 (N / D)^0.05 (arXiv 2409.19913).
The deviations were chosen by likelihood and coverage of left-out sizes (docs/benchmarks.md)."""
DEVIATIONS, DEVIATION_CELLS = (0.05, 0.1), 4
"""Prior standard deviation of a cell's log rate and log batch from the power laws, and the number
of measured cells as which this prior counts."""
CURVATURE = (math.log(0.02), 1.0)
"""Prior mean and standard deviation of the log second derivative of the log loss."""
TILT_DEVIATION = 0.7
"""Prior standard deviation of the inverse hyperbolic tangent of the correlation between rate and
batch in the quadratic."""
POSITION_DEVIATION, LEVEL_DEVIATION = 2.0, 0.05
"""Prior standard deviation of the optimum's log rate and log batch around those of the best runs,
and of the log loss at a cell's optimum around that of its best run."""
WIDTH, FEWEST_NEAR = 0.02, 6
"""Maximum log loss, above that of the cell's best run, of runs to which the quadratic is fitted. At
least FEWEST_NEAR runs of a cell are used, however high their loss."""
NOISE, MISFIT = 0.002, 0.6
"""Minimum standard deviation of the log loss between seeds; standard deviation of the misfit of the
quadratic, relative to the log loss above that of the best run."""
FEWEST_RUNS = 6
FIT_ROUNDS = 3
"""Number of fits; each uses the noise that the previous fit has found."""
NUM_SHARED = 9
"""Number of model parameters that all cells share."""


class SmallRun(NamedTuple):
    """One finished training run."""

    parameters: float
    samples: float
    """Training samples (of a language model: tokens)."""
    batch: float
    """Global batch size, samples."""
    learning_rate: float
    loss: float
    """Loss at the end of the run, or another positive value to minimize, such as an error rate."""

    @property
    def size(self) -> tuple[float, float]:
        """Parameters and samples."""
        return self.parameters, self.samples

    @property
    def compute(self) -> float:
        """Floating-point operations of the run."""
        return FLOPS_PER_SAMPLE * self.parameters * self.samples


class Planned(NamedTuple):
    """Small runs to make, and how well the optimum of the large run will then be known."""

    runs: list[SmallRun]
    """Runs in the order in which they were chosen, the most informative per cost first; their
    losses are not known yet."""
    rate_factor: float
    """Half-width of the 90 % interval of the large run's learning rate, as a factor."""
    batch_factor: float
    """The same for its batch size."""


@dataclass(frozen=True)
class Forecast:
    """Prediction for a large run.

    Args:
        learning_rate: Best learning rate, for the given batch size if there was one.
        batch: Best global batch size, samples.
        loss: Loss at the best learning rate and batch size.
        off_by_two: Relative increase of the loss if "rate" or "batch" is off by a factor of two.
        doubts: Reasons not to trust the prediction, in sentences.
    """

    learning_rate: Predicted
    batch: Predicted
    loss: Predicted
    off_by_two: dict[str, float]
    doubts: tuple[str, ...]


class OptimumModel:
    """Posterior of the best learning rate and batch size of runs of any size, given small runs.

    Args:
        runs: Small runs, at least one.
        sizes: Further cells (model parameters, samples) for the candidates of `choose`.

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
        """Loss at the optimum of each cell (parameters, samples) with runs."""
        measured = sorted(set(self._cell_of))
        return {self.cells[index]: math.exp(self._mode[NUM_SHARED + index]) for index in measured}

    @property
    def level_error(self) -> float:
        """Median standard deviation of the log of `levels`."""
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
        """Return the value of `Forecast.off_by_two`."""
        step = 0.5 * math.log(2.0) ** 2
        curvature = {"rate": self._mode[6], "batch": self._mode[7]}
        return {
            name: math.expm1(step * math.exp(log_curvature))
            for name, log_curvature in curvature.items()
        }

    def position(self, size: tuple[float, float]) -> tuple[float, float]:
        """Return the best learning rate and batch size of a cell (parameters, samples)."""
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
        """Choose small runs to make, greedily by information per cost.

        The information from a run is the expected decrease of the large run's loss, if the large
        run uses the predicted learning rate and batch size.

        Args:
            candidates: Possible runs, in cells of this model; their losses are not used.
            large: Parameters and samples of the large run.
            costs: Cost of each candidate, such as seconds.
            budget: Maximum total cost of the chosen runs.
            within: Factor within which learning rate and batch size need to be known; None to use
                the whole budget.
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
        """Return reasons not to trust a prediction, as sentences."""
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
        size, length = np.log([parameters, samples]) - self._center
        return np.array([1.0, size + length, size - length])

    def _fit(self, num_measured: int) -> None:
        """Find the posterior mode and covariance of the power laws, the curvature and the cells."""
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
            # Noisy losses need a wider range around the optimum.
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
        """Fit to the runs near the optimum, starting from the mode of the previous fit.

        Args:
            near: Whether a run is used, shape [runs].
            excess: Log loss of each run above the best of its cell, shape [runs].
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
        """Return the expected log losses of runs, shape [runs]; `cells` indexes `self.cells`."""
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
        """Return the gradients of the expected log losses of runs with respect to the parameters,
        shape [runs, parameters], and the variances of the residuals, shape [runs]."""
        cells = np.array([self.cells.index(run.size) for run in runs])
        logs = np.log([(run.learning_rate, run.batch) for run in runs])

        def expected(mode: Floats) -> Floats:
            return self._expected(mode, cells, logs[:, 0], logs[:, 1])

        above = expected(self._mode) - self._mode[NUM_SHARED + cells]
        return gradient(expected, self._mode).T, self._noise**2 + (MISFIT * above) ** 2


class LargeRunModel:
    """Predicts learning rate, batch size and loss of a large run from small runs.

    Args:
        runs: Small runs, at least six, in two or more cells (parameters, samples).

    Raises:
        UserError: There are too few runs or cells, a value is not positive, or the loss does not
            fall with size.
    """

    def __init__(self, runs: Iterable[SmallRun]) -> None:
        self.runs = list(runs)
        if len(self.runs) < FEWEST_RUNS:
            raise UserError(
                f"forecast: {counted(len(self.runs), 'run')} are too few; name {FEWEST_RUNS}.",
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
            batch: Global batch size for which to predict the learning rate; None for the best.

        Raises:
            UserError: The run is smaller than the small runs.
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
