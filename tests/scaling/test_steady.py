"""The steady state of a run: without the first epoch."""

import numpy as np
import pytest

from raybench.scaling.cells import first_epoch_seconds, steady
from raybench.stats.step_times import StepTimes
from tests.runs.made_up import EPOCH, point

STEPS = {"num": 10, "max_s": 0.3}
STEPS |= {"median_s": 0.1, "p25_s": 0.09, "p75_s": 0.12, "p95_s": 0.2}
QUANTILES = ("step_p25_s", "step_median_s", "step_p75_s", "step_p95_s")


SLOW = 10.0
"""Samples/s of a first epoch; others have 1,000, or steps of 0.05 s at a batch size of 50."""


@pytest.mark.parametrize(
    ("rates", "epochs", "is_warm", "first"),
    [
        ([SLOW, 1000.0, 1000.0], 1, True, (100.0, EPOCH)),
        # Evaluations within the first epoch are left out.
        ([SLOW] * 4 + [1000.0] * 4, 4, True, (400.0, 4 * EPOCH)),
        # Short runs are marked; within a partial epoch the first evaluation is left out.
        ([1000.0], 1, False, (1.0, EPOCH)),
        ([1000.0, 1000.0], 1, True, (1.0, EPOCH)),
        ([SLOW, 1000.0], 4, False, (101.0, 2 * EPOCH)),
    ],
)
def test_the_first_epoch_is_excluded(rates, epochs, is_warm, first):
    """Evaluations are EPOCH samples apart, `epochs` per epoch."""
    ends = np.cumsum(EPOCH / np.array(rates)).tolist()
    curve = [
        point(i, rate, epoch=(i + 1) / epochs, train_s=ends[i]) for i, rate in enumerate(rates)
    ]
    state = steady(curve, 50)
    assert (state["step_median_s"], state["mean_step_s"]) == pytest.approx((0.05, 0.05))
    assert state["is_warm"] == is_warm
    assert first_epoch_seconds(curve) == pytest.approx(first)


def test_step_times_take_precedence_over_intervals():
    changes = {"median_s": 9.0, "max_s": 9.0}, {}, {"num": 30, "max_s": 0.5}
    steps = [StepTimes(**STEPS | changed) for changed in changes]
    state = steady([point(i, 1.0, steps=steps[i]) for i in range(3)], 50)
    assert (state["num_steps"], state["longest_step_s"]) == (40, 9.0)
    assert [state[name] for name in QUANTILES] == pytest.approx([0.09, 0.1, 0.12, 0.2])


@pytest.mark.parametrize(("fast", "slow"), [(600, 400), (935, 65)])
def test_quantiles_cover_all_steps_of_all_intervals(fast, slow):
    """One interval has steps of 0.1 s, another steps of 1 s; both count."""
    random = np.random.default_rng(0)
    parts = [0.1 * random.uniform(1, 1.2, fast), random.uniform(1, 1.2, slow)]
    parts = [parts[0][: fast // 3], parts[0][fast // 3 :], parts[1]]
    expected = np.percentile(np.concatenate(parts), (25, 50, 75, 95))
    points = enumerate([parts[0], *parts])  # the first interval is the warm-up
    curve = [point(i, 1.0, steps=StepTimes.of(part.tolist())) for i, part in points]
    state = steady(curve, 50)
    assert [state[name] for name in QUANTILES] == pytest.approx(expected, rel=0.04)
