"""The loss law: known laws are recovered with calibrated intervals."""

import numpy as np
import pytest

from raybench.scaling.loss_law import LossLaw
from raybench.spec.errors import ErrorCode
from tests.refusals import refused

IRREDUCIBLE, SIZE_TERM, SAMPLES_TERM = 1.4, 600.0, 600.0
ALPHA, BETA = 0.34, 0.33


def loss(parameters: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the losses of a known law of Hoffmann's form."""
    return IRREDUCIBLE + SIZE_TERM * parameters**-ALPHA + SAMPLES_TERM * samples**-BETA


def optimum(compute: float) -> float:
    """Return the compute-optimal parameters of that law."""
    term = (ALPHA * SIZE_TERM / (BETA * SAMPLES_TERM)) ** (1 / (ALPHA + BETA))
    return float(term * (compute / 6) ** (BETA / (ALPHA + BETA)))


def measured(seed: int, noise: float = 0.002) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return parameters, samples and noisy losses of runs at four compute budgets."""
    rng = np.random.default_rng(seed)
    budgets = np.repeat([1e19, 3e19, 1e20, 3e20], 7)
    parameters = np.tile(np.geomspace(0.2, 5, 7), 4) * [optimum(budget) for budget in budgets]
    samples = budgets / 6 / parameters
    noisy = loss(parameters, samples) * np.exp(noise * rng.standard_normal(28))
    return parameters, samples, noisy


def test_loss_and_optimum_at_ten_times_the_compute_are_predicted():
    covered = []
    for seed in range(5):
        law = LossLaw(*measured(seed))
        best, least = law.optimum(3e21)
        truth = optimum(3e21)
        lowest = float(loss(np.array(truth), np.array(3e21 / 6 / truth)))
        assert least.value == pytest.approx(lowest, rel=0.015)
        assert best.value == pytest.approx(truth, rel=0.3)
        covered += [best.low <= truth <= best.high, least.low <= lowest <= least.high]
        beside = law.predict(truth * 4, 3e21 / 6 / truth / 4)
        assert beside.value > least.value
    assert np.mean(covered) >= 0.85


def test_intervals_widen_with_the_distance_and_with_the_error_of_the_runs():
    def widths(error: float) -> list[float]:
        law = LossLaw(*measured(0), error)
        return [
            interval.high / interval.low
            for compute in (1e21, 1e23)
            for interval in law.optimum(compute)
        ]

    near, far = widths(0.0)[:2], widths(0.0)[2:]
    assert far[0] > near[0]
    assert far[1] > near[1]
    assert widths(0.05)[1] - 1 > 3 * (near[1] - 1)


def test_outlying_runs_change_little():
    parameters, samples, losses = measured(0)
    before, _ = LossLaw(parameters, samples, losses).optimum(3e21)
    losses[3] *= 1.2
    after, _ = LossLaw(parameters, samples, losses).optimum(3e21)
    assert after.value == pytest.approx(before.value, rel=0.1)


@pytest.mark.parametrize(
    ("keep", "factor", "code"), [(1, 1.0, ErrorCode.TOO_FEW), (28, -1.0, ErrorCode.INVALID_DATA)]
)
def test_runs_that_cannot_be_extrapolated_are_refused(keep, factor, code):
    parameters, samples, losses = (column[:keep] for column in measured(0))
    with refused(code):
        LossLaw(parameters, samples, losses**factor)
