"""The gradient noise scale, on gradients whose noise is known."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from raybench.report.study import load
from raybench.scaling import samples_to_target
from raybench.scaling.fits import critical_batch, critical_batches, noise_lines, noise_scales
from raybench.stats.step_times import NoiseSums, NoiseTerms, noise_terms
from tests.refusals import numbers_in
from tests.runs.made_up import run_of, study_of, write

GRADIENT = np.array([1.0, -2.0, 0.5, 0.0])
DEVIATIONS = np.array([3.0, 1.0, 4.0, 2.0])
SQUARE, TRACE = float(GRADIENT @ GRADIENT), float(DEVIATIONS @ DEVIATIONS)


def norms(rng, sizes):
    """Return the sum of squared gradient norms of the workers, and that of the mean."""
    gradients = [
        GRADIENT + DEVIATIONS * rng.standard_normal(4) / np.sqrt(size) if size else np.zeros(4)
        for size in sizes
    ]
    average = np.average(gradients, axis=0, weights=sizes)
    return sum(float(g @ g) for g in gradients), float(average @ average)


@pytest.mark.parametrize("sizes", [(8, 8), (16, 16, 16, 5), (8, 8, 0)])
def test_noise_terms_are_unbiased_for_any_batch_split(sizes):
    """The mean of 2,000 steps is within four standard errors of the truth."""
    rng = np.random.default_rng(0)
    steps = [norms(rng, sizes) for _ in range(2_000)]
    terms = [noise_terms(*step, sizes) for step in steps]
    for estimates, truth in zip(np.array(terms).T, (SQUARE, TRACE), strict=True):
        error = np.std(estimates) / np.sqrt(len(estimates))
        assert np.mean(estimates) == pytest.approx(truth, abs=4 * error)


def of_steps(steps, sizes, each=1):
    """Return the noise scales of evaluations after every `each` steps."""
    terms = [noise_terms(*step, sizes) for step in steps]
    sums = [NoiseSums.of(terms[first : first + each]) for first in range(0, len(terms), each)]
    return noise_scales(sums, decay=1 - 1 / len(terms))


def test_averages_are_right_for_single_steps_and_groups_of_ten():
    rng = np.random.default_rng(3)
    steps = [norms(rng, (8, 8)) for _ in range(4_000)]
    one_by_one, together = of_steps(steps, (8, 8)), of_steps(steps, (8, 8), each=10)
    assert (len(one_by_one), len(together)) == (4_000, 400)
    assert one_by_one[-1] == pytest.approx(TRACE / SQUARE, rel=0.1)
    # Within ten steps the weights are equal instead of decaying.
    assert together[-1] == pytest.approx(one_by_one[-1], rel=0.01)
    assert of_steps(steps[:1], (8, 8))[0] == of_steps(steps[:1] * 2, (8, 8))[1]


def descend(batch, seed, *, dimensions=200, noise=4.0, until=0.05, rate=0.02, workers=4):
    """Minimize a quadratic by noisy gradients; return samples to the target, and noise scales.

    The rate is the optimum for the batch: rate / (1 + B_noise / B), McCandlish eq. 2.6.
    """
    rng = np.random.default_rng(seed)
    position = np.full(dimensions, 1 / np.sqrt(dimensions))
    samples, steps = 0, []
    sizes = [batch // workers] * workers
    while position @ position > until:
        gradients = position + noise * rng.standard_normal((workers, dimensions)) / np.sqrt(
            dimensions * batch / workers
        )
        average = gradients.mean(axis=0)
        terms = noise_terms(float((gradients**2).sum()), float(average @ average), sizes)
        steps.append(NoiseSums.of([terms]))
        true_scale = noise**2 / float(position @ position)
        position = position - rate / (1 + true_scale / batch) * average
        samples += batch
    return samples, noise_scales(steps, decay=0.8)


def test_one_run_on_a_quadratic_predicts_the_critical_batch():
    """Samples to target at seven batch sizes, compared with the noise scale of a single run."""
    rows = [
        {"batch_size": batch, "samples_to_target": descend(batch, seed)[0]}
        for batch in (16, 32, 64, 128, 256, 512, 1024)
        for seed in range(5)
    ]
    critical = samples_to_target.fit(pd.DataFrame(rows)).critical_batch
    # 16 / |position|^2, averaged while that falls exponentially from 1 to 0.05.
    assert critical.low < 16 * (20 - 1) / np.log(20) < critical.high
    for batch in (64, 512):
        _, scales = descend(batch, seed=9)
        assert critical_batch(scales, batch) == pytest.approx(critical.value, rel=0.2)


def test_evaluations_without_a_noise_scale_are_left_out():
    assert critical_batch([100.0, math.inf, math.nan, 100.0], 50) == pytest.approx(100)
    assert math.isnan(critical_batch([math.inf], 8))
    assert math.isnan(critical_batch([], 8))


NOISE_SCALE = 50.0


def test_every_run_of_several_workers_estimates_the_noise_scale(tmp_path):
    study, sums = study_of(scaling="weak"), NoiseSums.of([NoiseTerms(2.0, 2 * NOISE_SCALE)])
    runs, curves = run_of(study)
    for name in ("0001-r0", "0001-r1"):
        curves[name] = [replace(point, noise_scale=sums) for point in curves[name]]
    results = load(write(tmp_path / "study", study, runs, curves))
    (values,) = critical_batches(results).values()
    assert values == pytest.approx([NOISE_SCALE] * 2)
    (line,) = noise_lines(results)
    assert "critical batch" in line
    assert "(2 runs, " in line
    assert numbers_in(line)[0] == pytest.approx(NOISE_SCALE, rel=0.05)
