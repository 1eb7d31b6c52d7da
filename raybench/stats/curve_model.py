"""Model of learning curves: how much training each configuration needs, and how sure that is.

Learning curves become *amounts to the target* (samples, or seconds where speed is not known apart):
measured for runs that reached it, extrapolated for those that were stopped. A Gaussian process over
the search space puts them together. Runs of one configuration differ by their seeds; that is noise
of each observation, so that equal and neighboring configurations share what they know.

Plain numpy: neither Optuna nor Ray. `search/curve_search.py` proposes and stops by it in a study,
`search/sampling/curve_sampler.py` in any study of Optuna; `report/figures/surface.py` draws it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
LEVELS = 96
"""Progress levels at which the shapes of curves are kept."""
ABSENT = 3.0
"""Distance between a configuration that has a number and one that has not."""
MOST_SHAPES = 40
"""Curves in the library, the latest ones."""
MORE_SHAPES = 8
"""New curves in a full library after which all curves are extrapolated anew."""


@dataclass
class Curve:
    """Learning curve of one run so far; `amounts` and `best` grow together.

    Args:
        point: The configuration, as `Axes.point` gives it.
        amounts: Samples (or seconds) of training at each evaluation, increasing.
        best: Best value by then; the more the better.
        reached: Amount at which the target was reached; None while it was not.
        has_missed: Whether it came to its end without the target.
        has_failed: Whether it diverged.
        extra_sd: Standard deviation of the log amount beyond that of seeds, as of a run on another
            machine or of an earlier version of the code.
    """

    point: Array
    amounts: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    reached: float | None = None
    has_missed: bool = False
    has_failed: bool = False
    extra_sd: float = 0.0
    said: tuple[object, tuple[float, float]] | None = field(default=None, repr=False)
    """State and result of the last `CurveModel.extrapolate`."""


@dataclass(frozen=True)
class ModelSettings:
    """The constants of the model; log units throughout."""

    seed_sd: float = 0.2
    """Scatter of the log amount to the target between seeds of one configuration."""
    shape_sd: float = 0.5
    """Error of a curve extrapolated from nothing: what its shape may differ from all others."""
    correlation: float = 0.3
    """Prior correlation between two values of a category, such as two optimizers."""
    offset_sd: float = 0.3
    """Prior deviation between categories that is the same everywhere."""
    same_category: float = 3.0
    """Weight of a shape of the same categories over one of others."""
    ceiling: float = 4.0
    """Log amounts beyond the least one that are told apart no more."""
    most: int = 300
    """Observations that are modelled: those with the least amounts, and the latest."""
    refit: int = 8
    """New observations after which the length scales are chosen anew."""
    fit: float = 0.3
    """Power of the likelihood that weights shapes."""
    most_misfit: float = 9.0
    """Most squared deviations that one evaluation speaks against a shape."""
    failed: float = 2.0
    """Least log of the amount of a run that diverged over the least amount known."""
    missed: float = 2.0
    """Least log of the amount to the target over that of a run that ended without it."""
    missed_sd: float = 0.2
    """Standard deviation of the log amount of such a run."""
    beyond: float = 0.8
    """Standard deviations added to the lower bound of a curve still at its starting value: about
    the mean of a normal distribution cut off at its center."""
    floor: float = 0.14
    """Least deviation by which a run is compared with the best."""
    few: int = 3
    """Runs that must have passed the nearer target, which counts until a run reaches the target."""
    nearer_sd: float = 0.3
    """Error of an amount that is to a nearer target."""
    blur: float = 0.02
    """Share of the way by which a value is blurred."""
    earliest: float = 0.4
    """Share of the amount at its first evaluation by which a curve has any value at the least."""


class Shapes:
    """The courses of the runs that came to a target: which share of the way they had come by which
    share of their amount.

    Args:
        baseline: Value of an answer that never looks; the way to the target begins there.
        target: Value at the target.
    """

    def __init__(self, baseline: float, target: float, settings: ModelSettings) -> None:
        self.baseline, self.target, self._settings = baseline, target, settings
        self._levels = np.linspace(0.0, 1.0, LEVELS)
        self._logs = np.empty((0, LEVELS))
        """Log share of the amount at each level, by curve."""
        self._points: list[Array] = []
        self.num_added = 0
        """Curves taken so far, those that were dropped since included."""

    def add(self, curve: Curve, reached: float) -> None:
        """Take a curve that came to the target after the amount `reached`."""
        share = np.array([a for a in curve.amounts if a < reached] + [reached]) / reached
        way = self.way(np.array([*curve.best[: len(share) - 1], self.target]))
        way = np.maximum.accumulate(way)
        # Before the first evaluation nothing was seen: a value below that one comes as soon as by a
        # straight line, but no sooner than by `earliest` of its share.
        first = share[0] * np.maximum(self._levels / max(way[0], 1e-9), self._settings.earliest)
        way = way + 1e-9 * np.arange(len(way))  # a standstill has a beginning and an end
        at = np.where(self._levels < way[0], first, np.interp(self._levels, way, share))
        self._logs = np.vstack([self._logs, np.log(at)])[-MOST_SHAPES:]
        self._points = [*self._points, curve.point][-MOST_SHAPES:]
        self.num_added += 1

    def way(self, best: Array) -> Array:
        """Return which shares of the way to the target values are, 0 to 1."""
        length = max(abs(self.target - self.baseline), 1e-12)
        found: Array = np.clip((best - self.baseline) / length, 0.0, 1.0)
        return found

    def left(self, curve: Curve, num_categories: int) -> tuple[float, float]:
        """Return the log of the amount to the target over a curve's amount so far, and the
        standard deviation of that.

        Each shape says it after each evaluation; what it says should not change from one to the
        next. The shapes are weighted by how little it did, as if its logarithm were a Brownian
        motion over the log amount, and those of the same categories more.
        """
        settings = self._settings
        logs, way = np.log(curve.amounts), self.way(np.array(curve.best))
        since = np.searchsorted(way, way)  # the evaluation that had the value first
        steps = np.array([-settings.blur, 0.0, settings.blur])
        at = self._at(np.clip(way[None, :] + steps[:, None], 0.0, 1.0))  # [shapes, 3, evaluations]
        # A curve needs no less than where a shape has left its value by now.
        least = logs - at[:, 2]
        totals = np.maximum(logs[since] - at, least[:, None, :])
        nowhere = way < settings.blur
        beyond = settings.beyond * settings.shape_sd * np.sqrt(-at[:, 2])
        totals[:, :, nowhere] = (least + beyond)[:, None, nowhere]
        share = self._weights(totals[:, 1], at[:, 1], curve.point[:num_categories])[:, None]
        share = share * np.array([0.25, 0.5, 0.25])
        total = float((share * totals[:, :, -1]).sum())
        spread = float((share * (totals[:, :, -1] - total) ** 2).sum())
        left = max(total - float(logs[-1]), 0.0)
        return left, math.sqrt(settings.shape_sd**2 * left + spread)

    def _weights(self, totals: Array, at: Array, categories: Array) -> Array:
        """Return the weight of each shape, which sum to 1, by what it said after each evaluation:
        log amounts to the target `totals`, shares `at`, both [shapes, evaluations]."""
        settings = self._settings
        far = np.maximum(np.diff(at, axis=1), 0.0)
        variances = settings.shape_sd**2 * far + settings.floor**2
        misfits = np.minimum(np.diff(totals, axis=1) ** 2 / variances, settings.most_misfit)
        misfit = (misfits + np.log(variances)).sum(axis=1)
        weights = np.exp(-0.5 * settings.fit * (misfit - misfit.min()))
        differ = (np.array(self._points)[:, : len(categories)] != categories).any(axis=1)
        weights *= np.where(differ, 1.0, settings.same_category)
        found: Array = weights / weights.sum()
        return found

    def _at(self, way: Array) -> Array:
        """Return the log share of the amount at which each shape reaches shares of the way, `way`
        [...], as [shapes, ...]."""
        place = way * (LEVELS - 1)
        low = np.minimum(place.astype(int), LEVELS - 2)
        part = place - low
        found: Array = self._logs[:, low] * (1 - part) + self._logs[:, low + 1] * part
        return found


class Surface:
    """A Gaussian process over configurations, with noise per observation.

    A point has its categories first (their numbers), then numbers on the scale of `Axes`; what a
    configuration does not have is NaN, and as far from everything as the end of an axis. Kernel:
    Matérn 3/2 over the numbers, each with a length scale; categories are correlated as
    `settings.correlation` (Rasmussen and Williams 2006, equation 4.17; length scales by marginal
    likelihood, section 5.4).
    """

    def __init__(
        self, num_categories: int, num_numbers: int, settings: ModelSettings, slopes: Array
    ) -> None:
        """`slopes`: prior deviation of a straight line over each number."""
        self._num_categories, self._settings = num_categories, settings
        self.scales = np.full(num_numbers, 1.4)
        self.height = 1.0
        self._slopes = slopes
        self._points = np.empty((0, num_categories + num_numbers))
        self._fitted = 0

    def fit(self, points: Array, values: Array, deviations: Array) -> None:
        """Condition on observations: points [n, axes], log amounts [n], deviations [n]."""
        number = len(values)
        is_due = number >= self._settings.refit and number >= self._fitted + self._settings.refit
        parts = self._parts(points, points)
        if is_due:
            self._fitted = number
            self._choose_scales(parts, values, deviations)
        self._points = points
        self._inverse = np.linalg.inv(self._kernel(parts) + np.diag(deviations**2))
        total = self._inverse.sum()
        self.mean = float((self._inverse @ values).sum() / total)
        self._weights = self._inverse @ (values - self.mean)
        self._values = values

    def __len__(self) -> int:
        return len(self._points)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return means [n] and covariance [n, n] of the log amounts at points [n, axes]."""
        cross = self._kernel(self._parts(points, self._points))
        prior = self._kernel(self._parts(points, points))
        return self.mean + cross @ self._weights, prior - cross @ self._inverse @ cross.T

    def variances(self, points: Array, pending: Array) -> Array:
        """Return the variances of the log amounts at points once those at `pending` are known,
        too; their deviation is that of seeds."""
        inverse, known = self._inverse, self._points
        if len(pending):
            known = np.concatenate([known, pending])
            cross = self._kernel(self._parts(pending, self._points))
            own = self._kernel(self._parts(pending, pending))
            own = own + np.diag(np.full(len(pending), self._settings.seed_sd**2))
            half = inverse @ cross.T
            rest = np.linalg.inv(own - cross @ half)
            corner = -half @ rest
            inverse = np.block([[inverse + half @ rest @ half.T, corner], [corner.T, rest]])
        cross = self._kernel(self._parts(points, known))
        # The prior variance is the same everywhere but for the straight lines.
        prior = self.height**2 + self._settings.offset_sd**2
        lines = np.nan_to_num(points[:, self._num_categories :]) ** 2 @ self._slopes**2
        found: Array = prior + lines - ((cross @ inverse) * cross).sum(axis=1)
        return found

    def means(self, points: Array) -> Array:
        """Return the means alone."""
        found: Array = self.mean + self._kernel(self._parts(points, self._points)) @ self._weights
        return found

    def without(self, number: int) -> tuple[float, float]:
        """Return mean and variance at an observation's point, known all but it (Rasmussen and
        Williams 2006, equation 5.12)."""
        precision = float(self._inverse[number, number])
        return float(self._values[number] - self._weights[number] / precision), 1 / precision

    def _parts(self, one: Array, other: Array) -> tuple[Array, Array, Array]:
        """Return what does not depend on the scales: category correlations, squared distances by
        axis, covariance of the straight lines."""
        count = self._num_categories
        alike = np.ones((len(one), len(other)))
        for axis in range(count):
            differ = one[:, None, axis] != other[None, :, axis]
            alike *= np.where(differ, self._settings.correlation, 1.0)
        squares, lines = [], np.zeros_like(alike)
        for axis in range(count, one.shape[1]):
            left, right = one[:, None, axis], other[None, :, axis]
            gap = left - right
            if np.isnan(gap).any():
                neither = np.isnan(left) & np.isnan(right)
                gap = np.where(neither, 0.0, np.where(np.isnan(gap), ABSENT, gap))
            squares.append(gap**2)
            if (slope := self._slopes[axis - count]) > 0:
                lines += slope**2 * np.nan_to_num(left) * np.nan_to_num(right)
        return alike, np.array(squares).reshape(-1, *alike.shape), lines

    def _kernel(
        self,
        parts: tuple[Array, Array, Array],
        scales: Array | None = None,
        height: float | None = None,
    ) -> Array:
        alike, squares, lines = parts
        scales = self.scales if scales is None else scales
        height = self.height if height is None else height
        far = np.sqrt(3 * np.tensordot(1 / scales**2, squares, axes=1) + 1e-12)
        smooth = (1 + far) * np.exp(-far)
        found: Array = alike * (height**2 * smooth + self._settings.offset_sd**2) + lines
        return found

    def _choose_scales(
        self, parts: tuple[Array, Array, Array], values: Array, deviations: Array
    ) -> None:
        """Choose the height and each length scale in turn, by marginal likelihood times a prior
        about 1."""
        noise = np.diag(deviations**2)

        def evidence(scales: Array, height: float) -> float:
            kernel = self._kernel(parts, scales, height) + noise
            try:
                root = np.linalg.cholesky(kernel)
            except np.linalg.LinAlgError:
                return -math.inf
            ones, own = np.linalg.solve(root, np.c_[np.ones(len(values)), values]).T
            rest = own - ones * (ones @ own) / (ones @ ones)
            prior = math.log(height) ** 2 + float((np.log(scales / 1.4) ** 2).sum())
            found = -0.5 * rest @ rest - np.log(np.diag(root)).sum() - 0.5 * prior
            return float(found)

        scales, height = self.scales.copy(), self.height
        best = evidence(scales, height)
        for axis in range(-1, len(scales)):
            tried = (0.6, 1.0, 1.7) if axis < 0 else (0.5, 0.8, 1.4, 2.4, 4.0)
            for one in tried:
                new_scales, new_height = scales.copy(), height
                if axis < 0:
                    new_height = one
                else:
                    new_scales[axis] = one
                if (found := evidence(new_scales, new_height)) > best:
                    best, scales, height = found, new_scales, new_height
        self.scales, self.height = scales, height


class CurveModel:
    """Curves in, beliefs out: the log amount to the target of every configuration.

    Args:
        num_categories: How many axes of a point, the first ones, are categories.
        num_numbers: How many axes follow them.
        baseline: Value of an answer that never looks; None: not known.
        target: Value at the target, the more the better; None: as high as can be, so that what
            counts is the amount to a value that a few have passed.
        slopes: Prior deviation of a straight line over each number; none by default.
        expected: Log amounts expected beforehand at points [n, axes], but for a constant.
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
        """Number of the observation of each run in the surface."""
        self._is_stale = True

    def begin(self, run: str, point: Array, *, extra_sd: float = 0.0) -> None:
        """Take a run that begins; see `Curve` for the arguments."""
        self.curves[run] = Curve(point, extra_sd=extra_sd)

    def observe(self, run: str, amount: float, best: float, reached: float | None = None) -> None:
        """Take a run's evaluation: its amount so far, its best value, the amount at the target."""
        curve = self.curves[run]
        if not curve.amounts or amount > curve.amounts[-1]:  # else it was told before
            curve.amounts.append(amount)
            # A run that began anew in other workers may say less than it said before.
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
        """Take a nearer target, as long as no run has come to the target: the value that a few of
        them have passed."""
        if self._num_reached:
            return
        curves = [one for one in self.curves.values() if one.best]
        start, few = self._start(), self.settings.few
        highest = sorted((one.best[-1] for one in curves), reverse=True)[:few]
        nearer = min((one for one in highest if one > start), default=None)
        if nearer is None:
            self._shapes = None
            return
        passed = [(one, self._passed(one, nearer)) for one in curves]
        shown = [(curve, reached) for curve, reached in passed if reached is not None]
        if (
            self._shapes is not None
            and (self._shapes.baseline, self._shapes.target) == (start, nearer)
            and self._shapes.num_added == len(shown)
        ):
            return
        self._shapes = Shapes(start, nearer, self.settings)
        for curve, reached in shown:
            self._shapes.add(curve, reached)

    @staticmethod
    def _passed(curve: Curve, value: float) -> float | None:
        """Return the amount at which a curve passed a value; None where it has not."""
        at = int(np.searchsorted(curve.best, value))
        if at == len(curve.best):
            return None
        if at == 0:
            return curve.amounts[0]
        share = (value - curve.best[at - 1]) / (curve.best[at] - curve.best[at - 1])
        return curve.amounts[at - 1] + share * (curve.amounts[at] - curve.amounts[at - 1])

    def _start(self) -> float:
        if self._baseline is not None:
            return self._baseline
        return min((curve.best[0] for curve in self.curves.values() if curve.best), default=0.0)

    def extrapolate(self, curve: Curve) -> tuple[float, float]:
        """Return the log amount to the target of a curve with an evaluation, by its own course
        alone, and its standard deviation."""
        shapes = self._shapes
        num_added = 0 if shapes is None else shapes.num_added
        if num_added >= MOST_SHAPES:  # one shape more changes little, and it takes long
            num_added -= num_added % MORE_SHAPES
        state = shapes, num_added, len(curve.amounts), curve.reached, curve.has_missed
        if curve.said is None or curve.said[0] != state:
            curve.said = state, self._extrapolate(curve)
        return curve.said[1]

    def _extrapolate(self, curve: Curve) -> tuple[float, float]:
        settings, shapes = self.settings, self._shapes
        if shapes is None:
            return math.log(curve.amounts[-1]) + 3.0, 1.0
        reached = curve.reached if self._num_reached else self._passed(curve, shapes.target)
        noise = math.hypot(settings.seed_sd, curve.extra_sd)
        if not self._num_reached:
            noise = math.hypot(noise, settings.nearer_sd)
        if reached is not None and not curve.has_missed:
            return math.log(reached), noise
        left, deviation = shapes.left(curve, self._num_categories)
        if curve.has_missed and left < settings.missed:
            left, deviation = settings.missed, settings.missed_sd
        return math.log(curve.amounts[-1]) + left, math.hypot(noise, deviation)

    def refresh(self) -> None:
        """Put all that was observed into the surface."""
        if not self._is_stale:
            return
        self._is_stale = False
        latest = list(self.curves)[-2 * self.settings.most :]
        names = [name for name in {**self._rows, **dict.fromkeys(latest)} if self.has_shown(name)]
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
            least = log[~failed].min()
            log = np.where(failed, np.maximum(log, least + self.settings.failed), log)
        log = np.minimum(log, log.min() + self.settings.ceiling)
        self._rows = {name: row for row, name in enumerate(names)}
        points = np.array([self.curves[name].point for name in names])
        self.surface.fit(points, log - self._expected(points), deviation)

    def has_shown(self, run: str) -> bool:
        """Whether a run has been evaluated."""
        return bool(self.curves[run].amounts)

    @property
    def modelled(self) -> list[str]:
        """The runs that were put into the surface: the best and the latest."""
        return list(self._rows)

    @property
    def is_known(self) -> bool:
        """Whether anything was put into the surface."""
        return len(self.surface) > 0

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return means [n] and covariance [n, n] of the log amount to the target at points."""
        mean, covariance = self.surface.predict(points)
        return mean + self._expected(points), covariance

    def means(self, points: Array) -> Array:
        """Return the means alone."""
        return self.surface.means(points) + self._expected(points)

    def expected_improvements(
        self, points: Array, offsets: Array, best: float, *, pending: Array, explore: float = 1.0
    ) -> Array:
        """Return by how much one more run should bring configurations' means below `best`, at
        least 0 (Jones et al. 1998, equation 15, with the deviation by which that run, its seed's
        noise included, moves the mean: Frazier et al. 2009, equation 2.10). A configuration that
        ran often has little left to show.

        Args:
            points: Configurations, shape [n, axes].
            offsets: What is added to their log amounts, such as log seconds a sample; [n].
            best: The log amount, with its offset, to be improved on.
            pending: Configurations that run and have shown nothing, shape [m, axes]: taken for as
                they are expected, so that others are preferred to one more of them.
            explore: Factor on the deviations.

        Returns:
            Expected improvements, log units, shape [n].
        """
        gain = best - (self.means(points) + offsets)
        variance = self.surface.variances(points, pending)
        variance = np.maximum(variance, 1e-9)
        deviation = explore * variance / np.sqrt(variance + self.settings.seed_sd**2)
        ratio = gain / deviation
        density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
        found: Array = gain * ndtr(ratio) + deviation * density
        return found

    def belief(self, run: str) -> tuple[float, float]:
        """Return mean and variance of the log amount to the target of a run that goes on: by its
        own curve and by what the others say of its configuration."""
        curve = self.curves[run]
        log, deviation = self.extrapolate(curve)
        row = self._rows.get(run)
        if row is None:
            mean, covariance = self.surface.predict(curve.point[None, :])
            others, variance = float(mean[0]), float(covariance[0, 0])
        else:
            others, variance = self.surface.without(row)
        others += float(self._expected(curve.point[None, :])[0])
        own = 1 / deviation**2
        prior = 1 / max(variance, 1e-4)
        return (log * own + others * prior) / (own + prior), 1 / (own + prior)
