"""Model of learning curves: predicts how much training a configuration needs to reach the target.

Each learning curve is reduced to one number, the *training amount to the target*: the number of
training samples, or of seconds if speed is not modeled separately. For a run that reached the
target, this amount is measured. For any other run, it is extrapolated from the shapes of the
learning curves that reached the target. A Gaussian process over the search space predicts the
amount for other configurations. It treats differences between seeds as observation noise, so equal
and neighboring configurations share information.

This module depends only on NumPy and SciPy, not on Optuna or Ray. The model proposes and stops the
trials of a study (`search/curve_search.py`) or of any Optuna study
(`search/sampling/curve_sampler.py`), and `report/figures/predictions.py` draws its predictions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
LEVELS = 96
"""Number of progress levels (0 to 1) at which the shape of a learning curve is stored."""
ABSENT = 3.0
"""Distance on the axis of a key between a configuration that has the key and a configuration that
does not."""
MOST_SHAPES = 40
"""Maximum number of stored curve shapes; the latest are kept."""
MORE_SHAPES = 8
"""Number of new curve shapes after which all curves are extrapolated again, if MOST_SHAPES shapes
are stored; otherwise, each new shape has this effect."""


@dataclass
class Curve:
    """Learning curve of one run so far.

    Args:
        point: Configuration, as returned by `Axes.point`, shape [axes].
        amounts: Training amount (samples or seconds) at each evaluation, increasing.
        best: Best metric value up to each evaluation, same length as `amounts`; higher is better.
        reached: Training amount at which the run reached the target; None if it has not.
        has_missed: Whether the run ended without reaching the target.
        has_failed: Whether the run diverged.
        extra_sd: Additional standard deviation of the log training amount, beside that between
            seeds, such as for a run on another machine or with an earlier version of the code.
    """

    point: Array
    amounts: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    reached: float | None = None
    has_missed: bool = False
    has_failed: bool = False
    extra_sd: float = 0.0
    cached: tuple[object, tuple[float, float]] | None = field(default=None, repr=False)
    """Inputs and result of the last call of `CurveModel.extrapolate` for this curve."""


@dataclass(frozen=True)
class ModelSettings:
    """Constants of the curve model.

    The model works with the natural logarithm of the training amount (samples or seconds) to the
    target, the log amount. Standard deviations and differences are in units of the log amount.
    """

    seed_sd: float = 0.2
    """Standard deviation of the log amount between seeds of one configuration."""
    shape_sd: float = 0.5
    """Error of an extrapolation: its variance is `shape_sd**2` for each unit of log amount that
    remains to the target, since the shape of the curve may differ from all stored shapes."""
    correlation: float = 0.3
    """Prior correlation between two values of a categorical key, such as two optimizers."""
    offset_sd: float = 0.3
    """Prior standard deviation of a constant difference between two values of a categorical key."""
    same_category: float = 3.0
    """Weight of a curve shape from a configuration with the same categorical values (such as the
    same optimizer), relative to other shapes."""
    ceiling: float = 4.0
    """Maximum difference of a log amount from the smallest log amount; larger differences are
    clipped."""
    most: int = 300
    """Maximum number of observations in the Gaussian process: half are the observations with the
    smallest amounts, half are the latest."""
    refit: int = 8
    """Number of new observations after which the length scales are fitted again."""
    fit: float = 0.3
    """Exponent of the likelihood with which curve shapes are weighted."""
    most_misfit: float = 9.0
    """Maximum squared standardized residual that one evaluation adds to the misfit of a shape."""
    failed: float = 2.0
    """Minimum assumed difference between the log amount of a diverged run and the smallest known
    log amount."""
    missed: float = 2.0
    """Minimum assumed difference between the log amount to the target and the log amount that was
    trained, for a run that ended without reaching the target."""
    missed_sd: float = 0.2
    """Standard deviation of the log amount of a run to which `missed` applies."""
    beyond: float = 0.8
    """Assumed distance of the log amount above its lower bound, in standard deviations, for a curve
    that is still at its starting value and thus determines only the lower bound. The value 0.8 is
    the mean of a half-normal distribution."""
    floor: float = 0.14
    """Standard deviation that is added in quadrature when a run is compared with the best run, and
    when a curve shape is compared with a learning curve."""
    few: int = 3
    """Number of runs that must have passed the interim target, which is used until a run reaches
    the target itself."""
    interim_sd: float = 0.3
    """Standard deviation that is added in quadrature to a log amount measured at the interim
    target."""
    blur: float = 0.02
    """Uncertainty of a metric value, in units of progress (0 to 1)."""
    earliest: float = 0.4
    """Fraction of the training amount at the first evaluation before which a learning curve is
    assumed to make no progress."""


class Shapes:
    """Shapes of the learning curves that reached the target.

    Progress is the improvement over the baseline, divided by the improvement at the target (0 to
    1). The shape of a curve maps progress to training: it is the amount (samples or seconds) after
    which the run had made a given progress, as a fraction of the amount at the target.

    Args:
        baseline: Metric of a constant prediction.
        target: Target value of the metric.
        settings: Constants of the model.
    """

    def __init__(self, baseline: float, target: float, settings: ModelSettings) -> None:
        self.baseline, self.target, self._settings = baseline, target, settings
        self._levels = np.linspace(0.0, 1.0, LEVELS)
        self._logs = np.empty((0, LEVELS))
        """Log fraction of the training amount at each progress level, shape [shapes, LEVELS]."""
        self._points: list[Array] = []
        self.num_added = 0
        """Number of shapes added so far, including those no longer stored."""

    def add(self, curve: Curve, reached: float) -> None:
        """Add the shape of a curve that reached the target at the training amount `reached`."""
        share = np.array([a for a in curve.amounts if a < reached] + [reached]) / reached
        progress = self.progress(np.array([*curve.best[: len(share) - 1], self.target]))
        progress = np.maximum.accumulate(progress)
        # Before the first evaluation, the curve is assumed to be linear, but to make no progress
        # before the fraction `earliest` of the training amount at that evaluation.
        linear = self._levels / max(progress[0], 1e-9)
        start = share[0] * np.maximum(linear, self._settings.earliest)
        progress = progress + 1e-9 * np.arange(len(progress))  # np.interp needs increasing values
        shape = np.where(
            self._levels < progress[0], start, np.interp(self._levels, progress, share)
        )
        self._logs = np.vstack([self._logs, np.log(shape)])[-MOST_SHAPES:]
        self._points = [*self._points, curve.point][-MOST_SHAPES:]
        self.num_added += 1

    def progress(self, best: Array) -> Array:
        """Convert metric values to progress (0 to 1)."""
        length = max(abs(self.target - self.baseline), 1e-12)
        progress: Array = np.clip((best - self.baseline) / length, 0.0, 1.0)
        return progress

    def remaining(self, curve: Curve, num_categories: int) -> tuple[float, float]:
        """Predict how much training remains until a learning curve reaches the target.

        Each stored shape predicts the training amount to the target after each evaluation. A shape
        that fits the curve predicts about the same amount every time, so shapes are weighted by the
        likelihood of the changes in their predictions, modeled as a Brownian motion over the log
        amount. Shapes of runs with the same categorical values have a larger weight.

        Args:
            curve: A curve with at least one evaluation that has not reached the target.
            num_categories: Number of leading axes of a point that are categories.

        Returns:
            Mean and standard deviation of log(amount to the target / amount so far).
        """
        settings = self._settings
        logs, progress = np.log(curve.amounts), self.progress(np.array(curve.best))
        # Index of the first evaluation with the same value as each evaluation.
        since = np.searchsorted(progress, progress)
        steps = np.array([-settings.blur, 0.0, settings.blur])
        blurred = np.clip(progress[None, :] + steps[:, None], 0.0, 1.0)
        log_shares = self._log_shares(blurred)  # [shapes, 3, evaluations]
        # The current value has not been exceeded yet, which gives a lower bound of the amount.
        lower_bounds = logs - log_shares[:, 2]
        totals = np.maximum(logs[since] - log_shares, lower_bounds[:, None, :])
        is_at_start = progress < settings.blur
        beyond = settings.beyond * settings.shape_sd * np.sqrt(-log_shares[:, 2])
        totals[:, :, is_at_start] = (lower_bounds + beyond)[:, None, is_at_start]
        share = self._weights(totals[:, 1], log_shares[:, 1], curve.point[:num_categories])[:, None]
        share = share * np.array([0.25, 0.5, 0.25])
        total = float((share * totals[:, :, -1]).sum())
        spread = float((share * (totals[:, :, -1] - total) ** 2).sum())
        remaining = max(total - float(logs[-1]), 0.0)
        return remaining, math.sqrt(settings.shape_sd**2 * remaining + spread)

    def _weights(self, totals: Array, log_shares: Array, categories: Array) -> Array:
        """Return the normalized weight of each stored curve shape, shape [shapes].

        Args:
            totals: Log of the total training amount needed to reach the target, as predicted by
                each curve shape after each evaluation, shape [shapes, evaluations].
            log_shares: Log of the fraction of that total used up at each evaluation, same shape.
            categories: Category indices of the configuration, shape [categories].
        """
        settings = self._settings
        distances = np.maximum(np.diff(log_shares, axis=1), 0.0)
        variances = settings.shape_sd**2 * distances + settings.floor**2
        misfits = np.minimum(np.diff(totals, axis=1) ** 2 / variances, settings.most_misfit)
        misfit = (misfits + np.log(variances)).sum(axis=1)
        weights = np.exp(-0.5 * settings.fit * (misfit - misfit.min()))
        differ = (np.array(self._points)[:, : len(categories)] != categories).any(axis=1)
        weights *= np.where(differ, 1.0, settings.same_category)
        shares: Array = weights / weights.sum()
        return shares

    def _log_shares(self, progress: Array) -> Array:
        """Return the log fraction of the training amount to the target at which each stored shape
        reaches the given progress, shape [shapes, *progress.shape]."""
        position = progress * (LEVELS - 1)
        low = np.minimum(position.astype(int), LEVELS - 2)
        fraction = position - low
        log_shares: Array = self._logs[:, low] * (1 - fraction) + self._logs[:, low + 1] * fraction
        return log_shares


class Surface:
    """Gaussian process over configurations, with a noise level per observation.

    A point represents a configuration: first the indices of its categorical values, then its
    numbers on the scale of `Axes`. A numeric key that the configuration does not have is NaN, which
    has the distance `ABSENT` from all numbers.

    The kernel is a Matérn 3/2 kernel over the numbers, with one length scale per axis, multiplied
    by `settings.correlation` for each category that differs, plus a linear kernel (Rasmussen and
    Williams 2006, equation 4.17). Length scales maximize the marginal likelihood (section 5.4).

    Args:
        num_categories: Number of categorical axes.
        num_numbers: Number of numeric axes.
        settings: Constants of the model.
        slopes: Prior standard deviation of the slope of the linear kernel, shape [num_numbers].
    """

    def __init__(
        self, num_categories: int, num_numbers: int, settings: ModelSettings, slopes: Array
    ) -> None:
        self._num_categories, self._settings = num_categories, settings
        self.scales = np.full(num_numbers, 1.4)
        self.signal_sd = 1.0
        self._slopes = slopes
        self._points = np.empty((0, num_categories + num_numbers))
        self._fitted = 0

    def fit(self, points: Array, values: Array, deviations: Array) -> None:
        """Condition the process on observations.

        Args:
            points: Configurations, shape [n, axes].
            values: Log training amounts to the target, shape [n].
            deviations: Standard deviations of the observations, shape [n].
        """
        number = len(values)
        is_due = number >= self._settings.refit and number >= self._fitted + self._settings.refit
        terms = self._kernel_terms(points, points)
        if is_due:
            self._fitted = number
            self._choose_scales(terms, values, deviations)
        self._points = points
        self._inverse = np.linalg.inv(self._kernel(terms) + np.diag(deviations**2))
        total = self._inverse.sum()
        self.mean = float((self._inverse @ values).sum() / total)
        self._weights = self._inverse @ (values - self.mean)
        self._values = values

    def __len__(self) -> int:
        return len(self._points)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return mean [n] and covariance [n, n] of the log training amount at points [n, axes]."""
        cross = self._kernel(self._kernel_terms(points, self._points))
        prior = self._kernel(self._kernel_terms(points, points))
        return self.mean + cross @ self._weights, prior - cross @ self._inverse @ cross.T

    def variances(self, points: Array, pending: Array) -> Array:
        """Return the variance of the log training amount at each point, shape [n].

        Args:
            points: Configurations, shape [n, axes].
            pending: Configurations, shape [m, axes]. One more noisy observation of each of them is
                assumed.
        """
        inverse, observed = self._inverse, self._points
        if len(pending):
            observed = np.concatenate([observed, pending])
            cross = self._kernel(self._kernel_terms(pending, self._points))
            pending_kernel = self._kernel(self._kernel_terms(pending, pending))
            pending_kernel = pending_kernel + np.diag(
                np.full(len(pending), self._settings.seed_sd**2)
            )
            half = inverse @ cross.T
            schur_inverse = np.linalg.inv(pending_kernel - cross @ half)
            corner = -half @ schur_inverse
            inverse = np.block(
                [[inverse + half @ schur_inverse @ half.T, corner], [corner.T, schur_inverse]]
            )
        cross = self._kernel(self._kernel_terms(points, observed))
        # The prior variance is constant, apart from the linear kernel.
        prior = self.signal_sd**2 + self._settings.offset_sd**2
        lines = np.nan_to_num(points[:, self._num_categories :]) ** 2 @ self._slopes**2
        variances: Array = prior + lines - ((cross @ inverse) * cross).sum(axis=1)
        return variances

    def means(self, points: Array) -> Array:
        """Return the mean [n] of the log training amount at points [n, axes]."""
        cross = self._kernel(self._kernel_terms(points, self._points))
        means: Array = self.mean + cross @ self._weights
        return means

    def without(self, number: int) -> tuple[float, float]:
        """Return mean and variance of an observation as predicted from all others (leave-one-out).

        The variance includes the noise of the observation (Rasmussen and Williams 2006, equation
        5.12).

        Args:
            number: Index of the observation.
        """
        precision = float(self._inverse[number, number])
        return float(self._values[number] - self._weights[number] / precision), 1 / precision

    def _kernel_terms(self, points: Array, other: Array) -> tuple[Array, Array, Array]:
        """Return the terms of the kernel that do not depend on the length scales.

        Args:
            points: Configurations, shape [n, axes].
            other: Configurations, shape [m, axes].

        Returns:
            Correlation of the categories, shape [n, m]; squared distances on each numeric axis,
            shape [numbers, n, m]; linear kernel, shape [n, m].
        """
        count = self._num_categories
        correlations = np.ones((len(points), len(other)))
        for axis in range(count):
            differ = points[:, None, axis] != other[None, :, axis]
            correlations *= np.where(differ, self._settings.correlation, 1.0)
        squares, linear = [], np.zeros_like(correlations)
        for axis in range(count, points.shape[1]):
            left, right = points[:, None, axis], other[None, :, axis]
            gap = left - right
            if np.isnan(gap).any():
                neither = np.isnan(left) & np.isnan(right)
                gap = np.where(neither, 0.0, np.where(np.isnan(gap), ABSENT, gap))
            squares.append(gap**2)
            if (slope := self._slopes[axis - count]) > 0:
                linear += slope**2 * np.nan_to_num(left) * np.nan_to_num(right)
        return correlations, np.array(squares).reshape(-1, *correlations.shape), linear

    def _kernel(
        self,
        terms: tuple[Array, Array, Array],
        scales: Array | None = None,
        signal_sd: float | None = None,
    ) -> Array:
        """Return the kernel, shape [n, m], from the result of `_kernel_terms`.

        The fitted length scales and signal standard deviation are used unless others are given.
        """
        correlations, squares, linear = terms
        scales = self.scales if scales is None else scales
        signal_sd = self.signal_sd if signal_sd is None else signal_sd
        distances = np.sqrt(3 * np.tensordot(1 / scales**2, squares, axes=1) + 1e-12)
        matern = (1 + distances) * np.exp(-distances)
        kernel: Array = (
            correlations * (signal_sd**2 * matern + self._settings.offset_sd**2) + linear
        )
        return kernel

    def _choose_scales(
        self, terms: tuple[Array, Array, Array], values: Array, deviations: Array
    ) -> None:
        """Choose the signal standard deviation, then each length scale; see `fit` for the values
        and deviations.

        The chosen values maximize the marginal likelihood times log-normal priors (medians 1 and
        1.4).
        """
        noise = np.diag(deviations**2)

        def evidence(scales: Array, signal_sd: float) -> float:
            kernel = self._kernel(terms, scales, signal_sd) + noise
            try:
                root = np.linalg.cholesky(kernel)
            except np.linalg.LinAlgError:
                return -math.inf
            ones, whitened = np.linalg.solve(root, np.c_[np.ones(len(values)), values]).T
            rest = whitened - ones * (ones @ whitened) / (ones @ ones)
            prior = math.log(signal_sd) ** 2 + float((np.log(scales / 1.4) ** 2).sum())
            return float(-0.5 * rest @ rest - np.log(np.diag(root)).sum() - 0.5 * prior)

        scales, signal_sd = self.scales.copy(), self.signal_sd
        best = evidence(scales, signal_sd)
        for axis in range(-1, len(scales)):
            candidates = (0.6, 1.0, 1.7) if axis < 0 else (0.5, 0.8, 1.4, 2.4, 4.0)
            for value in candidates:
                new_scales, new_signal_sd = scales.copy(), signal_sd
                if axis < 0:
                    new_signal_sd = value
                else:
                    new_scales[axis] = value
                if (value_evidence := evidence(new_scales, new_signal_sd)) > best:
                    best, scales, signal_sd = value_evidence, new_scales, new_signal_sd
        self.scales, self.signal_sd = scales, signal_sd


class CurveModel:
    """Predicts, from learning curves, the log training amount (samples or seconds) that each
    configuration needs to reach the target.

    Until a run has reached the target, an interim target is used instead: the best metric value
    that `settings.few` runs have passed.

    Args:
        num_categories: Number of leading axes of a point that are categories.
        num_numbers: Number of numeric axes that follow.
        baseline: Metric of a constant prediction. If None, the worst first evaluation of a run is
            used instead.
        target: Target value of the metric, higher is better. If None, the metric is maximized, and
            the interim target is always used.
        settings: Constants of the model.
        slopes: Prior standard deviation of the slope along each numeric axis, shape [num_numbers].
            If None, all are 0.
        expected: Function that returns the prior mean [n] of the log training amount at points
            [n, axes]. A constant offset does not matter. If None, the prior mean is constant.
    """

    def __init__(
        self,
        num_categories: int,
        num_numbers: int,
        *,
        baseline: float | None,
        target: float | None,
        settings: ModelSettings | None = None,
        slopes: Sequence[float] | None = None,
        expected: Callable[[Array], Array] | None = None,
    ) -> None:
        self.settings = settings or ModelSettings()
        self._num_categories = num_categories
        self._baseline, self._target = baseline, target
        lines = np.zeros(num_numbers) if slopes is None else np.array(slopes, dtype=float)
        self.surface = Surface(num_categories, num_numbers, self.settings, lines)
        self._expected = expected or (lambda points: np.zeros(len(points)))
        self.curves: dict[str, Curve] = {}
        self._num_reached = 0
        self._shapes: Shapes | None = None
        self._rows: dict[str, int] = {}
        """Index of each run's observation in the Gaussian process (`surface`), keyed by run."""
        self._is_stale = True

    def begin(self, run: str, point: Array, *, extra_sd: float = 0.0) -> None:
        """Add a run that is about to start; see `Curve` for the arguments."""
        self.curves[run] = Curve(point, extra_sd=extra_sd)

    def observe(self, run: str, amount: float, best: float, reached: float | None = None) -> None:
        """Add an evaluation of a run.

        Args:
            run: Name of the run.
            amount: Training amount (samples or seconds) so far.
            best: Best metric value so far; higher is better.
            reached: Training amount at which the run reached the target; None if it has not.
        """
        curve = self.curves[run]
        if not curve.amounts or amount > curve.amounts[-1]:  # else a repeated evaluation
            curve.amounts.append(amount)
            # A run that was restarted in other workers may report lower values than before.
            curve.best.append(max([best, *curve.best[-1:]]))
            self._is_stale = True
        if reached is None or curve.reached is not None:
            return
        curve.reached = reached
        self._is_stale = True
        self._num_reached += 1
        if self._num_reached == 1:
            assert self._target is not None
            self._shapes = Shapes(self._start(), self._target, self.settings)
        assert self._shapes is not None
        self._shapes.add(curve, reached)

    def _set_shapes(self) -> None:
        """Set the interim target, and store the shapes of the curves that passed it.

        Nothing is done once a run has reached the target itself.
        """
        if self._num_reached:
            return
        curves = [curve for curve in self.curves.values() if curve.best]
        start, num_curves = self._start(), self.settings.few
        highest = sorted((curve.best[-1] for curve in curves), reverse=True)[:num_curves]
        interim = min((value for value in highest if value > start), default=None)
        if interim is None:
            self._shapes = None
            return
        passed = [(curve, self._passed(curve, interim)) for curve in curves]
        passing = [(curve, reached) for curve, reached in passed if reached is not None]
        if (
            self._shapes is not None
            and (self._shapes.baseline, self._shapes.target) == (start, interim)
            and self._shapes.num_added == len(passing)
        ):
            return
        self._shapes = Shapes(start, interim, self.settings)
        for curve, reached in passing:
            self._shapes.add(curve, reached)

    @staticmethod
    def _passed(curve: Curve, value: float) -> float | None:
        """Return the training amount at which a curve passed a metric value, interpolated between
        evaluations; None if the curve has not passed the value."""
        index = int(np.searchsorted(curve.best, value))
        if index == len(curve.best):
            return None
        if index == 0:
            return curve.amounts[0]
        share = (value - curve.best[index - 1]) / (curve.best[index] - curve.best[index - 1])
        return curve.amounts[index - 1] + share * (curve.amounts[index] - curve.amounts[index - 1])

    def _start(self) -> float:
        """Return the metric value that counts as no progress: the baseline, or the worst first
        evaluation if the baseline is unknown."""
        if self._baseline is not None:
            return self._baseline
        return min((curve.best[0] for curve in self.curves.values() if curve.best), default=0.0)

    def extrapolate(self, curve: Curve) -> tuple[float, float]:
        """Return mean and standard deviation of a run's log training amount to the target.

        They are estimated only from the run's own learning curve, which must have at least one
        evaluation.
        """
        shapes = self._shapes
        num_added = 0 if shapes is None else shapes.num_added
        if num_added >= MOST_SHAPES:  # one more shape changes little, and extrapolating is slow
            num_added -= num_added % MORE_SHAPES
        state = shapes, num_added, len(curve.amounts), curve.reached, curve.has_missed
        if curve.cached is None or curve.cached[0] != state:
            curve.cached = state, self._extrapolate(curve)
        return curve.cached[1]

    def _extrapolate(self, curve: Curve) -> tuple[float, float]:
        settings, shapes = self.settings, self._shapes
        if shapes is None:
            return math.log(curve.amounts[-1]) + 3.0, 1.0
        reached = curve.reached if self._num_reached else self._passed(curve, shapes.target)
        noise = math.hypot(settings.seed_sd, curve.extra_sd)
        if not self._num_reached:
            noise = math.hypot(noise, settings.interim_sd)
        if reached is not None and not curve.has_missed:
            return math.log(reached), noise
        remaining, deviation = shapes.remaining(curve, self._num_categories)
        if curve.has_missed and remaining < settings.missed:
            remaining, deviation = settings.missed, settings.missed_sd
        return math.log(curve.amounts[-1]) + remaining, math.hypot(noise, deviation)

    def refresh(self) -> None:
        """Fit the Gaussian process to all observations, if there are new ones."""
        if not self._is_stale:
            return
        self._is_stale = False
        latest = list(self.curves)[-2 * self.settings.most :]
        recent = {**self._rows, **dict.fromkeys(latest)}
        names = [name for name in recent if self.curves[name].amounts]
        if not names:
            return
        self._set_shapes()
        log, deviation = np.array([self.extrapolate(self.curves[name]) for name in names]).T
        if len(names) > self.settings.most:
            half = self.settings.most // 2
            rows = np.unique(np.r_[np.argsort(log)[:half], np.arange(len(names))[-half:]])
            names, log, deviation = [names[row] for row in rows], log[rows], deviation[rows]
        failed = np.array([self.curves[name].has_failed for name in names])
        if not failed.all():
            lowest = log[~failed].min()
            log = np.where(failed, np.maximum(log, lowest + self.settings.failed), log)
        log = np.minimum(log, log.min() + self.settings.ceiling)
        self._rows = {name: row for row, name in enumerate(names)}
        points = np.array([self.curves[name].point for name in names])
        self.surface.fit(points, log - self._expected(points), deviation)

    @property
    def modeled(self) -> list[str]:
        """Names of the runs that the Gaussian process was fitted to: all runs, or if there are more
        than `settings.most`, those with the smallest amounts to the target and the latest."""
        return list(self._rows)

    @property
    def is_known(self) -> bool:
        """Whether the Gaussian process has observations."""
        return len(self.surface) > 0

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return mean [n] and covariance [n, n] of the log training amount to the target at points
        [n, axes]."""
        mean, covariance = self.surface.predict(points)
        return mean + self._expected(points), covariance

    def means(self, points: Array) -> Array:
        """Return the mean [n] of the log training amount to the target at points [n, axes]."""
        return self.surface.means(points) + self._expected(points)

    def expected_improvements(
        self, points: Array, offsets: Array, best: float, *, pending: Array, explore: float
    ) -> Array:
        """Return the expected improvement over `best` from one more run of each configuration.

        The formula is equation 15 of Jones et al. 1998. Its standard deviation is that of the
        change in the posterior mean that one more noisy run causes (knowledge gradient: Frazier et
        al. 2009, equation 2.10), so the expected improvement is small for a configuration that has
        run often.

        Args:
            points: Configurations, shape [n, axes].
            offsets: Numbers to add to the log training amounts, such as the log of the seconds per
                sample, shape [n].
            best: Log training amount plus offset that the configurations are to fall below.
            pending: Configurations of running trials without an evaluation, shape [m, axes]. They
                are treated as observed at their predicted mean, so that other configurations are
                preferred.
            explore: Factor by which the standard deviations are multiplied.

        Returns:
            Expected improvements in log units, at least 0, shape [n].
        """
        gain = best - (self.means(points) + offsets)
        variance = self.surface.variances(points, pending)
        variance = np.maximum(variance, 1e-9)
        deviation = explore * variance / np.sqrt(variance + self.settings.seed_sd**2)
        ratio = gain / deviation
        density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
        improvements: Array = gain * ndtr(ratio) + deviation * density
        return improvements

    def posterior(self, run: str) -> tuple[float, float]:
        """Return mean and variance of a run's log training amount to the target.

        They combine the extrapolation of the run's own learning curve and the prediction from all
        other runs (leave-one-out), weighted by inverse variance.
        """
        curve = self.curves[run]
        log, deviation = self.extrapolate(curve)
        row = self._rows.get(run)
        if row is None:
            mean, covariance = self.surface.predict(curve.point[None, :])
            prediction, variance = float(mean[0]), float(covariance[0, 0])
        else:
            # The variance includes the noise of this observation. Without this noise, more trials
            # are stopped, and the best configuration found in the same time is slower: by 7 % on
            # flights, by 22 % on slowed texts (10 seeds each).
            prediction, variance = self.surface.without(row)
        prediction += float(self._expected(curve.point[None, :])[0])
        precision = 1 / deviation**2
        prior = 1 / max(variance, 1e-4)
        return (log * precision + prediction * prior) / (precision + prior), 1 / (precision + prior)
