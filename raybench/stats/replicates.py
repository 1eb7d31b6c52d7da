"""What repeated runs of configurations say: expected running times, their noise, ties, intervals.

Times are compared by logarithms: a seed makes a run so many per cent slower, whatever it takes.
With best_at_budget (`is_timed=False`) all runs take the same seconds; values are compared as they
are, less is better: turn the sign of an accuracy.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean

PRIOR_SIGMA = 0.3
"""Standard deviation of log seconds to a target before any was repeated: 0.315 over the 34
configurations of `benchmarks/results/search_real.json`, 0.12 to 0.54 in each."""
PRIOR_FREEDOM = 3.0
"""So many degrees of freedom it counts for: a sigma of 0.19 to 0.88 is then expected (90 %), about
what was seen, and ten repetitions outweigh it."""
OWN_FREEDOM = 8.0
"""Degrees of freedom that the noise of all counts for at most beside a configuration's own runs:
sigma is not the same for all (0.12 to 0.54 there, which is what so many degrees leave open)."""
WIDER_FREEDOM = 1.0
"""The same beside runs that scatter more than the noise of all explains."""
SURE = 0.95
"""One-sided: 90 % between two ends."""
TIE = 1.645
"""Standard errors of a difference that may be luck, in 90 of 100 (two ends)."""


@dataclass(frozen=True)
class Replicate:
    """One run of a configuration."""

    seconds: float
    """Train seconds to the target, or all that a missed, capped or failed run has spent.

    With best_at_budget the value, less is better; of a failed run it is not looked at.
    """
    is_hit: bool
    """Whether the target was reached; with best_at_budget, whether the run did not fail."""

    def times(self, factor: float) -> "Replicate":
        """Return the same run in another unit: worker-seconds for a number of workers."""
        return Replicate(self.seconds * factor, self.is_hit)


@dataclass(frozen=True)
class Noise:
    """How far runs of one configuration lie apart."""

    sigma: float
    """Standard deviation, of log seconds or of values; infinite where nothing is known."""
    freedom: float
    """Degrees of freedom behind it."""
    is_timed: bool = True
    """Whether it is of log seconds, or of values."""

    @cached_property
    def reach(self) -> float:
        """How far a run may be from its configuration's mean, in 90 of 100 (Student's t)."""
        if not self.freedom:
            return math.inf
        from scipy.special import stdtrit  # here: the package must import fast

        return float(stdtrit(self.freedom, SURE)) * self.sigma


@dataclass(frozen=True)
class Ties:
    """What is statistically tied with the best of several configurations."""

    repeated: tuple[str, ...]
    """Run twice or more, the best included, in the order that was given."""
    once: tuple[str, ...]
    """Run once, and not so much slower that luck could be excluded."""


def expected_running_time(repeats: Sequence[Replicate]) -> float:
    """Return the seconds of all runs over the number of hits; infinite without a hit.

    That is what reaching the target takes on average, if one starts anew after every miss (ERT of
    Hansen et al., "COCO: performance assessment", 2016).
    """
    hits = sum(repeat.is_hit for repeat in repeats)
    return sum(repeat.seconds for repeat in repeats) / hits if hits else math.inf


def pooled(groups: Iterable[Sequence[Replicate]], *, is_timed: bool = True) -> Noise:
    """Return the noise that all configurations share, from those with two hits or more.

    Log seconds start from the prior above. Values have a unit of their own: of them nothing is
    known before one was repeated.
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
    """Return what configurations are compared by, less is better; infinite without a hit.

    The logarithm of the expected running time, or the mean of the values.
    """
    if not any(repeat.is_hit for repeat in repeats):
        return math.inf
    if is_timed:
        return math.log(expected_running_time(repeats))
    return fmean(measures(repeats, is_timed=False))


def runs_worth(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return how many runs that all hit would say as much of the score; 0 without a hit.

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
    """Return the upper end of what a score may be by its runs; infinite without a hit."""
    runs = runs_worth(repeats, noise)
    if not runs:
        return math.inf
    return score(repeats, is_timed=noise.is_timed) + noise.reach / math.sqrt(runs)


def ranked(groups: Mapping[str, Sequence[Replicate]], noise: Noise) -> list[str]:
    """Return the configurations, best first, by the upper end of what their runs allow.

    One lucky run is no better than five good ones. Where as many runs stand behind all, that is
    the order of their scores. With best_at_budget the share of failed runs comes first; equals
    stay in the order that was given.
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
    best: Sequence[Replicate], other: Sequence[Replicate], noise: Noise, *, errors: float = TIE
) -> bool:
    """Return whether `other` is slower by more than `errors` standard errors of the difference.

    That is sigma sqrt(1/n1 + 1/n2) where all runs hit. What never hit is apart from what did;
    with best_at_budget so is what failed more often.
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
    return gap > errors * error


def _error(repeats: Sequence[Replicate], noise: Noise) -> float:
    """Return the standard error of a score."""
    noise = noise_at_least(repeats, noise)
    return noise.sigma / math.sqrt(runs_worth(repeats, noise))


def tied(groups: Mapping[str, Sequence[Replicate]], noise: Noise) -> Ties:
    """Return which configurations are statistically tied with the first of `groups`.

    Those that ran once, a search's only run, are named apart: nothing but luck chose them so far.
    """
    first, *others = groups or [""]
    near = [
        name for name in others if groups[name] and not is_apart(groups[first], groups[name], noise)
    ]
    repeated = [first, *(name for name in near if len(groups[name]) > 1)] if first else []
    return Ties(tuple(repeated), tuple(name for name in near if len(groups[name]) == 1))


def interval(repeats: Sequence[Replicate], noise: Noise) -> tuple[float, float]:
    """Return the ends of the 90 % interval for what a new run typically takes [s, or values].

    Around the geometric mean where all hit (the median, where log seconds are symmetric), else
    around the expected running time. `noise` is that of all configurations: three runs alone say
    little about their own. (inf, inf) without a hit.
    """
    own = noise_at_least(repeats, noise)
    if own is noise:
        own = _own_noise(repeats, noise)
    runs = runs_worth(repeats, own)
    if not runs:
        return math.inf, math.inf
    is_whole = all(repeat.is_hit for repeat in repeats)
    center = score(repeats, is_timed=noise.is_timed)
    if is_whole and noise.is_timed:
        center = fmean(measures(repeats))
    ends = center - own.reach / math.sqrt(runs), center + own.reach / math.sqrt(runs)
    return (math.exp(ends[0]), math.exp(ends[1])) if noise.is_timed else ends


def noise_at_least(repeats: Sequence[Replicate], noise: Noise) -> Noise:
    """Return the noise of all, or the larger one of a configuration whose own runs scatter more
    than luck explains, by an F test at 5 %."""
    found = measures(repeats, is_timed=noise.is_timed)
    own = len(found) - 1
    if own < 1 or not noise.freedom or math.isinf(noise.sigma):
        return noise
    if _squares(found) / own <= noise.sigma**2 * _most_ratio(own, noise.freedom):
        return noise
    return _own_noise(repeats, noise, most=WIDER_FREEDOM)


@cache
def _most_ratio(own: int, freedom: float) -> float:
    """Return the most times the variance of all that `own` degrees of freedom show in 95 of 100."""
    from scipy.special import fdtri

    return float(fdtri(own, freedom, SURE))


def _own_noise(repeats: Sequence[Replicate], noise: Noise, *, most: float = OWN_FREEDOM) -> Noise:
    """Return the noise of one configuration: that of all, which counts for `most` degrees of
    freedom, corrected by its own runs."""
    found = measures(repeats, is_timed=noise.is_timed)
    weight = min(noise.freedom, most)
    freedom = weight + max(len(found) - 1, 0)
    if not freedom:
        return noise
    squares = _squares(found) + (weight * noise.sigma**2 if weight else 0.0)
    return Noise(math.sqrt(squares / freedom), freedom, noise.is_timed)
