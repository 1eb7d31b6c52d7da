"""Statistics of repeated runs: expected running time, noise, significance, confidence intervals.

A run that reaches the target is a hit, any other run is a miss. Times are compared on a log scale,
since a different seed changes them by a factor. With `best_at_budget`, all runs train equally long,
and metric values are compared instead, on their own scale. In both cases, smaller is better, so the
values of a metric to maximize are negated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean, median

import numpy as np

PRIOR_SIGMA = 0.3
"""Prior standard deviation of the log seconds to the target across seeds. The measured value is
0.315 pooled over the 34 configurations of `benchmarks/results/search_real.json`, and 0.12 to 0.54
for single configurations."""
PRIOR_FREEDOM = 3.0
"""Degrees of freedom of the prior for sigma. With 3, the central 90 % of the prior are sigmas from
0.19 to 0.88, which is about the observed range."""
OWN_FREEDOM = 8.0
"""Maximum degrees of freedom of the pooled noise when it is combined with the runs of a single
configuration. The limit is needed because sigma differs between configurations; the observed range
of 0.12 to 0.54 corresponds to about 8 degrees of freedom."""
WIDER_FREEDOM = 1.0
"""Value used instead of OWN_FREEDOM for a configuration whose runs scatter significantly more than
the pooled noise."""
UPPER_QUANTILE = 0.95
"""Probability below the upper end of a two-sided 90 % interval."""
APART = 0.975
"""Probability of the quantile that a difference must exceed to be significant (two-sided test at
5 %)."""


@dataclass(frozen=True)
class Replicate:
    """One run of a configuration."""

    seconds: float
    """Training seconds to the target; for a run that missed the target or failed, the seconds that
    it cost (see `stats.standing.replicate_of`).

    With `best_at_budget`, this is the metric value instead, negated if higher values are better; it
    is ignored for a failed run.
    """
    is_hit: bool
    """Whether the run reached the target; with `best_at_budget`, whether it did not fail."""
    is_timed: bool = True
    """Whether `seconds` is a time; with `best_at_budget`, it is a metric value."""

    @property
    def measure(self) -> float:
        """Quantity that is normally distributed across runs: log seconds, or the metric value."""
        return math.log(self.seconds) if self.is_timed else self.seconds

    def times(self, factor: float) -> "Replicate":
        """Return the run with `seconds` multiplied by a factor, for example by the number of
        workers to convert seconds to worker-seconds."""
        return Replicate(self.seconds * factor, self.is_hit, self.is_timed)


@dataclass(frozen=True)
class Noise:
    """Run-to-run variation of one configuration."""

    sigma: float
    """Standard deviation between runs, of log seconds or of metric values; infinite if unknown."""
    freedom: float
    """Degrees of freedom of the estimate `sigma`."""
    is_timed: bool = True
    """Whether `sigma` refers to log seconds; otherwise, it refers to metric values."""

    @property
    def is_assumed(self) -> bool:
        """Whether `sigma` is the prior PRIOR_SIGMA, since no configuration has several hits."""
        return self.is_timed and self.freedom <= PRIOR_FREEDOM

    @cached_property
    def half_width(self) -> float:
        """Half-width, in the unit of `sigma`, of the interval around a configuration's mean that
        contains 90 % of its runs (Student's t)."""
        return self.t_quantile(UPPER_QUANTILE) * self.sigma if self.freedom else math.inf

    def t_quantile(self, share: float) -> float:
        """Return the quantile of Student's t distribution at the probability `share`; infinite if
        there are no degrees of freedom."""
        from scipy.special import stdtrit  # here, to keep `import raybench` fast

        return float(stdtrit(self.freedom, share)) if self.freedom else math.inf


UNKNOWN_NOISE = Noise(math.inf, 0.0, is_timed=False)
"""Noise of metric values if no configuration has two runs, since metric values have no prior."""


def expected_running_time(repeats: Sequence[Replicate]) -> float:
    """Return the expected running time of a configuration in seconds; infinite without a hit.

    It is the total seconds of all runs divided by the number of runs that reached the target
    (hits). This is the mean time to the target if every miss is followed by a new run (ERT of
    Hansen et al., "COCO: performance assessment", 2016).
    """
    hits = sum(repeat.is_hit for repeat in repeats)
    return sum(repeat.seconds for repeat in repeats) / hits if hits else math.inf


def pooled(groups: Iterable[Sequence[Replicate]]) -> Noise:
    """Return the run-to-run variation, pooled over configurations with at least two hits (runs that
    reached the target or, with `best_at_budget`, did not fail).

    For log seconds, the estimate includes the prior PRIOR_SIGMA. For metric values, there is no
    prior, since their units differ.

    Args:
        groups: Runs of each configuration.
    """
    groups = list(groups)
    is_timed = all(run.is_timed for group in groups for run in group)
    freedom = PRIOR_FREEDOM if is_timed else 0.0
    squares = freedom * PRIOR_SIGMA**2
    for group in groups:
        values = measures(group)
        squares += _sum_of_squares(values)
        freedom += max(len(values) - 1, 0)
    sigma = math.sqrt(squares / freedom) if freedom else math.inf
    return Noise(sigma, freedom, is_timed)


def measures(repeats: Sequence[Replicate]) -> list[float]:
    """Return the log seconds of the runs that reached the target, or with `best_at_budget` the
    metric values of the runs that did not fail."""
    return [repeat.measure for repeat in repeats if repeat.is_hit]


def _sum_of_squares(values: Sequence[float]) -> float:
    mean = fmean(values) if values else 0.0
    return sum((value - mean) ** 2 for value in values)


def score(repeats: Sequence[Replicate]) -> float:
    """Return the score of a configuration (smaller is better); infinite if no run hit the target.

    The score is the log of the expected running time, or with `best_at_budget` the mean metric
    value.
    """
    if not any(repeat.is_hit for repeat in repeats):
        return math.inf
    if repeats[0].is_timed:
        return math.log(expected_running_time(repeats))
    return fmean(measures(repeats))


def effective_runs(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the effective number of runs of a configuration; 0 if no run hit the target.

    It is the number of runs that, if all of them hit the target, would give the score the same
    variance. Let h of n runs be hits, let T be the mean seconds of a hit and M those of a miss, and
    let E = T + M (n - h) / h be the expected running time. By the delta method, the variance of log
    E is (T sigma)^2 / (h E^2) + (M / E)^2 n (n - h) / h^3. The first term is due to the mean time
    of the hits, the second to the binomial number of hits.
    """
    hits = sum(repeat.is_hit for repeat in repeats)
    misses = len(repeats) - hits
    if not hits or not misses or not noise.is_timed or math.isinf(noise.sigma):
        return hits
    expected = expected_running_time(repeats)
    # Mean seconds of a hit and of a miss, relative to the expected running time.
    hit_ratio = sum(repeat.seconds for repeat in repeats if repeat.is_hit) / hits / expected
    miss_ratio = sum(repeat.seconds for repeat in repeats if not repeat.is_hit) / misses / expected
    variance = (hit_ratio * noise.sigma) ** 2 / hits
    variance += miss_ratio**2 * len(repeats) * misses / hits**3
    return noise.sigma**2 / variance


def upper_score(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the upper end of the 90 % interval of a configuration's score; infinite if no run hit
    the target."""
    runs = effective_runs(repeats, noise)
    if not runs:
        return math.inf
    return score(repeats) + noise.half_width / math.sqrt(runs)


def ranked(groups: Mapping[str, Sequence[Replicate]], noise: Noise) -> list[str]:
    """Return the names of configurations, sorted by the upper confidence bound of their score.

    With the bound, a single lucky run does not outrank five good runs. Between configurations with
    equal numbers of runs, the order is that of the scores. With `best_at_budget`, the fraction of
    failed runs is compared first. The sort is stable.

    Args:
        groups: Runs of each configuration, keyed by its name.
        noise: Run-to-run variation, pooled over all configurations.
    """

    def sort_key(name: str) -> tuple[float, float, float]:
        group = groups[name]
        missed = 0.0 if noise.is_timed else _miss_fraction(group)
        return missed, upper_score(group, noise), score(group)

    return sorted(groups, key=sort_key)


def _miss_fraction(repeats: Sequence[Replicate]) -> float:
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
    """Return whether a configuration is significantly worse than the best one.

    If all runs hit the target, the standard error of the difference is sigma sqrt(1/n1 + 1/n2). A
    configuration without a hit is always worse than a configuration with a hit. With
    `best_at_budget`, a configuration with a larger fraction of failed runs is always worse.

    Args:
        best: Runs of the best configuration.
        other: Runs of the other configuration.
        noise: Run-to-run variation, pooled over all configurations.
        errors: Number of standard errors that a significant difference exceeds; by default, the
            quantile of Student's t distribution at APART.
    """
    if not any(repeat.is_hit for repeat in best):
        return False
    if not any(repeat.is_hit for repeat in other):
        return True
    if not noise.is_timed and _miss_fraction(other) > _miss_fraction(best):
        return True
    if math.isinf(noise.sigma):
        return False
    gap = score(other) - score(best)
    if gap <= 0:
        return False
    error = math.hypot(*(_standard_error(group, noise) for group in (best, other)))
    return gap > (noise.t_quantile(APART) if errors is None else errors) * error


def _standard_error(repeats: Sequence[Replicate], noise: Noise) -> float:
    noise = noise_at_least(repeats, noise)
    return noise.sigma / math.sqrt(effective_runs(repeats, noise))


def interval(repeats: Sequence[Replicate], noise: Noise) -> tuple[float, float]:
    """Return the 90 % confidence interval of a configuration's typical time to target in seconds,
    or of its metric value.

    Args:
        repeats: Runs of one configuration that were not used to select it.
        noise: Run-to-run variation, pooled over all configurations including this one, since the
            variation of, say, three runs is a poor estimate.

    Returns:
        (low, high). If all runs hit the target, the interval is around the geometric mean, which is
        the median if the distribution of log seconds is symmetric. Otherwise, it is around the
        expected running time. Without a hit, it is (inf, inf).
    """
    own_noise = noise_at_least(repeats, noise)
    if own_noise is noise:
        own_noise = _own_noise(repeats, noise)
    runs = effective_runs(repeats, own_noise)
    if not runs:
        return math.inf, math.inf
    center, half_width = _center(repeats, noise), own_noise.half_width / math.sqrt(runs)
    return _in_original_unit(center - half_width, center + half_width, noise)


def intervals_of_chosen(
    groups: Mapping[str, Sequence[Replicate]], noise: Noise
) -> dict[str, tuple[float, float]]:
    """Return 90 % confidence intervals of configurations, corrected for selection by the same runs.

    The best of many configurations is partly lucky (winner's curse): an ordinary 90 % interval
    contains its typical time in only 65 to 85 % of races. Each interval is therefore widened to
    include the interval around an empirical Bayes estimate, which is shrunk toward the median
    configuration. The larger the noise is relative to the differences between configurations, the
    more the estimate is shrunk (Efron and Morris, "Data analysis using Stein's estimator", 1975).

    Args:
        groups: Runs of each configuration, without its run in the search, keyed by its name.
        noise: Run-to-run variation, pooled over these groups.

    Returns:
        (low, high) of each configuration, as returned by `interval`, keyed by its name.
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
        shrunken = center + share * (middle - center)
        error = math.sqrt((1 - share) * errors[name] + share**2 * middle_variance)
        half_width = noise.t_quantile(UPPER_QUANTILE) * error
        low, high = _in_original_unit(shrunken - half_width, shrunken + half_width, noise)
        intervals[name] = min(intervals[name][0], low), max(intervals[name][1], high)
    return intervals


def _between_variance(centers: Iterable[float], errors: Iterable[float]) -> float:
    """Return the variance between configurations, given the center of each (mean log seconds, or
    score) and its squared standard error.

    See DerSimonian and Laird, "Meta-analysis in clinical trials", 1986.
    """
    values, weights = np.fromiter(centers, float), 1 / np.fromiter(errors, float)
    excess = weights @ (values - np.average(values, weights=weights)) ** 2 - (len(values) - 1)
    return max(0.0, float(excess / (weights.sum() - weights @ weights / weights.sum())))


def _center(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the center of an interval: the mean log seconds if all runs hit the target, otherwise
    the score."""
    if noise.is_timed and all(repeat.is_hit for repeat in repeats):
        return fmean(measures(repeats))
    return score(repeats)


def _in_original_unit(low: float, high: float, noise: Noise) -> tuple[float, float]:
    """Convert both ends of an interval from log seconds to seconds; return metric values
    unchanged."""
    return (math.exp(low), math.exp(high)) if noise.is_timed else (low, high)


def noise_at_least(repeats: Sequence[Replicate], noise: Noise) -> Noise:
    """Return the noise of one configuration: the pooled noise, or a larger estimate if its runs
    scatter significantly more than those of other configurations (F test at 5 %).

    Args:
        repeats: Runs of the configuration.
        noise: Run-to-run variation, pooled over all configurations including this one.
    """
    values = measures(repeats)
    freedom, other_noise = len(values) - 1, _noise_of_others(values, noise)
    if freedom < 1 or not other_noise.freedom:
        return noise
    if _sum_of_squares(values) / freedom <= other_noise.sigma**2 * _f_quantile(
        freedom, other_noise.freedom
    ):
        return noise
    return _own_noise(repeats, noise, max_freedom=WIDER_FREEDOM)


def _noise_of_others(values: Sequence[float], noise: Noise) -> Noise:
    """Return the pooled noise without the configuration whose log seconds or metric values are
    given."""
    freedom = noise.freedom - max(len(values) - 1, 0)
    if not freedom > 0:
        return Noise(math.inf, 0.0, noise.is_timed)
    squares = max(noise.freedom * noise.sigma**2 - _sum_of_squares(values), 0.0)
    return Noise(math.sqrt(squares / freedom), freedom, noise.is_timed)


@cache
def _f_quantile(numerator: int, denominator: float) -> float:
    """Return the 95 % quantile of the F distribution with these degrees of freedom."""
    from scipy.special import fdtri

    return float(fdtri(numerator, denominator, UPPER_QUANTILE))


def _own_noise(
    repeats: Sequence[Replicate], noise: Noise, *, max_freedom: float = OWN_FREEDOM
) -> Noise:
    """Return the noise of one configuration, estimated from its own runs and from the pooled noise
    of all others, which counts with at most `max_freedom` degrees of freedom."""
    values = measures(repeats)
    other_noise = _noise_of_others(values, noise)
    weight, freedom = min(other_noise.freedom, max_freedom), max(len(values) - 1, 0)
    if not weight + freedom:
        return other_noise
    squares = _sum_of_squares(values) + (weight * other_noise.sigma**2 if weight else 0.0)
    return Noise(math.sqrt(squares / (weight + freedom)), weight + freedom, noise.is_timed)
