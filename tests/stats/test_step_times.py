import math
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from raybench.stats.step_times import StepTimes


def test_a_stall_stays_visible_and_leaves_the_rest_as_it_is() -> None:
    """2 of 100 steps stall: the median does not move, the maximum tells of it."""
    calm = [0.010 + 0.0001 * (index % 10) for index in range(100)]
    stalled = [2.0 if index in (40, 70) else one for index, one in enumerate(calm)]
    before, after = StepTimes.of(calm), StepTimes.of(stalled)
    assert before
    assert after
    assert after.median_s == pytest.approx(before.median_s, rel=0.02)
    assert after.p95_s < 0.02 < after.max_s == 2.0


def test_many_stalls_show_in_the_95th_percentile() -> None:
    found = StepTimes.of([0.5 if index % 10 == 3 else 0.01 for index in range(100)])
    assert found
    assert (found.median_s, found.p75_s, found.p95_s, found.max_s) == (0.01, 0.01, 0.5, 0.5)


def test_quantiles_are_those_of_the_numbers() -> None:
    found = StepTimes.of([0.5, 0.1, 0.2, 0.3, 0.4])
    assert found
    assert asdict(found) == pytest.approx(
        {
            "num": 5,
            "median_s": 0.3,
            "p25_s": 0.2,
            "p75_s": 0.4,
            "p95_s": 0.48,
            "max_s": 0.5,
            "first_s": 0.5,
        }
    )
    assert TypeAdapter(StepTimes).validate_python(asdict(found)) == found


def test_a_short_step_counts_for_its_stall_alone() -> None:
    calm, stalled = StepTimes.of([0.2, 0.4], [0.1]), StepTimes.of([0.2, 0.4], [math.nan, 9.0])
    assert calm == StepTimes.of([0.2, 0.4])
    assert stalled
    assert stalled.max_s == 9
    assert stalled.num == 2
    assert StepTimes.of([], [0.1]) is None


def test_steps_of_unknown_time_are_left_out() -> None:
    found = StepTimes.of([math.nan, 0.2, 0.4])
    assert found
    assert (found.num, found.first_s, found.median_s) == (2, 0.2, pytest.approx(0.3))
    assert StepTimes.of([math.nan]) is None
    assert StepTimes.of([]) is None
