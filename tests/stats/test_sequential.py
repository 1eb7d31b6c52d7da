"""The sequential paired test."""

import math

import numpy as np
import pytest

from raybench.stats.sequential import Comparison, compare, outcome_of, pairs_needed


def first_decision(differences, **keys):
    for number in range(1, len(differences) + 1):
        decision = outcome_of(differences[:number], **keys)
        if decision != "undecided":
            return decision
    return "undecided"


@pytest.mark.parametrize("kind", ["normal", "heavy", "with misses"])
def test_equal_pairs_are_rarely_found_better_at_any_stopping_time(kind):
    rng, wrong, studies = np.random.default_rng(7), 0, 80
    for _ in range(studies):
        drawn = rng.standard_normal(30) if kind == "normal" else rng.standard_t(1.5, 30)
        if kind == "with misses":
            drawn[rng.random(30) < 0.2] *= math.inf
        wrong += first_decision(drawn.tolist()) == "better"
    assert wrong <= 0.05 * studies + 2 * math.sqrt(0.05 * 0.95 * studies)


def test_a_clear_difference_is_decided_within_ten_pairs():
    rng = np.random.default_rng(1)
    drawn = (rng.standard_normal((20, 10)) + 2.0).tolist()
    assert sum(first_decision(differences) == "better" for differences in drawn) >= 18
    assert first_decision([-difference for difference in drawn[0]]) == "worse"


def test_the_interval_holds_the_truth_and_narrows():
    rng = np.random.default_rng(3)
    drawn = (rng.standard_normal(120) * 0.1 + 0.3).tolist()
    few, many = compare(drawn[:12]), compare(drawn)
    assert many.low < 0.3 < many.high
    assert many.high - many.low < few.high - few.low
    assert many.effect == pytest.approx(np.median(drawn))


def test_a_difference_below_the_margin_counts_as_the_same():
    drawn = (np.random.default_rng(2).standard_normal(40) * 0.005).tolist()
    assert compare(drawn, smallest=0.02).outcome == "same"
    assert compare(drawn).outcome == "undecided"


def test_misses_count_as_infinite_and_pairs_of_misses_are_ignored():
    assert outcome_of([math.inf] * 8) == "better"
    assert compare([math.nan] * 8).outcome == "undecided"
    expected = Comparison("undecided", pairs=3, effect=None, low=-math.inf, high=math.inf)
    assert compare([math.inf, math.nan, math.inf]) == expected


def test_how_many_more_pairs_are_likely_to_decide():
    drawn = (np.random.default_rng(4).standard_normal(8) * 0.2 + 0.2).tolist()
    additional_pairs = pairs_needed(drawn)
    assert additional_pairs is not None
    assert 1 <= additional_pairs <= 64
    assert pairs_needed(drawn[:2]) is None
    assert pairs_needed([0.1, -0.1, 0.1, -0.1]) is None
