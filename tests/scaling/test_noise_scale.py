"""The gradient noise scale, on gradients whose noise is known."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

from raybench.scaling import samples_to_target
from raybench.scaling.noise_scale import NoiseScale, critical_batch
from raybench.stats.step_times import NoiseSums, noise_terms

GRADIENT = np.array([1.0, -2.0, 0.5, 0.0])
DEVIATIONS = np.array([3.0, 1.0, 4.0, 2.0])
SQUARE, TRACE = float(GRADIENT @ GRADIENT), float(DEVIATIONS @ DEVIATIONS)


def norms(rng, sizes, *, equal_weights=False, gradient=GRADIENT, deviations=DEVIATIONS):
    """Draw a step: the sum of the workers' squared norms, and the average's."""
    own = [
        gradient + deviations * rng.standard_normal(len(gradient)) / np.sqrt(size)
        if size
        else np.zeros(len(gradient))
        for size in sizes
    ]
    weights = np.ones(len(sizes)) if equal_weights else np.array(sizes, dtype=float)
    average = weights @ np.array(own) / weights.sum()
    return sum(float(g @ g) for g in own), float(average @ average)


@pytest.mark.parametrize("equal_weights", [False, True])
@pytest.mark.parametrize("sizes", [(8, 8), (4, 4, 4, 4), (16, 16, 16, 5), (7, 1), (8, 8, 0)])
def test_no_bias_however_samples_are_spread(sizes, equal_weights) -> None:
    """The mean of 5,000 single steps is the truth, within four standard errors."""
    rng = np.random.default_rng(0)
    gradients, noises = [], []
    for _ in range(5_000):
        step = norms(rng, sizes, equal_weights=equal_weights)
        state = NoiseScale(decay=0.0).update(*step, sizes, equal_weights=equal_weights)
        gradients.append(state.gradient_square)
        noises.append(state.noise_trace)
    for found, truth in ((gradients, SQUARE), (noises, TRACE)):
        error = np.std(found) / np.sqrt(len(found))
        assert np.mean(found) == pytest.approx(truth, abs=4 * error)


def test_the_sizes_of_an_uneven_last_batch_matter() -> None:
    """Taken for even, the noise of an uneven step is off by far."""
    rng = np.random.default_rng(1)
    steps = [norms(rng, (64, 2)) for _ in range(5_000)]
    even = np.mean([NoiseScale(decay=0).update(*step, (33, 33)).noise_trace for step in steps])
    uneven = np.mean([NoiseScale(decay=0).update(*step, (64, 2)).noise_trace for step in steps])
    assert uneven == pytest.approx(TRACE, rel=0.05)
    assert even > 3 * TRACE


def test_the_average_is_of_steps_and_corrected_at_the_start() -> None:
    state = NoiseScale(decay=0.9)
    assert math.isnan(state.b_simple)
    rng = np.random.default_rng(2)
    step = norms(rng, (8, 8))
    once = state.update(*step, (8, 8))
    again = once.update(*step, (8, 8))
    assert once.gradient_square == pytest.approx(again.gradient_square)
    assert once.noise_trace == pytest.approx((step[0] / 2 - step[1]) / (1 / 8 - 1 / 16))


def test_the_interval_holds_the_truth() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        state = NoiseScale(decay=0.99)
        for _ in range(300):
            state = state.update(*norms(rng, (8, 8, 8, 8)), (8, 8, 8, 8))
        low, high = state.interval()
        assert low <= state.b_simple <= high
        hits += low <= TRACE / SQUARE <= high
    assert 0.84 <= hits / 200 <= 0.96


def test_no_gradient_beside_the_noise_is_said() -> None:
    rng = np.random.default_rng(4)
    state, unbounded = NoiseScale(), 0
    for _ in range(100):
        state = state.update(*norms(rng, (8, 8), gradient=0 * GRADIENT), (8, 8))
    low, high = state.interval()
    unbounded += high == math.inf
    assert unbounded
    assert low > 0
    negative = NoiseScale().update(10.0, 0.5, (8, 8))
    assert negative.gradient_square < 0
    assert negative.b_simple == math.inf


@pytest.mark.parametrize(
    ("step", "sizes"),
    [
        ((1.0, 1.0), (8,)),
        ((1.0, 1.0), (8, 0)),
        ((math.inf, 1.0), (8, 8)),
        ((1.0, math.nan), (8, 8)),
    ],
)
def test_a_step_that_tells_nothing_changes_nothing(step, sizes) -> None:
    state = NoiseScale().update(3.0, 1.0, (8, 8))
    assert state.update(*step, sizes) == state


def test_it_goes_through_a_checkpoint() -> None:
    state = NoiseScale().update(3.0, 1.0, (8, 8)).update(2.5, 1.1, (8, 4))
    assert NoiseScale(**json.loads(json.dumps(dataclasses.asdict(state)))) == state


def test_a_decay_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="decay"):
        NoiseScale(decay=1.0)


def descend(batch, seed, *, dimensions=200, noise=4.0, until=0.05, rate=0.02, workers=4):
    """Train a round bowl by noisy gradients; return samples to the target, and noise scales.

    The rate is the best for the batch: rate / (1 + B_noise / B), McCandlish eq. 2.6.
    """
    rng = np.random.default_rng(seed)
    at = np.full(dimensions, 1 / np.sqrt(dimensions))
    state, samples, scales = NoiseScale(decay=0.8), 0, []
    sizes = [batch // workers] * workers
    while at @ at > until:
        own = at + noise * rng.standard_normal((workers, dimensions)) / np.sqrt(
            dimensions * batch / workers
        )
        average = own.mean(axis=0)
        state = state.update(float((own**2).sum()), float(average @ average), sizes)
        scales.append(state.b_simple)
        true_scale = noise**2 / float(at @ at)
        at = at - rate / (1 + true_scale / batch) * average
        samples += batch
    return samples, scales


def test_one_run_on_a_bowl_predicts_the_critical_batch_of_all() -> None:
    """Samples to target at seven batch sizes, against the noise scale seen in a single run."""
    rows = [
        {"batch_size": batch, "samples_to_target": descend(batch, seed)[0]}
        for batch in (16, 32, 64, 128, 256, 512, 1024)
        for seed in range(5)
    ]
    found = samples_to_target.fit(pd.DataFrame(rows)).critical_batch
    # 16 over |at|^2, averaged while that falls from 1 to 0.05 at an even pace in its logarithm.
    assert found.low < 16 * (20 - 1) / np.log(20) < found.high
    for batch in (64, 512):
        samples, scales = descend(batch, seed=9)
        predicted = critical_batch(scales, [batch] * len(scales))
        assert predicted == pytest.approx(found.value, rel=0.2)
        curve = samples_to_target.from_noise_scale(batch, samples, predicted)
        for other in (32, 1024):
            measured = np.median([r["samples_to_target"] for r in rows if r["batch_size"] == other])
            row = curve.predict([other]).iloc[0]
            assert row["samples"] == pytest.approx(measured, rel=0.15)
            assert row["low"] < measured < row["high"]


def test_moments_without_a_noise_scale_are_left_out() -> None:
    assert critical_batch([100.0, math.inf, math.nan, 100.0], [50] * 4) == pytest.approx(100)
    assert math.isnan(critical_batch([math.inf], [8]))


def test_evaluations_say_what_their_steps_do() -> None:
    rng = np.random.default_rng(3)
    sizes = (8, 8)
    steps = [norms(rng, sizes) for _ in range(2_000)]
    by_step = by_evaluation = NoiseScale(decay=0.999)
    for first in range(0, len(steps), 10):
        sums = NoiseSums.of([noise_terms(*step, sizes) for step in steps[first : first + 10]])
        by_evaluation = by_evaluation.after(sums)
        for step in steps[first : first + 10]:
            by_step = by_step.update(*step, sizes)
    assert by_evaluation.num_steps == by_step.num_steps == 2_000
    assert by_evaluation.weight == pytest.approx(by_step.weight)
    # Ten steps count alike instead of up to 1 % apart.
    assert by_evaluation.b_simple == pytest.approx(by_step.b_simple, rel=0.01)
    assert by_evaluation.interval() == pytest.approx(by_step.interval(), rel=0.02)
    low, high = by_evaluation.interval()
    assert low < TRACE / SQUARE < high
