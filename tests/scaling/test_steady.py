"""The steady state of a run: without the first epoch, and with every stall visible."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raybench.scaling.runs import first_epoch_seconds, steady
from raybench.stats.step_times import StepTimes
from tests.runs.made_up import EPOCH, point, timed

STEPS: dict[str, Any] = {
    "num": 10,
    "median_s": 0.1,
    "p25_s": 0.09,
    "p75_s": 0.12,
    "p95_s": 0.2,
    "max_s": 0.3,
    "first_s": 0.15,
}

QUANTILES = ("step_p25_s", "step_median_s", "step_p75_s", "step_p95_s")


def test_the_first_epoch_is_no_part_of_it() -> None:
    slow = [point(0, 10.0), *(point(i, 1000.0, train_s=100 + i) for i in (1, 2))]
    found = steady(slow, 50)
    assert found["step_median_s"] == pytest.approx(0.05)
    assert found["mean_step_s"] == pytest.approx(0.05)
    assert found["is_warm"]
    assert first_epoch_seconds(slow) == (100, EPOCH)


def test_evaluations_within_the_first_epoch_are_left_out_too() -> None:
    curve = [
        point(i, 10.0 if i < 4 else 1000.0, epoch=(i + 1) / 4, train_s=float(i)) for i in range(8)
    ]
    found = steady(curve, 50)
    assert found["step_median_s"] == pytest.approx(0.05)
    assert first_epoch_seconds(curve) == (3.0, 4 * EPOCH)


def test_a_stall_is_in_the_mean_and_the_longest_but_not_in_the_median() -> None:
    rates = [1000.0] * 9
    curve = [point(i, rate, train_s=1.0 + i) for i, rate in enumerate(rates)]
    curve.append(point(9, EPOCH / 7200, train_s=9.0 + 7200))  # two hours for an epoch
    found = steady(curve, 100)
    assert found["step_median_s"] == pytest.approx(0.1)
    assert found["longest_step_s"] == pytest.approx(720)
    assert found["mean_step_s"] == pytest.approx((7200 + 8) / 90)


def test_a_stall_of_the_first_epoch_is_the_longest_step() -> None:
    slow = [point(0, 1.0), point(1, 1000.0, train_s=1001.0), point(2, 1000.0, train_s=1002.0)]
    found = steady(slow, 100)
    assert (found["step_median_s"], found["longest_step_s"]) == pytest.approx((0.1, 100))
    curve = [timed(slow[0], **STEPS | {"max_s": 990.0}), *(timed(one, **STEPS) for one in slow[1:])]
    found = steady(curve, 100)
    assert (found["step_p95_s"], found["longest_step_s"]) == pytest.approx((0.2, 990.0))


def test_times_of_steps_count_before_intervals() -> None:
    curve = [
        timed(point(0, 1.0), **STEPS | {"median_s": 9.0, "max_s": 9.0}),
        timed(point(1, 1.0), **STEPS),
        timed(point(2, 1.0), **STEPS | {"num": 30, "max_s": 0.5}),
    ]
    found = steady(curve, 50)
    assert (found["num_steps"], found["longest_step_s"]) == (40, 9.0)
    assert [found[name] for name in QUANTILES] == pytest.approx([0.09, 0.1, 0.12, 0.2])


def steps_of(seconds: np.ndarray) -> StepTimes:
    found = StepTimes.of(seconds.tolist())
    assert found is not None
    return found


@pytest.mark.parametrize(("fast", "slow"), [(900, 100), (600, 400), (100, 900), (935, 65)])
def test_quantiles_are_those_of_all_steps_and_not_of_the_usual_interval(
    fast: int, slow: int
) -> None:
    """An interval at a tenth of a second a step, one at a second: both are in what is told."""
    random = np.random.default_rng(0)
    parts = [0.1 * random.uniform(1, 1.2, fast), random.uniform(1, 1.2, slow)]
    parts = [parts[0][: fast // 3], parts[0][fast // 3 :], parts[1]]
    expected = np.percentile(np.concatenate(parts), (25, 50, 75, 95))
    points = enumerate([parts[0], *parts])  # the first one is the warm-up
    found = steady([replace(point(i, 1.0), steps=steps_of(part)) for i, part in points], 50)
    assert [found[name] for name in QUANTILES] == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize(("number", "is_warm"), [(1, False), (2, True)])
def test_a_run_that_is_too_short_says_so(number: int, is_warm: bool) -> None:
    found = steady([point(i, 1000.0) for i in range(number)], 50)
    assert found["is_warm"] == is_warm
    assert found["step_median_s"] == pytest.approx(0.05)


def test_part_of_an_epoch_leaves_its_first_evaluation_out() -> None:
    curve = [point(i, (10.0, 1000.0)[i], epoch=(i + 1) / 4, train_s=i + 1.0) for i in range(2)]
    found = steady(curve, 50)
    assert not found["is_warm"]
    assert found["step_median_s"] == pytest.approx(0.05)


def test_nothing_comes_of_nothing() -> None:
    assert steady([], 50) == {}
    assert steady([point(0, 1000.0, samples_per_s=0.0)], 50) == {}
    seconds, samples = first_epoch_seconds([])
    assert math.isnan(seconds)
    assert samples == 0
