"""Law for the loss of a training run as a function of model parameters N and training samples D.

    L = E + ((A / N^alpha)^(1/g) + (B / D^beta)^(1/g))^g

With g = 1, this is the law of Hoffmann et al. 2022 (arXiv 2203.15556, equation 2). With E = 0 and g
= beta, it is the law of Kaplan et al. 2020 (arXiv 2001.08361, equation 1.5). With values in
between, its errors on measured grids are a third of those of either law
(`benchmarks/scaling/forecast.py`).
All parameters have priors; the posterior is approximated by a normal distribution (Laplace).
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import least_squares

from raybench.scaling.measurements import NINE_OF_TEN, Floats, Predicted
from raybench.spec.errors import ErrorCode, UserError

FLOPS_PER_SAMPLE = 6.0
"""Floating-point operations per parameter and sample, for the forward and backward pass of a
transformer on tokens (Kaplan et al. 2020, section 2.1)."""
EXPONENTS = (0.34, 0.30, 0.4)
"""Prior means of alpha and of beta (0.34 and 0.28 in Hoffmann et al. 2022; 0.29 to 0.37 in later
refits), and the prior standard deviation of the log of both."""
SHARPNESS = (0.6, 0.5)
"""Prior mean of g and prior standard deviation of log g. The prior covers the laws of both
papers."""
IRREDUCIBLE = (0.6, 0.15)
"""Prior mean of the ratio E / smallest loss of the small runs, and prior standard deviation of the
log of this ratio."""
TERM_DEVIATION = 0.8
"""Prior standard deviation of log A and log B."""
OPTIMUM_EXPONENT = (0.49, 0.03)
"""Prior mean and standard deviation of the exponent in (optimal N) ~ compute ** exponent:
0.46 to 0.50 in Hoffmann et al. 2022, 0.51 in its refit (Besiroglu et al. 2024, arXiv 2404.10102),
0.47 for Llama 3 (arXiv 2407.21783), 0.52 in DeepSeek LLM (arXiv 2401.02954)."""
OPTIMUM_DEVIATION = 0.25
"""Standard deviation of log(optimal N) around its power law, multiplied by the square root of the
decades of compute beyond the largest small run."""
NOISE, NOISE_RUNS = 0.004, 2
"""NOISE: prior standard deviation of a run's log loss around the law, at the largest compute. It
increases by NOISE for each decade of compute below the largest, because the law is not exact over
many decades. NOISE_RUNS: weight of this prior, as a number of measured runs."""
FEWEST_SIZES = 2


class LossLaw:
    """Scaling law of the loss, fitted to runs: a posterior distribution over its parameters.

    Args:
        parameters: Model parameters of each run, shape [runs].
        samples: Training samples of each run, shape [runs].
        loss: Loss of each run, shape [runs]. Of several runs with the same `parameters` and
            `samples`, only the best is used.
        error: Standard deviation of the measured log loss of a run, in addition to the deviation
            from the law.

    Raises:
        UserError: All runs have the same size, or the loss does not fall from the smallest to the
            largest runs.
    """

    def __init__(
        self, parameters: Floats, samples: Floats, loss: Floats, error: float = 0.0
    ) -> None:
        best: dict[tuple[float, float], float] = {}
        for size, run_loss in zip(zip(parameters, samples, strict=True), loss, strict=True):
            best[size] = min(run_loss, best.get(size, math.inf))
        if len(best) < FEWEST_SIZES:
            raise UserError(
                "forecast: all runs have the same size and number of samples; add runs of another "
                "size.",
                ErrorCode.TOO_FEW,
            )
        sizes, losses = np.log(np.array([*best])), np.log(np.array([*best.values()]))
        compute = sizes.sum(axis=1)
        if losses[compute.argmax()] >= losses[compute.argmin()]:
            raise UserError(
                "forecast: the loss does not fall from the smallest to the largest runs; there is "
                "nothing to extrapolate.",
                ErrorCode.INVALID_DATA,
            )
        self._noise = math.hypot(NOISE, error)
        self._largest = float(compute.max())
        self._center = sizes.mean(axis=0)
        self._fit(sizes - self._center, losses)

    def predict(self, parameters: float, samples: float) -> Predicted:
        """Predict the loss of a run.

        Args:
            parameters: Model parameters.
            samples: Training samples.
        """
        cell = np.log([[parameters, samples]]) - self._center
        return self._interval(lambda law: float(_log_loss(law, cell)[0]), self._noise * self._scale)

    def optimum(self, compute: float) -> tuple[Predicted, Predicted]:
        """Predict the compute-optimal model for a budget.

        Args:
            compute: Budget in floating-point operations.

        Returns:
            (number of parameters, loss) of the compute-optimal model.
        """
        total = math.log(compute / FLOPS_PER_SAMPLE)
        free = total - float(self._center.sum())

        def parameters(law: Floats) -> float:
            alpha, beta, sharpness = np.exp(law[[2, 4, 5]])
            ahead = sharpness * (law[2] - law[4]) + law[1] - law[3]
            return float((ahead + beta * free) / (alpha + beta))

        def loss(law: Floats) -> float:
            at = parameters(law)
            return float(_log_loss(law, np.array([[at, free - at]]))[0])

        decades = max(total - self._largest, 0.0) / math.log(10.0)
        deviation = OPTIMUM_DEVIATION * math.sqrt(decades)
        best = self._interval(lambda law: parameters(law) + float(self._center[0]), deviation)
        return best, self._interval(loss, self._noise * self._scale)

    def _fit(self, sizes: Floats, losses: Floats) -> None:
        """Find the posterior mode and covariance of the logarithms of E, A, alpha, B, beta and
        g."""
        lowest, part = float(np.exp(losses.min())), (1 - IRREDUCIBLE[0]) / 2
        alpha, beta, spread = EXPONENTS
        # If both terms are equal, their sum is 2^g times one of them.
        term = 2 ** (1 - SHARPNESS[0]) * part * lowest
        means = np.log([IRREDUCIBLE[0] * lowest, term, alpha, term, beta, SHARPNESS[0]])
        deviations = np.array(
            [IRREDUCIBLE[1], TERM_DEVIATION, spread, TERM_DEVIATION, spread, SHARPNESS[1]]
        )
        compute = sizes.sum(axis=1)
        noise = self._noise * (1 + (compute.max() - compute) / math.log(10.0))

        def residuals(law: Floats) -> Floats:
            scaled = (_log_loss(law, sizes) - losses) / noise
            exponent = 1 / (1 + math.exp(law[2] - law[4]))
            prior = (exponent - OPTIMUM_EXPONENT[0]) / OPTIMUM_EXPONENT[1]
            return np.concatenate([heavy_tailed(scaled), (law - means) / deviations, [prior]])

        solution = least_squares(residuals, means)
        self._mode: Floats = solution.x
        of_runs, of_priors = solution.jac[: len(losses)], solution.jac[len(losses) :]
        scaled = (_log_loss(self._mode, sizes) - losses) / noise
        weight = 1 / (1 + scaled**2 / 2)
        spread = np.einsum(
            "ip,pq,iq->i", of_runs, np.linalg.inv(solution.jac.T @ solution.jac), of_runs
        )
        squares = NOISE_RUNS + (weight * scaled**2 + spread).sum()
        self._scale = math.sqrt(squares / (NOISE_RUNS + weight.sum()))
        of_runs = of_runs / self._scale
        self._covariance: Floats = np.linalg.inv(of_runs.T @ of_runs + of_priors.T @ of_priors)

    def _interval(self, function: Callable[[Floats], float], deviation: float) -> Predicted:
        """Return the prediction of a quantity with its 90 % interval.

        Args:
            function: Function that returns the log of the quantity, given the parameters of the
                law.
            deviation: Standard deviation of the log of the quantity, in addition to that caused by
                the uncertainty of the parameters.
        """
        mean, slopes = function(self._mode), gradient(function, self._mode)
        variance = float(slopes @ self._covariance @ slopes)
        return interval(mean, math.sqrt(variance + deviation**2))


def gradient(function: Callable[[Floats], Floats | float], mode: Floats) -> Floats:
    """Return derivatives of a function with respect to its parameters, by forward differences.

    Args:
        function: Function of the parameters.
        mode: Parameters at which to differentiate, shape [parameters].

    Returns:
        Derivatives, shape [parameters, *shape of the value of the function].
    """
    base, step = function(mode), 1e-5
    return np.array([(function(mode + step * unit) - base) / step for unit in np.eye(len(mode))])


def heavy_tailed(scaled: Floats) -> Floats:
    """Transform residuals for a heavy-tailed (Cauchy-like) error distribution.

    The square of a transformed residual grows only as the log of the residual, so that an outlying
    run has little influence on a fit.
    """
    residuals: Floats = np.sign(scaled) * np.sqrt(2 * np.log1p(scaled**2 / 2))
    return residuals


def interval(mean: float, error: float) -> Predicted:
    """Return a value with its 90 % interval, given the mean and error of its log.

    Args:
        mean: Mean of the log of the value.
        error: Standard deviation of the log of the value.
    """
    low, high = mean - NINE_OF_TEN * error, mean + NINE_OF_TEN * error
    return Predicted(math.exp(mean), math.exp(low), math.exp(high))


def _log_loss(law: Floats, sizes: Floats) -> Floats:
    """Return the log loss of runs according to the law, shape [runs].

    Args:
        law: Logarithms of E, A, alpha, B, beta and g.
        sizes: Centered logarithms of model parameters and training samples, shape [runs, 2].
    """
    alpha, beta, sharpness = np.exp(law[[2, 4, 5]])
    of_size = (law[1] - alpha * sizes[:, 0]) / sharpness
    of_samples = (law[3] - beta * sizes[:, 1]) / sharpness
    log_loss: Floats = np.logaddexp(law[0], sharpness * np.logaddexp(of_size, of_samples))
    return log_loss
