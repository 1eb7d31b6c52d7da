"""The steady state of a run: without the first epoch, and with every stall visible."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raybench.scaling.cells import first_epoch_seconds, steady
from raybench.stats.step_times import StepTimes
from tests.runs.made_up import EPOCH, point, timed

STEPS: dict[str, Any] = {"num": 10, "max_s": 0.3}
STEPS |= {"median_s": 0.1, "p25_s": 0.09, "p75_s": 0.12, "p95_s": 0.2}
QUANTILES = ("step_p25_s", "step_median_s", "step_p75_s", "step_p95_s")


SLOW = 10.0
"""Samples/s of a first epoch; of the others 1,000, which are steps of 0.05 s at a batch of 50."""


@pytest.mark.parametrize(
    ("rates", "epochs", "is_warm", "first"),
    [
        ([SLOW, 1000.0, 1000.0], 1, True, (100.0, EPOCH)),
        # Evaluations within the first epoch are left out too.
        ([SLOW] * 4 + [1000.0] * 4, 4, True, (400.0, 4 * EPOCH)),
        # A run that is too short says so; of part of an epoch the first evaluation is left out.
        ([1000.0], 1, False, (1.0, EPOCH)),
        ([1000.0, 1000.0], 1, True, (1.0, EPOCH)),
        ([SLOW, 1000.0], 4, False, (101.0, 2 * EPOCH)),
    ],
)
def test_the_first_epoch_is_no_part_of_it(
    rates: list[float], epochs: int, is_warm: bool, first: tuple[float, int]
) -> None:
    """Evaluations after EPOCH samples each, so many to an epoch."""
    ends = np.cumsum(EPOCH / np.array(rates)).tolist()
    curve = [
        point(i, rate, epoch=(i + 1) / epochs, train_s=ends[i]) for i, rate in enumerate(rates)
    ]
    found = steady(curve, 50)
    assert (found["step_median_s"], found["mean_step_s"]) == pytest.approx((0.05, 0.05))
    assert found["is_warm"] == is_warm
    assert first_epoch_seconds(curve) == pytest.approx(first)


def test_a_stall_is_in_the_mean_and_the_longest_but_not_in_the_median() -> None:
    rates = [1000.0] * 9
    curve = [point(i, rate, train_s=1.0 + i) for i, rate in enumerate(rates)]
    curve.append(point(9, EPOCH / 7200, train_s=9.0 + 7200))  # two hours for an epoch
    found = steady(curve, 100)
    assert found["step_median_s"] == pytest.approx(0.1)
    assert found["longest_step_s"] == pytest.approx(720)
    assert found["mean_step_s"] == pytest.approx((7200 + 8) / 90)


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


@pytest.mark.parametrize(("fast", "slow"), [(600, 400), (935, 65)])
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
