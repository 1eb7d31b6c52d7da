"""Tune small, train large: how the best learning rate moves with the size of what is trained.

At each size the best rate is where a smooth function of rate and batch (a Gaussian process, fitted
to the trials of that size) is least, with what the trials leave open. Over the sizes its logarithm
lies on a straight line, with a prior slope: under the usual parametrisation the best rate of Adam
falls as one over the width (Yang et al. 2022, arXiv 2203.03466), so with the root of the parameters
at most; where depth grows too it falls less (with their fourth root in DeepSeek's laws, arXiv
2401.02954).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from raybench.scaling.measurements import NINE_OF_TEN, Floats

SLOPE, SLOPE_SD = -0.25, 0.2
"""Prior slope of the rate's logarithm over that of the parameters, before anything is known."""
MISFIT = 0.3
"""Distance of the best rate of a size from the line (of its logarithm, one standard deviation)."""
POOR = 0.75
"""Share of the trials that count as they are; the others count as the last of them, whether they
were slow, missed or diverged: how bad a bad rate is says nothing of where the best one is."""
LEAST_TRIALS = 8
LEAST_NOISE = 0.05
"""Variance of a run beside that of all trials: few trials may lie on a smooth curve by luck."""
GRID, DRAWS = 64, 500
OPEN, OPEN_SD = 0.5, 1.0
"""Share of the draws with their best rate at an end of those tried, above which that is a bound;
and how far the best may lie beyond it, as a standard deviation."""


@dataclass(frozen=True)
class BestRate:
    """The best learning rate at a size; measured, or predicted."""

    size: float
    rate: float
    spread: float
    """Standard deviation of the rate's logarithm."""
    bound: Literal["", "or less", "or more"] = ""
    """Open side: costs still fell at that end of the rates that were tried."""

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 90 % interval."""
        times = math.exp(NINE_OF_TEN * self.spread)
        return self.rate / times, self.rate * times

    def quantiles(self, number: int) -> list[float]:
        """Return `number` rates that share the 90 % interval evenly, its middle first."""
        low, high = (math.log(end) for end in self.interval)
        odd = number | 1
        shares = (np.arange(odd) + 0.5) / odd
        rates = [float(f"{math.exp(low + share * (high - low)):.3g}") for share in shares]
        return sorted(rates, key=lambda rate: abs(math.log(rate / self.rate)))[:number]


def best_rate(
    size: float,
    rates: Floats,
    batches: Floats,
    costs: Floats,
    *,
    batch: float,
    power: float = 0.5,
) -> BestRate | None:
    """Return the best rate of one size at a global batch, by its trials; None where too few of them
    have a cost.

    `costs`: less is better, on a scale on which differences compare (logarithms of samples to a
    target); NaN of those that came to nothing. `power`: of the batch by which the rate goes before
    anything is known (1/2 of Adam's kind: Malladi et al. 2022, arXiv 2205.10287).
    """
    known = np.isfinite(costs)
    if known.sum() < LEAST_TRIALS or len(np.unique(rates[known])) < LEAST_TRIALS // 2:
        return None
    ranked = np.sort(np.where(known, costs, np.inf))
    worst = ranked[min(int(POOR * len(costs)), int(known.sum()) - 1)]
    clipped = np.where(known, np.minimum(costs, worst), worst)
    over = np.log(batches / batch)
    places = np.column_stack([np.log(rates) - power * over, over])
    kernel = ConstantKernel(1.0, (0.1, 10.0)) * RBF([1.0, 2.0], (0.3, 10.0))
    process = GaussianProcessRegressor(
        kernel + WhiteKernel(0.1, (LEAST_NOISE, 1.0)),
        normalize_y=True,
        n_restarts_optimizer=1,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # its bounds are priors here
        process.fit(places, clipped)
    # No further than rates were tried; at a batch beyond those tried, moved by the rule.
    beyond = power * math.log(batch / np.clip(batch, batches.min(), batches.max()))
    grid = np.linspace(np.log(rates.min()), np.log(rates.max()), GRID) + beyond
    mean, covariance = process.predict(np.column_stack([grid, np.zeros(GRID)]), return_cov=True)
    # The mean's own, without the noise of another run.
    covariance -= process.kernel_.k2.noise_level * float(np.std(clipped)) ** 2 * np.eye(GRID)
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, DRAWS, method="svd")
    least = grid[draws.argmin(axis=1)]
    bound: Literal["", "or less", "or more"] = ""
    if np.mean(least == grid[0]) > OPEN:
        bound = "or less"
    elif np.mean(least == grid[-1]) > OPEN:
        bound = "or more"
    spread = max(float(least.std()), OPEN_SD if bound else 0.0)
    return BestRate(size, float(np.exp(least.mean())), spread, bound)


def predict(known: Sequence[BestRate], size: float) -> BestRate:
    """Return the best rate to expect at a size, from those of others.

    A straight line over logarithms, its height free (Bayesian linear regression with known errors).
    """
    x = np.array([[1.0, math.log(one.size / size)] for one in known])
    y = np.array([math.log(one.rate) for one in known])
    weights = np.array([1 / (one.spread**2 + MISFIT**2) for one in known])
    precision = np.diag([0.0, 1 / SLOPE_SD**2])
    covariance = np.linalg.inv(x.T @ (weights[:, None] * x) + precision)
    height, _ = covariance @ (x.T @ (weights * y) + precision @ [0.0, SLOPE])
    sides = {one.bound for one in known} - {""}
    spread = math.sqrt(covariance[0, 0] + MISFIT**2)
    return BestRate(size, math.exp(height), spread, sides.pop() if len(sides) == 1 else "")
