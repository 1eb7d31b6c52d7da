"""Statistics of repeated runs: expected running time, noise, significance, confidence intervals.

A run that reaches the target is a hit, any other run is a miss.
Times are compared on a log scale, since a seed changes them by a factor. With `best_at_budget`
(`is_timed=False`) all runs train equally long, and metric values are compared on their own scale.
Smaller is better, so accuracies are passed negated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean, median

import numpy as np

PRIOR_SIGMA = 0.3
"""Prior standard deviation of log seconds to target across seeds. Measured: 0.315 pooled over the
34 configurations of `benchmarks/results/search_real.json`, 0.12 to 0.54 for single ones."""
PRIOR_FREEDOM = 3.0
"""Degrees of freedom of the prior of PRIOR_SIGMA: its 90 % range of sigma is 0.19 to 0.88, about as
observed."""
OWN_FREEDOM = 8.0
"""Maximum degrees of freedom of the pooled noise when it is combined with a configuration's own
runs. It is limited because sigma differs between configurations (0.12 to 0.54 in the same file, as
8 degrees of freedom imply)."""
WIDER_FREEDOM = 1.0
"""OWN_FREEDOM for a configuration that scatters significantly more than the pooled noise."""
UPPER_QUANTILE = 0.95
"""Probability below the upper end of a two-sided 90 % interval."""
APART = 0.975
"""Quantile for a significant difference (two-sided level of 5 %)."""


@dataclass(frozen=True)
class Replicate:
    """One run of a configuration."""

    seconds: float
    """Training seconds to the target; all training seconds for a run that missed it or failed.

    With `best_at_budget` the metric value instead (smaller is better); ignored for a failed run.
    """
    is_hit: bool
    """Whether the target was reached; with best_at_budget, whether the run did not fail."""

    def times(self, factor: float) -> "Replicate":
        """Return the same run with `seconds` multiplied by `factor`, such as the number of workers
        for worker-seconds."""
        return Replicate(self.seconds * factor, self.is_hit)


@dataclass(frozen=True)
class Noise:
    """Run-to-run variation of one configuration."""

    sigma: float
    """Standard deviation of log seconds or of values; infinite if nothing is known."""
    freedom: float
    """Degrees of freedom of `sigma`."""
    is_timed: bool = True
    """True for log seconds, False for metric values."""

    @cached_property
    def half_width(self) -> float:
        """Half-width of the interval around a configuration's mean that holds 90 % of its runs
        (Student's t)."""
        return self.t_quantile(UPPER_QUANTILE) * self.sigma if self.freedom else math.inf

    def t_quantile(self, share: float) -> float:
        """Return the quantile of Student's t at a probability; infinite without degrees of
        freedom."""
        from scipy.special import stdtrit  # here, to keep `import raybench` fast

        return float(stdtrit(self.freedom, share)) if self.freedom else math.inf


def expected_running_time(repeats: Sequence[Replicate]) -> float:
    """Return the expected running time: the seconds of all runs divided by the number of runs that
    reached the target (hits); infinite without a hit.

    This is the mean time to the target if every miss is followed by a new run (ERT of Hansen et
    al., "COCO: performance assessment", 2016).
    """
    hits = sum(repeat.is_hit for repeat in repeats)
    return sum(repeat.seconds for repeat in repeats) / hits if hits else math.inf


def pooled(groups: Iterable[Sequence[Replicate]], *, is_timed: bool = True) -> Noise:
    """Return the noise pooled over all configurations of which two or more runs hit the target.

    For log seconds, this includes the prior PRIOR_SIGMA. Metric values have no prior, since their
    units differ.
    """
    freedom = PRIOR_FREEDOM if is_timed else 0.0
    squares = freedom * PRIOR_SIGMA**2
    for group in groups:
        values = measures(group, is_timed=is_timed)
        squares += _squares(values)
        freedom += max(len(values) - 1, 0)
    sigma = math.sqrt(squares / freedom) if freedom else math.inf
    return Noise(sigma, freedom, is_timed)


def measures(repeats: Sequence[Replicate], *, is_timed: bool = True) -> list[float]:
    """Return the log seconds, or metric values, of the runs that reached the target."""
    hits = [repeat.seconds for repeat in repeats if repeat.is_hit]
    return [math.log(seconds) for seconds in hits] if is_timed else hits


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values) if values else 0.0
    return sum((value - mean) ** 2 for value in values)


def score(repeats: Sequence[Replicate], *, is_timed: bool = True) -> float:
    """Return the score of a configuration (smaller is better); infinite if no run hit the target.

    The score is the log of the expected running time, or the mean metric value.
    """
    if not any(repeat.is_hit for repeat in repeats):
        return math.inf
    if is_timed:
        return math.log(expected_running_time(repeats))
    return fmean(measures(repeats, is_timed=False))


def effective_runs(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the effective number of runs: how many runs that all hit the target would give the
    score the same variance; 0 if none hit.

    With h hits in n runs, mean seconds T per hit and M per miss, and E = T + M (n - h) / h, the
    delta method gives log E the variance (T sigma)^2 / (h E^2) + (M / E)^2 n (n - h) / h^3: the
    variance of the mean hit time plus that of the binomial hit count.
    """
    hits = sum(repeat.is_hit for repeat in repeats)
    misses = len(repeats) - hits
    if not hits or not misses or not noise.is_timed or math.isinf(noise.sigma):
        return hits
    expected = expected_running_time(repeats)
    of_hit = sum(repeat.seconds for repeat in repeats if repeat.is_hit) / hits / expected
    of_miss = sum(repeat.seconds for repeat in repeats if not repeat.is_hit) / misses / expected
    variance = (of_hit * noise.sigma) ** 2 / hits
    variance += of_miss**2 * len(repeats) * misses / hits**3
    return noise.sigma**2 / variance


def upper_score(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the upper bound of a score (90 % interval); infinite if no run hit the target."""
    runs = effective_runs(repeats, noise)
    if not runs:
        return math.inf
    return score(repeats, is_timed=noise.is_timed) + noise.half_width / math.sqrt(runs)


def ranked(groups: Mapping[str, Sequence[Replicate]], noise: Noise) -> list[str]:
    """Return the configurations sorted by upper confidence bound of their score.

    The bound keeps one lucky run from outranking five good ones; with equal numbers of runs, the
    order is that of the scores. With `best_at_budget`, the fraction of failed runs is compared
    first. The sort is stable.
    """

    def standing(name: str) -> tuple[float, float, float]:
        group = groups[name]
        missed = 0.0 if noise.is_timed else _missed(group)
        return missed, upper_score(group, noise), score(group, is_timed=noise.is_timed)

    return sorted(groups, key=standing)


def _missed(repeats: Sequence[Replicate]) -> float:
    if not repeats:
        return 1.0
    return sum(not repeat.is_hit for repeat in repeats) / len(repeats)


def is_apart(
    best: Sequence[Replicate],
    other: Sequence[Replicate],
    noise: Noise,
    *,
    errors: float | None = None,
) -> bool:
    """Return whether `other` is significantly worse than `best`.

    The standard error is sigma sqrt(1/n1 + 1/n2) if all runs hit. A configuration without a hit is
    always worse than one with a hit; with `best_at_budget`, so is one with a larger fraction of
    failed runs.

    Args:
        best: Runs of the better configuration.
        other: Runs of the other configuration.
        noise: Pooled over all configurations.
        errors: Critical value in standard errors; None: the Student's t quantile at APART.
    """
    if not any(repeat.is_hit for repeat in best):
        return False
    if not any(repeat.is_hit for repeat in other):
        return True
    if not noise.is_timed and _missed(other) > _missed(best):
        return True
    if math.isinf(noise.sigma):
        return False
    gap = score(other, is_timed=noise.is_timed) - score(best, is_timed=noise.is_timed)
    if gap <= 0:
        return False
    error = math.hypot(*(_standard_error(group, noise) for group in (best, other)))
    return gap > (noise.t_quantile(APART) if errors is None else errors) * error


def _standard_error(repeats: Sequence[Replicate], noise: Noise) -> float:
    noise = noise_at_least(repeats, noise)
    return noise.sigma / math.sqrt(effective_runs(repeats, noise))


def interval(repeats: Sequence[Replicate], noise: Noise) -> tuple[float, float]:
    """Return the 90 % confidence interval of a configuration's typical time [s], or metric value.

    Args:
        repeats: Runs of one configuration that were not used to select it.
        noise: Pooled over all configurations, including these runs, since three runs say little
            about their own scatter.

    Returns:
        (low, high), around the geometric mean if all runs hit (the median if log seconds are
        symmetric), otherwise around the expected running time; (inf, inf) without a hit.
    """
    own_noise = noise_at_least(repeats, noise)
    if own_noise is noise:
        own_noise = _own_noise(repeats, noise)
    runs = effective_runs(repeats, own_noise)
    if not runs:
        return math.inf, math.inf
    center, half_width = _center(repeats, noise), own_noise.half_width / math.sqrt(runs)
    return _ends(center - half_width, center + half_width, noise)


def intervals_of_chosen(
    groups: Mapping[str, Sequence[Replicate]], noise: Noise
) -> dict[str, tuple[float, float]]:
    """Return 90 % intervals of configurations that were ranked by the same runs.

    The best of many is partly lucky (winner's curse): an ordinary 90 % interval covers its typical
    time in only 65 to 85 % of races. So each interval is widened to include the one around an
    empirical Bayes estimate, which shrinks toward the median configuration. It shrinks more the
    larger the noise is relative to the differences between configurations (Efron and Morris, "Data
    analysis using Stein's estimator", 1975).

    Args:
        groups: Runs by configuration, without the search run.
        noise: Pooled over these groups.

    Returns:
        (low, high) by configuration, as returned by `interval`.
    """
    intervals = {name: interval(runs, noise) for name, runs in groups.items()}
    counted = {name: runs for name, runs in groups.items() if effective_runs(runs, noise)}
    if len(counted) < 2 or not 0 < noise.sigma < math.inf:
        return intervals
    centers = {name: _center(runs, noise) for name, runs in counted.items()}
    errors = {name: noise.sigma**2 / effective_runs(runs, noise) for name, runs in counted.items()}
    between = _between_variance(centers.values(), errors.values())
    middle = median(centers.values())
    middle_variance = 1 / sum(1 / (between + error) for error in errors.values())
    for name, center in centers.items():
        share = errors[name] / (between + errors[name])
        moved = center + share * (middle - center)
        error = math.sqrt((1 - share) * errors[name] + share**2 * middle_variance)
        half_width = noise.t_quantile(UPPER_QUANTILE) * error
        low, high = _ends(moved - half_width, moved + half_width, noise)
        intervals[name] = min(intervals[name][0], low), max(intervals[name][1], high)
    return intervals


def _between_variance(centers: Iterable[float], errors: Iterable[float]) -> float:
    """Return the between-configuration variance, estimated from measured centers and their squared
    standard errors (DerSimonian and Laird, "Meta-analysis in clinical trials", 1986)."""
    values, weights = np.fromiter(centers, float), 1 / np.fromiter(errors, float)
    over = weights @ (values - np.average(values, weights=weights)) ** 2 - (len(values) - 1)
    return max(0.0, float(over / (weights.sum() - weights @ weights / weights.sum())))


def _center(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the center of an interval: the score, or the mean log seconds if all runs hit."""
    if noise.is_timed and all(repeat.is_hit for repeat in repeats):
        return fmean(measures(repeats))
    return score(repeats, is_timed=noise.is_timed)


def _ends(low: float, high: float, noise: Noise) -> tuple[float, float]:
    return (math.exp(low), math.exp(high)) if noise.is_timed else (low, high)


def noise_at_least(repeats: Sequence[Replicate], noise: Noise) -> Noise:
    """Return the pooled noise, or a larger estimate if this configuration's runs scatter
    significantly more than the others' (F test at 5 %). For `noise` see `interval`."""
    values = measures(repeats, is_timed=noise.is_timed)
    freedom, other_noise = len(values) - 1, _without(values, noise)
    if freedom < 1 or not other_noise.freedom:
        return noise
    if _squares(values) / freedom <= other_noise.sigma**2 * _most_ratio(
        freedom, other_noise.freedom
    ):
        return noise
    return _own_noise(repeats, noise, max_freedom=WIDER_FREEDOM)


def _without(values: Sequence[float], noise: Noise) -> Noise:
    """Return the pooled noise without one configuration's runs, whose measures are `values`."""
    freedom = noise.freedom - max(len(values) - 1, 0)
    if not freedom > 0:
        return Noise(math.inf, 0.0, noise.is_timed)
    squares = max(noise.freedom * noise.sigma**2 - _squares(values), 0.0)
    return Noise(math.sqrt(squares / freedom), freedom, noise.is_timed)


@cache
def _most_ratio(numerator: int, denominator: float) -> float:
    """Return the 95 % quantile of the F distribution with these degrees of freedom."""
    from scipy.special import fdtri

    return float(fdtri(numerator, denominator, UPPER_QUANTILE))


def _own_noise(
    repeats: Sequence[Replicate], noise: Noise, *, max_freedom: float = OWN_FREEDOM
) -> Noise:
    """Return the noise of one configuration from its own runs and the pooled noise of the others,
    which counts for at most `max_freedom` degrees of freedom."""
    values = measures(repeats, is_timed=noise.is_timed)
    other_noise = _without(values, noise)
    weight, freedom = min(other_noise.freedom, max_freedom), max(len(values) - 1, 0)
    if not weight + freedom:
        return other_noise
    squares = _squares(values) + (weight * other_noise.sigma**2 if weight else 0.0)
    return Noise(math.sqrt(squares / (weight + freedom)), weight + freedom, noise.is_timed)
