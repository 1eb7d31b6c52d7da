"""Statistics of repeated runs: expected running times, their noise, ties, intervals.

Times are compared by logarithms: the effect of a seed is relative. With best_at_budget
(`is_timed=False`) all runs take the same seconds and values are compared as they are; less is
better, so negate an accuracy.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean, median

import numpy as np

PRIOR_SIGMA = 0.3
"""Standard deviation of log seconds to a target before any was repeated: 0.315 over the 34
configurations of `benchmarks/results/search_real.json`, 0.12 to 0.54 in each."""
PRIOR_FREEDOM = 3.0
"""Degrees of freedom of the prior: a sigma of 0.19 to 0.88 (90 %), about as observed; ten
repetitions outweigh it."""
OWN_FREEDOM = 8.0
"""Most degrees of freedom of the pooled noise beside a configuration's own runs: sigma differs
between configurations (0.12 to 0.54 in that file, the range that 8 degrees of freedom allow)."""
WIDER_FREEDOM = 1.0
"""Degrees of freedom of the pooled noise beside runs that scatter more than it explains."""
SURE = 0.95
"""One-sided: 90 % between two ends."""
APART = 0.975
"""One-sided level of a significant difference: 5 % on both sides together."""


@dataclass(frozen=True)
class Replicate:
    """One run of a configuration."""

    seconds: float
    """Train seconds to the target, or all that a missed, capped or failed run spent.

    With best_at_budget the value, less is better; ignored for a failed run.
    """
    is_hit: bool
    """Whether the target was reached; with best_at_budget, whether the run did not fail."""

    def times(self, factor: float) -> "Replicate":
        """Return the same run in another unit: worker-seconds for a number of workers."""
        return Replicate(self.seconds * factor, self.is_hit)


@dataclass(frozen=True)
class Noise:
    """Scatter of the runs of one configuration."""

    sigma: float
    """Standard deviation of log seconds or of values; infinite if nothing is known."""
    freedom: float
    """Degrees of freedom behind it."""
    is_timed: bool = True
    """Whether it is of log seconds, or of values."""

    @cached_property
    def reach(self) -> float:
        """Distance from its configuration's mean within which 90 of 100 runs lie (Student's t)."""
        return self.errors(SURE) * self.sigma if self.freedom else math.inf

    def errors(self, share: float) -> float:
        """Return the one-sided quantile of Student's t, in standard errors."""
        from scipy.special import stdtrit  # here: the package must import fast

        return float(stdtrit(self.freedom, share)) if self.freedom else math.inf


def expected_running_time(repeats: Sequence[Replicate]) -> float:
    """Return the seconds of all runs over the number of hits; infinite without a hit.

    The mean time to the target if every miss is followed by a new run (ERT of Hansen et al., "COCO:
    performance assessment", 2016).
    """
    hits = sum(repeat.is_hit for repeat in repeats)
    return sum(repeat.seconds for repeat in repeats) / hits if hits else math.inf


def pooled(groups: Iterable[Sequence[Replicate]], *, is_timed: bool = True) -> Noise:
    """Return the noise pooled over all configurations with two hits or more.

    Log seconds start from the prior above. Values have a unit of their own and no prior.
    """
    freedom = PRIOR_FREEDOM if is_timed else 0.0
    squares = freedom * PRIOR_SIGMA**2
    for group in groups:
        found = measures(group, is_timed=is_timed)
        squares += _squares(found)
        freedom += max(len(found) - 1, 0)
    sigma = math.sqrt(squares / freedom) if freedom else math.inf
    return Noise(sigma, freedom, is_timed)


def measures(repeats: Sequence[Replicate], *, is_timed: bool = True) -> list[float]:
    """Return the log seconds, or the values, of the hits."""
    hits = [repeat.seconds for repeat in repeats if repeat.is_hit]
    return [math.log(seconds) for seconds in hits] if is_timed else hits


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values) if values else 0.0
    return sum((one - mean) ** 2 for one in values)


def score(repeats: Sequence[Replicate], *, is_timed: bool = True) -> float:
    """Return the score of a configuration, less is better; infinite without a hit.

    The logarithm of the expected running time, or the mean of the values.
    """
    if not any(repeat.is_hit for repeat in repeats):
        return math.inf
    if is_timed:
        return math.log(expected_running_time(repeats))
    return fmean(measures(repeats, is_timed=False))


def runs_worth(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the number of hits that would determine the score equally well; 0 without a hit.

    With h hits of n runs, mean seconds T of a hit, M of a miss and E = T + M (n - h) / h, the log
    of E has the variance (T sigma)^2 / (h E^2) + (M / E)^2 n (n - h) / h^3: that of the mean, and
    that of a binomial count carried through (delta method).
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
    """Return the upper end of the 90 % interval of a score; infinite without a hit."""
    runs = runs_worth(repeats, noise)
    if not runs:
        return math.inf
    return score(repeats, is_timed=noise.is_timed) + noise.reach / math.sqrt(runs)


def ranked(groups: Mapping[str, Sequence[Replicate]], noise: Noise) -> list[str]:
    """Return the configurations sorted by upper confidence bound of their score.

    One lucky run is no better than five good ones. With equal numbers of runs this is the order of
    the scores. With best_at_budget the share of failed runs comes first. The sort is stable.
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

    The standard error is sigma sqrt(1/n1 + 1/n2) if all runs hit. A configuration that never hit is
    apart from one that did; with best_at_budget so is one that failed more often.

    Args:
        best: Runs of the better configuration.
        other: Runs of the other one.
        noise: Pooled over all configurations.
        errors: Standard errors of the difference; None: those of a single test at level APART.
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
    error = math.hypot(*(_error(group, noise) for group in (best, other)))
    return gap > (noise.errors(APART) if errors is None else errors) * error


def _error(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the standard error of a score."""
    noise = noise_at_least(repeats, noise)
    return noise.sigma / math.sqrt(runs_worth(repeats, noise))


def interval(repeats: Sequence[Replicate], noise: Noise) -> tuple[float, float]:
    """Return the ends of the 90 % interval for what a new run typically takes [s, or values].

    Args:
        repeats: Runs of one configuration that did not choose it.
        noise: Pooled over all configurations, these runs among them: three runs alone say little
            about their own scatter.

    Returns:
        The ends around the geometric mean where all hit (the median, where log seconds are
        symmetric), else around the expected running time; (inf, inf) without a hit.
    """
    own = noise_at_least(repeats, noise)
    if own is noise:
        own = _own_noise(repeats, noise)
    runs = runs_worth(repeats, own)
    if not runs:
        return math.inf, math.inf
    center, reach = _center(repeats, noise), own.reach / math.sqrt(runs)
    return _ends(center - reach, center + reach, noise)


def intervals_of_chosen(
    groups: Mapping[str, Sequence[Replicate]], noise: Noise
) -> dict[str, tuple[float, float]]:
    """Return the 90 % intervals of configurations that were ranked by these very runs.

    The first of many is the luckiest: 90 % intervals by its runs alone hold its typical time in 65
    to 85 of 100 races. So each interval also reaches as far as that of an empirical Bayes estimate,
    which moves a configuration towards the middle one by as much as their runs scatter more than
    they differ (Efron and Morris, "Data analysis using Stein's estimator", 1975).

    Args:
        groups: Runs by configuration, without the search's own run.
        noise: Pooled over these groups.

    Returns:
        The ends by configuration, as `interval` has them.
    """
    found = {name: interval(runs, noise) for name, runs in groups.items()}
    known = {name: runs for name, runs in groups.items() if runs_worth(runs, noise)}
    if len(known) < 2 or not 0 < noise.sigma < math.inf:
        return found
    centers = {name: _center(runs, noise) for name, runs in known.items()}
    errors = {name: noise.sigma**2 / runs_worth(runs, noise) for name, runs in known.items()}
    middle, apart = median(centers.values()), _apart(centers.values(), errors.values())
    of_middle = 1 / sum(1 / (apart + error) for error in errors.values())
    for name, center in centers.items():
        share = errors[name] / (apart + errors[name])
        moved = center + share * (middle - center)
        error = math.sqrt((1 - share) * errors[name] + share**2 * of_middle)
        reach = noise.errors(SURE) * error
        low, high = _ends(moved - reach, moved + reach, noise)
        found[name] = min(found[name][0], low), max(found[name][1], high)
    return found


def _apart(centers: Iterable[float], errors: Iterable[float]) -> float:
    """Return the variance between true centers from measured ones and their squared errors
    (DerSimonian and Laird, "Meta-analysis in clinical trials", 1986)."""
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
    """Return the pooled noise, or a larger one for a configuration whose runs scatter significantly
    more than the others (F test at 5 %); `noise`: see `interval`."""
    found = measures(repeats, is_timed=noise.is_timed)
    own, others = len(found) - 1, _without(found, noise)
    if own < 1 or not others.freedom:
        return noise
    if _squares(found) / own <= others.sigma**2 * _most_ratio(own, others.freedom):
        return noise
    return _own_noise(repeats, noise, most=WIDER_FREEDOM)


def _without(own: Sequence[float], noise: Noise) -> Noise:
    """Return the pooled noise without the measures of one configuration."""
    freedom = noise.freedom - max(len(own) - 1, 0)
    if not freedom > 0:
        return Noise(math.inf, 0.0, noise.is_timed)
    squares = max(noise.freedom * noise.sigma**2 - _squares(own), 0.0)
    return Noise(math.sqrt(squares / freedom), freedom, noise.is_timed)


@cache
def _most_ratio(own: int, freedom: float) -> float:
    """Return the 95 % quantile of the F distribution."""
    from scipy.special import fdtri

    return float(fdtri(own, freedom, SURE))


def _own_noise(repeats: Sequence[Replicate], noise: Noise, *, most: float = OWN_FREEDOM) -> Noise:
    """Return the noise of one configuration: that of the others, with at most `most` degrees of
    freedom, and its own runs."""
    found = measures(repeats, is_timed=noise.is_timed)
    others = _without(found, noise)
    weight, own = min(others.freedom, most), max(len(found) - 1, 0)
    if not weight + own:
        return others
    squares = _squares(found) + (weight * others.sigma**2 if weight else 0.0)
    return Noise(math.sqrt(squares / (weight + own)), weight + own, noise.is_timed)
