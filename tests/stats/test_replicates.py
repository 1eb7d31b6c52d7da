"""Scores, ties and intervals of repeated runs, against hand calculation, SciPy and simulation."""

import math

import numpy as np
import pytest
from scipy.stats import t

from raybench.stats.replicates import (
    PRIOR_FREEDOM,
    PRIOR_SIGMA,
    UNKNOWN_NOISE,
    Noise,
    Replicate,
    effective_runs,
    expected_running_time,
    interval,
    intervals_of_chosen,
    is_apart,
    pooled,
    ranked,
    score,
)

SIGMA = 0.3


def hits(*seconds: float) -> list[Replicate]:
    return [Replicate(time, is_hit=True) for time in seconds]


def at_budget(*values: float) -> list[Replicate]:
    return [Replicate(value, is_hit=True, is_timed=False) for value in values]


def test_expected_running_time_counts_what_misses_have_spent():
    runs = [*hits(8.0, 10.0), Replicate(15.0, is_hit=False)]
    assert expected_running_time(runs) == 33.0 / 2
    assert expected_running_time(runs[2:]) == math.inf
    assert expected_running_time([]) == math.inf


def test_one_lucky_run_is_no_better_than_five_good_ones():
    groups = {"lucky": hits(0.8), "proven": hits(1.0, 0.9, 1.1, 1.0, 0.95)}
    assert ranked(groups, Noise(SIGMA, 20)) == ["proven", "lucky"]
    assert score(groups["lucky"]) < score(groups["proven"])


def test_noise_is_pooled_within_configurations_and_starts_from_the_prior():
    logs = {"a": [0.0, 0.2, 0.4], "b": [3.0, 3.6], "ran once": [9.0]}
    noise = pooled([hits(*map(math.exp, group)) for group in logs.values()])
    squares = 0.08 + 0.18  # calculated by hand
    assert noise.freedom == PRIOR_FREEDOM + 3
    expected = math.sqrt((PRIOR_FREEDOM * PRIOR_SIGMA**2 + squares) / (PRIOR_FREEDOM + 3))
    assert noise.sigma == pytest.approx(expected)
    assert noise.half_width == pytest.approx(t.ppf(0.95, 6) * expected)
    values = pooled([at_budget(0.1, 0.3), at_budget(0.5)])
    assert values == Noise(pytest.approx(math.sqrt(0.02)), 1.0, is_timed=False)
    assert pooled([at_budget(0.1)]) == UNKNOWN_NOISE


def test_misses_increase_the_standard_error():
    """The standard error of a log ERT against 20,000 draws, with 80 % hits."""
    rng = np.random.default_rng(3)
    seconds = np.exp(SIGMA * rng.normal(size=(20_000, 12)))
    is_hit = rng.random(seconds.shape) < 0.8
    logs = np.log(np.where(is_hit, seconds, 2.0).sum(1) / is_hit.sum(1))
    typical = [*hits(*[1.0] * 10), *[Replicate(2.0, is_hit=False)] * 2]
    error = SIGMA / math.sqrt(effective_runs(typical, Noise(SIGMA, 99)))
    assert error == pytest.approx(logs.std(), rel=0.2)
    assert effective_runs(hits(1.0, 2.0), Noise(SIGMA, 99)) == 2
    assert effective_runs([Replicate(2.0, is_hit=False)], Noise(SIGMA, 99)) == 0


def test_is_apart_uses_the_t_quantile():
    noise = Noise(SIGMA, 20)
    best = hits(1, 1, 1, 1)
    edge = math.exp(t.ppf(0.975, 20) * SIGMA * math.sqrt(1 / 4 + 1 / 4))
    assert not is_apart(best, hits(*[edge * 0.999] * 4), noise)
    assert is_apart(best, hits(*[edge * 1.001] * 4), noise)
    assert is_apart(best, [Replicate(0.5, is_hit=False)] * 2, noise)
    assert not is_apart(best, hits(9.0), UNKNOWN_NOISE), "with unknown noise nothing is excluded"


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize("runs", [2, 3])
def test_an_interval_counts_its_own_runs_once(groups, runs):
    """90 % intervals of values cover the true mean, however many groups were repeated."""
    rng, covered = np.random.default_rng(0), 0
    for values in rng.normal(size=(1500, groups, runs)):
        every = [at_budget(*row) for row in values.tolist()]
        low, high = interval(every[0], pooled(every))
        covered += low <= 0 <= high
    assert 0.87 <= covered / 1500 <= 0.93


def test_intervals_of_the_best_of_many_cover_their_typical_time():
    """In each study, the true times of 24 configurations lie within 40 % and runs scatter by 30 %.
    The best 12 run again, the better ones more often. `benchmarks/calibration.py` has more."""
    rng, covered, winners_covered = np.random.default_rng(3), list[bool](), list[bool]()
    for _ in range(40):
        true = rng.uniform(0.0, 0.4, 24)
        best = np.argsort(true + SIGMA * rng.normal(size=24))[:12]
        groups: dict[str, list[Replicate]] = {str(number): [] for number in best}
        order = list(groups)
        for count in (12, 6, 3, 3):
            for name in order[:count]:
                groups[name] += hits(math.exp(true[int(name)] + SIGMA * rng.normal()))
            noise = pooled(groups.values())
            order = ranked(groups, noise)
        intervals = intervals_of_chosen(groups, noise)
        inside = [low <= math.exp(true[int(n)]) <= high for n, (low, high) in intervals.items()]
        covered += inside
        winners_covered.append(inside[list(intervals).index(order[0])])
    assert np.mean(covered) >= 0.88
    assert np.mean(winners_covered) >= 0.85


def test_an_interval_of_values_uses_only_the_spread_of_its_own_runs():
    low, high = interval(at_budget(0.1, 0.3), UNKNOWN_NOISE)
    assert (low + high) / 2 == pytest.approx(0.2)
    assert high - low == pytest.approx(2 * t.ppf(0.95, 1) * math.sqrt(0.02 / 2))
    assert interval([Replicate(3.0, is_hit=False)], Noise(SIGMA, 9)) == (math.inf, math.inf)
