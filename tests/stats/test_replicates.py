"""Scores, ties and intervals of repeated runs: by hand, by scipy, and by how often they hold."""

import math

import numpy as np
import pytest
from scipy.stats import t

from raybench.stats.replicates import (
    PRIOR_FREEDOM,
    PRIOR_SIGMA,
    TIE,
    Noise,
    Replicate,
    expected_running_time,
    interval,
    pooled,
    ranked,
    runs_worth,
    score,
    tied,
)

SIGMA = 0.3
VALUES = Noise(math.inf, 0.0, is_timed=False)
"""Of values of which none was repeated."""


def hits(*seconds: float) -> list[Replicate]:
    return [Replicate(one, is_hit=True) for one in seconds]


def test_expected_running_time_counts_what_misses_have_spent() -> None:
    runs = [*hits(8.0, 10.0), Replicate(15.0, is_hit=False)]
    assert expected_running_time(runs) == 33.0 / 2
    assert expected_running_time(runs[2:]) == math.inf
    assert expected_running_time([]) == math.inf


def test_a_miss_puts_a_faster_configuration_behind_a_steady_one() -> None:
    """2 of 3 at 0.85 against 3 of 3 at 1.0: the median of the hits would say otherwise."""
    groups = {
        "fast": [*hits(0.85, 0.85), Replicate(2.0, is_hit=False)],
        "steady": hits(1.0, 1.0, 1.0),
    }
    assert ranked(groups, Noise(SIGMA, 20)) == ["steady", "fast"]


def test_one_lucky_run_is_no_better_than_five_good_ones() -> None:
    groups = {"lucky": hits(0.8), "proven": hits(1.0, 0.9, 1.1, 1.0, 0.95)}
    assert ranked(groups, Noise(SIGMA, 20)) == ["proven", "lucky"]
    assert score(groups["lucky"]) < score(groups["proven"])


def test_noise_is_pooled_within_configurations_and_starts_from_the_prior() -> None:
    logs = {"a": [0.0, 0.2, 0.4], "b": [3.0, 3.6], "ran once": [9.0]}
    noise = pooled([hits(*map(math.exp, group)) for group in logs.values()])
    squares = 0.08 + 0.18  # by hand
    assert noise.freedom == PRIOR_FREEDOM + 3
    expected = math.sqrt((PRIOR_FREEDOM * PRIOR_SIGMA**2 + squares) / (PRIOR_FREEDOM + 3))
    assert noise.sigma == pytest.approx(expected)
    assert noise.reach == pytest.approx(t.ppf(0.95, 6) * expected)
    values = pooled([hits(0.1, 0.3), hits(0.5)], is_timed=False)
    assert values == Noise(pytest.approx(math.sqrt(0.02)), 1.0, is_timed=False)
    assert pooled([hits(0.1)], is_timed=False) == VALUES


def test_misses_count_as_the_spread_that_they_make() -> None:
    """The error of a log ERT against 20,000 draws: six runs, each hit with 80 %."""
    rng = np.random.default_rng(3)
    seconds = np.exp(SIGMA * rng.normal(size=(20_000, 12)))
    is_hit = rng.random(seconds.shape) < 0.8
    logs = np.log(np.where(is_hit, seconds, 2.0).sum(1) / is_hit.sum(1))
    typical = [*hits(*[1.0] * 10), *[Replicate(2.0, is_hit=False)] * 2]
    found = SIGMA / math.sqrt(runs_worth(typical, Noise(SIGMA, 99)))
    assert found == pytest.approx(logs.std(), rel=0.2)
    assert runs_worth(hits(1.0, 2.0), Noise(SIGMA, 99)) == 2
    assert runs_worth([Replicate(2.0, is_hit=False)], Noise(SIGMA, 99)) == 0


def test_ties_tell_repeated_configurations_from_those_that_ran_once() -> None:
    noise = Noise(SIGMA, 20)
    edge = math.exp(TIE * SIGMA * math.sqrt(1 / 4 + 1 / 4))
    groups = {
        "best": hits(1, 1, 1, 1),
        "near": hits(*[edge * 0.999] * 4),
        "far": hits(*[edge * 1.001] * 4),
        "once": hits(1.5),
        "once, far": hits(2.0),
        "missed": [Replicate(0.5, is_hit=False)] * 2,
    }
    ties = tied(groups, noise)
    assert ties.repeated == ("best", "near")
    assert ties.once == ("once",)
    assert tied({}, noise).repeated == ()
    everything = tied(groups, VALUES)
    assert everything.once == ("once", "once, far")  # nothing is known: nothing is excluded


def test_ties_hold_the_best_of_twelve_and_intervals_the_median_in_90_percent() -> None:
    """Calibration on 300 plateaus, seeds of one configuration apart by 30 %."""
    rng = np.random.default_rng(8)
    held = within = kept = 0
    for _ in range(300):
        logs = np.linspace(0, 0.3, 12)[:, None] + SIGMA * rng.normal(size=(12, 4))
        groups = {str(i): hits(*np.exp(row)) for i, row in enumerate(logs)}
        noise = pooled(groups.values())
        order = ranked(groups, noise)
        ties = tied({name: groups[name] for name in order}, noise)
        held, kept = held + ("0" in ties.repeated), kept + len(ties.repeated)
        low, high = interval(hits(*np.exp(SIGMA * rng.normal(size=3))), noise)
        within += low <= 1 <= high
    assert 270 <= held < 300
    assert kept < 300 * 11  # not by keeping everything
    assert 255 <= within <= 291


def test_an_interval_of_values_knows_only_what_was_repeated() -> None:
    low, high = interval(hits(0.1, 0.3), VALUES)
    assert (low + high) / 2 == pytest.approx(0.2)
    assert high - low == pytest.approx(2 * t.ppf(0.95, 1) * math.sqrt(0.02 / 2))
    assert interval([Replicate(3.0, is_hit=False)], Noise(SIGMA, 9)) == (math.inf, math.inf)


def test_a_configuration_that_failed_is_behind_those_that_did_not() -> None:
    groups = {"failed": [*hits(0.1), Replicate(0.0, is_hit=False)], "worked": hits(0.2, 0.2)}
    noise = pooled(groups.values(), is_timed=False)
    assert ranked(groups, noise) == ["worked", "failed"]
