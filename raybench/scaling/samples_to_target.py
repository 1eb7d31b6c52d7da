"""Prediction of the training samples that a run needs to reach the target, by global batch size.

The median number of samples S at global batch size B follows the law

    S(B) = S_min (1 + (B / B_crit)^p + B_small / B)

With p = 1 and B_small = 0, this is the law of McCandlish et al. 2018 (arXiv 1812.06162, eq. 2.11):
small batches need the fewest samples, S_min, and a batch size of B_crit needs twice as many. Far
above B_crit, the number of steps is constant, so the samples are proportional to the batch size.
The exponent p determines how sharply the curve bends (Shallue et al. 2018, arXiv 1811.03600,
section 4). With B_small > 0, very small batches need more samples again, for example because the
learning rate is too high for them.

The fit is to the log of the medians. The law has a residual that is correlated at neighboring batch
sizes (an Ornstein-Uhlenbeck process over doublings). The fit is Bayesian: each set of parameters on
a grid is weighted by its likelihood, with S_min integrated out, and predictions average over all
sets. If the runs do not determine B_crit, its interval has an open end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from raybench.scaling.measurements import Floats, Predicted
from raybench.spec.errors import ErrorCode, UserError

LEAST_SPREAD = 0.01
"""Minimum standard deviation of the log samples of runs. It is needed because all runs can look
equal if evaluations are rare."""


@dataclass(frozen=True)
class BatchSize:
    """Summary of the runs at one batch size."""

    batch_size: int
    num_runs: int
    num_reached: int
    samples: float | None
    """Median samples to target, where a run that missed it counts as infinite; None if most runs
    missed it."""


@dataclass(frozen=True)
class Convergence:
    """Measured samples to target: runs grouped by batch size."""

    batch_sizes: tuple[BatchSize, ...]
    """Summary of the runs at each batch size, smallest batch size first."""
    spread: float
    """Standard deviation of the log samples of runs around the median at their batch size; 0 if no
    batch size was repeated."""

    @property
    def medians(self) -> dict[BatchSize, float]:
        """Median samples to target, keyed by batch size; those without a median are missing."""
        return {size: size.samples for size in self.batch_sizes if size.samples is not None}


def read(table: pd.DataFrame) -> Convergence:
    """Group runs by batch size.

    Args:
        table: One row per run.

            | column | meaning |
            |---|---|
            | batch_size | global batch size |
            | samples_to_target | training samples up to the target; missing if never reached |

            Epochs or tokens may be used instead of samples.

    Raises:
        UserError: At no batch size did most runs reach the target.
    """
    batch, samples = table[["batch_size", "samples_to_target"]].to_numpy(dtype=float).T
    groups = {int(value): samples[batch == value] for value in np.unique(batch)}
    sizes = [_batch_size(*group) for group in groups.items()]
    if not any(size.samples for size in sizes):
        raise UserError(
            "samples to target: at no batch size did most runs reach the target; train longer, or "
            "choose a target that is reached",
            ErrorCode.NO_RESULT,
        )
    # The 68 % quantile of the deviations is robust, and is not 0 when evaluations are rare.
    deviations: list[float] = []
    for size in sizes:
        size_samples = groups[size.batch_size]
        reached = size_samples[np.isfinite(size_samples)]
        if size.samples is not None and len(reached) > 1:
            correction = np.sqrt(len(reached) / (len(reached) - 1))
            deviations += list(correction * np.abs(np.log(reached / size.samples)))
    spread = max(float(np.quantile(deviations, 0.683)), LEAST_SPREAD) if deviations else 0.0
    return Convergence(tuple(sizes), spread)


def _batch_size(value: int, samples: Floats) -> BatchSize:
    reached = np.isfinite(samples)
    median = float(np.median(np.where(reached, samples, np.inf)))
    is_known = bool(np.isfinite(median))
    return BatchSize(value, len(samples), int(reached.sum()), median if is_known else None)


POWERS = np.array([0.4, 0.5, 0.63, 0.8, 1.0, 1.26, 1.6, 2.0, 2.5])
POWER_FACTOR = 1.5
"""One standard deviation of the log-normal prior of the exponent p, as a factor; the prior median
is 1."""
CRITICAL_GRID = (0.01, 30.0, 120)
"""Grid of critical batch sizes: smallest value as a fraction of the smallest batch size, largest
value as a multiple of the largest batch size, and number of points."""
SMALL_GRID = (0.25, 0.25, 14)
"""Grid of B_small, in the same form as CRITICAL_GRID; the value 0 is added."""
SMALL_PROBABILITY = 0.1
"""Prior probability that B_small is not 0."""
MISFITS = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
"""Grid of misfits: the relative standard deviation of the law's residual."""
RESIDUAL_LENGTH = 1.0
"""Correlation length of the residual, in doublings of the batch size."""


@dataclass(frozen=True)
class Curves:
    """Parameter sets of the law of samples to target, without S_min, as arrays with one entry per
    set."""

    critical: Floats
    power: Floats
    small: Floats

    def log_rise(self, batch: Floats) -> Floats:
        """Return ln(S / S_min), shape [sets, batch sizes]."""
        critical, power, small = (x[:, None] for x in (self.critical, self.power, self.small))
        return np.asarray(np.log1p((batch / critical) ** power + small / batch))


def grid(smallest: float, largest: float) -> tuple[Curves, Floats]:
    """Return the grid of parameter sets for a range of batch sizes, and the log prior of each
    set."""
    critical = np.geomspace(
        CRITICAL_GRID[0] * smallest, CRITICAL_GRID[1] * largest, CRITICAL_GRID[2]
    )
    small = np.append(
        0.0, np.geomspace(SMALL_GRID[0] * smallest, SMALL_GRID[1] * largest, SMALL_GRID[2])
    )
    sets = Curves(*(x.ravel() for x in np.meshgrid(critical, POWERS, small)))
    prior = -0.5 * (np.log(sets.power) / np.log(POWER_FACTOR)) ** 2
    rises = np.log(SMALL_PROBABILITY / SMALL_GRID[2])
    return sets, prior + np.where(sets.small == 0, np.log(1 - SMALL_PROBABILITY), rises)


def alike(first: Floats, second: Floats) -> Floats:
    """Return the correlations of the law's residual between two lists of batch sizes, shape [first,
    second]."""
    doublings = np.abs(np.log2(first[:, None] / second[None, :]))
    return np.asarray(np.exp(-doublings / RESIDUAL_LENGTH))


def middles(number: int) -> Floats:
    """Return the midpoints of `number` equal parts of [0, 1]."""
    return np.asarray((np.arange(number) + 0.5) / number)


def scattered(number: int, seed: int) -> Floats:
    """Return shuffled quantiles of the standard normal distribution, at `number` evenly spaced
    probabilities."""
    return np.asarray(np.random.default_rng(seed).permutation(ndtri(middles(number))))


MEDIAN_NOISE = 1.2533
"""Standard error of the median of n normal values, divided by that of their mean (standard
deviation / sqrt(n))."""
LOW, HIGH = 0.05, 0.95
"""Quantiles at the ends of a 90 % interval."""
UNBOUNDED_FACTOR = 10.0
"""Factor by which an end of the interval of the critical batch size must lie outside the measured
batch sizes to count as open."""


@dataclass(frozen=True)
class Residuals:
    """Residuals of the law for samples to target, one set per draw of its parameters."""

    batch: Floats
    """Measured batch sizes."""
    solved: tuple[Floats, ...]
    """Inverse covariance matrices of the log median samples to target, one for each value in
    MISFITS."""
    residuals: Floats
    """Residuals of the log median samples to target, shape [draws, measured batch sizes]."""
    level: np.ndarray
    """Misfit of each draw, as an index into MISFITS, shape [draws]."""

    def at(self, batch: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the variance of the residual at batch sizes, each of shape [draws,
        batch sizes]."""
        mean = np.zeros((len(self.level), len(batch)))
        variance = np.zeros_like(mean)
        near = alike(batch, self.batch)
        for level, (misfit, solved) in enumerate(zip(MISFITS, self.solved, strict=True)):
            is_level = self.level == level
            share = misfit**2 * near @ solved
            mean[is_level] = self.residuals[is_level] @ share.T
            variance[is_level] = misfit**2 * np.maximum(1 - (share * near).sum(axis=1), 0)
        return mean, variance


@dataclass(frozen=True)
class SamplesToTarget:
    """Fitted curve of samples to target over batch size, represented by equally probable draws of
    the law's parameters."""

    log_least: Floats
    """ln S_min of each draw."""
    curves: Curves
    residuals: Residuals
    spread: float
    """Standard deviation of the log samples to target between runs (`Convergence.spread`)."""
    tried: tuple[int, int]
    """Smallest and largest measured batch size with a known median."""
    missed: tuple[int, ...] = ()
    """Batch sizes at which most runs missed the target."""

    def predict(self, batch_sizes: Sequence[float], num_runs: int | None = None) -> pd.DataFrame:
        """Predict the median number of samples to target.

        Args:
            batch_sizes: Global batch sizes.
            num_runs: If given, the interval is widened so that it covers the measured median of
                this number of runs.

        Returns:
            Columns batch_size, samples, low and high (90 %).
        """
        batch = np.asarray(batch_sizes, dtype=float)
        over, variance = self.residuals.at(batch)
        logs = self.log_least[:, None] + self.curves.log_rise(batch) + over
        noise = MEDIAN_NOISE * self.spread / np.sqrt(num_runs) if num_runs else 0.0
        widths = np.sqrt(variance + noise**2) * scattered(len(logs), 1)[:, None]
        low, high = np.quantile(logs + widths, (LOW, HIGH), axis=0)
        # The median is computed without the random residuals, which would only add noise to it.
        middle = np.median(logs, axis=0)
        columns = {"samples": np.exp(middle), "low": np.exp(low), "high": np.exp(high)}
        return pd.DataFrame({"batch_size": list(batch_sizes)} | columns)

    def reaches(self, batch_size: float) -> bool:
        """Return whether training at a batch size can be expected to reach the target.

        False at a batch size at which most runs missed the target. If most runs at any batch size
        above the range `tried` missed it, the result is False at every batch size above the range,
        since the law does not model divergence; likewise below the range.
        """
        low, high = self.tried
        missed_below = any(size < low for size in self.missed) and batch_size < low
        missed_above = any(size > high for size in self.missed) and batch_size > high
        return not (missed_below or missed_above or batch_size in self.missed)

    @property
    def critical_batch(self) -> Predicted:
        """Critical batch size B_crit, beyond which larger batches hardly save steps."""
        quantiles = np.quantile(self.curves.critical, (LOW, 0.5, HIGH))
        low, value, high = (float(x) for x in quantiles)
        # The interval is widened by the resolution of the grid.
        step = (CRITICAL_GRID[1] / CRITICAL_GRID[0] * self.tried[1] / self.tried[0]) ** (
            0.5 / (CRITICAL_GRID[2] - 1)
        )
        low, high = low / step, high * step
        low = 0.0 if low < self.tried[0] / UNBOUNDED_FACTOR else low
        high = np.inf if high > UNBOUNDED_FACTOR * self.tried[1] else high
        return Predicted(value, low, high)

    def sentence(self) -> str:
        """Return a sentence about the critical batch size and its interval."""
        critical = self.critical_batch
        value, low, high = map(_rounded, (critical.value, critical.low, critical.high))
        if critical.low > 0 and np.isfinite(critical.high):
            return f"The critical batch is about {value} (90 %: {low} to {high})."
        if critical.low > 0:
            return f"The critical batch is above {low}; larger batch sizes would bound it."
        if np.isfinite(critical.high):
            return f"The critical batch is below {high}; smaller batch sizes would bound it."
        return "The critical batch is not known; try batch sizes that are farther apart."


def _rounded(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


LEAST_NOISE = 1e-4
"""Minimum standard error of a log median, needed if no run was repeated."""
NUM_DRAWS = 2000
COLUMNS = ("batch_size", "num_runs", "num_reached", "samples", "predicted", "low", "high", "error")


def fit(table: pd.DataFrame | Convergence) -> SamplesToTarget:
    """Return the curve of samples to target by batch size, fitted to runs.

    Args:
        table: One row per run with the columns of `read`, or the result of `read`.

    Raises:
        UserError: Fewer than two batch sizes have a median.
    """
    runs = table if isinstance(table, Convergence) else read(table)
    medians = runs.medians
    if len(medians) < 2:
        raise UserError(
            "samples to target: two batch sizes or more at which most runs reach the target are "
            f"needed, not {len(medians)}; train at another batch size",
            ErrorCode.TOO_FEW,
        )
    batch = np.array([size.batch_size for size in medians], dtype=float)
    logs = np.log([*medians.values()])
    noise = np.array([_noise(runs, size) for size in medians])
    sets, prior = grid(batch.min(), batch.max())
    log_least_by_set = logs - sets.log_rise(batch)

    by_misfit = []
    for misfit in MISFITS:
        covariance = misfit**2 * alike(batch, batch) + np.diag(noise**2)
        inverse = np.linalg.inv(covariance)
        weight = inverse.sum(axis=0)
        log_least_of_misfit = log_least_by_set @ weight / weight.sum()
        residual = log_least_by_set - log_least_of_misfit[:, None]
        score = prior - 0.5 * ((residual @ inverse) * residual).sum(axis=1)
        score -= 0.5 * (np.linalg.slogdet(covariance)[1] + np.log(weight.sum()))
        by_misfit.append((score, log_least_of_misfit, 1 / np.sqrt(weight.sum()), inverse))

    scores, log_leasts, sds, solved = zip(*by_misfit, strict=True)
    # Systematic sampling gives the same draws every time.
    logs = np.concatenate(scores)
    total = np.cumsum(np.exp(logs - logs.max()))
    drawn = np.searchsorted(total, middles(NUM_DRAWS) * total[-1])
    level, chosen = np.divmod(drawn, len(prior))
    log_least = np.concatenate(log_leasts)[drawn] + np.array(sds)[level] * scattered(NUM_DRAWS, 0)
    residuals = Residuals(batch, solved, log_least_by_set[chosen] - log_least[:, None], level)
    missed = tuple(size.batch_size for size in runs.batch_sizes if size.samples is None)
    tried = (int(batch[0]), int(batch[-1]))
    curves = Curves(*(values[chosen] for values in vars(sets).values()))
    return SamplesToTarget(log_least, curves, residuals, runs.spread, tried, missed)


def leave_one_out(table: pd.DataFrame) -> pd.DataFrame:
    """Predict the samples to target at each batch size from all other batch sizes.

    Returns:
        Table with one row per batch size and the columns batch_size, num_runs, num_reached, samples
        (measured median), predicted, low, high (90 % interval of a median of num_runs runs) and
        error (predicted / measured - 1). Batch sizes without a median are left out; the table is
        empty with fewer than three medians.
    """
    runs = read(table)
    rows = []
    for size, samples in runs.medians.items() if len(runs.medians) > 2 else ():
        others = tuple(other for other in runs.batch_sizes if other is not size)
        curve = fit(Convergence(others, runs.spread))
        prediction = curve.predict([size.batch_size], size.num_runs).iloc[0].to_dict()
        predicted = prediction.pop("samples")
        rows.append(
            prediction | vars(size) | {"predicted": predicted, "error": predicted / samples - 1}
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _noise(runs: Convergence, size: BatchSize) -> float:
    """Return the standard error of the log median samples at a batch size."""
    return max(MEDIAN_NOISE * runs.spread / float(np.sqrt(size.num_runs)), LEAST_NOISE)
