"""Step times, gradient noise from known gradients, and bytes exchanged."""

import itertools
import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from raybench.spec.run import RunSpec
from raybench.stats.step_times import StepTimes, bytes_exchanged, noise_terms, terms_of_parts


def test_quantiles_are_those_of_the_numbers():
    times = StepTimes.of([0.5, 0.1, 0.2, 0.3, 0.4])
    assert times
    quantiles = {"p25_s": 0.2, "median_s": 0.3, "p75_s": 0.4, "p95_s": 0.48, "max_s": 0.5}
    assert asdict(times) == pytest.approx({"num": 5} | quantiles)


def test_partial_steps_count_only_for_the_longest_step():
    full_steps = StepTimes.of([0.2, 0.4])
    assert full_steps
    assert full_steps == StepTimes.of([0.2, 0.4], [0.1]) == StepTimes.of([math.nan, 0.2, 0.4])
    assert StepTimes.of([0.2, 0.4], [math.nan, 9.0]) == replace(full_steps, max_s=9.0)
    assert [StepTimes.of(*steps) for steps in ([[], [0.1]], [[math.nan]], [[]])] == [None] * 3


SAMPLES = np.random.default_rng(0).standard_normal((24, 5)) + 1.0
"""Gradients of single samples."""


def parts_of(sizes: list[int]) -> tuple[list[float], float]:
    """Return the squared norms of the workers' parts of the mean gradient, and of the mean."""
    edges = np.cumsum([0, *sizes])
    total = edges[-1]
    parts = [SAMPLES[a:b].sum(axis=0) / total for a, b in itertools.pairwise(edges)]
    mean = np.sum(parts, axis=0)
    return [float(part @ part) for part in parts], float(mean @ mean)


@pytest.mark.parametrize("sizes", [[16, 5], [7, 0, 3]])
def test_noise_from_parts_of_a_gradient_equals_noise_from_mean_gradients(sizes):
    parts, square = parts_of(sizes)
    edges = np.cumsum([0, *sizes])
    means = [SAMPLES[a:b].mean(axis=0) for a, b in itertools.pairwise(edges) if b > a]
    expected = noise_terms(sum(float(g @ g) for g in means), square, sizes)
    assert expected is not None
    assert terms_of_parts(parts, square, sizes) == pytest.approx(expected)


def test_single_samples_give_the_sample_covariance():
    """The noise is then the unbiased trace of the covariance of the samples."""
    sizes = [1] * len(SAMPLES)
    terms = terms_of_parts(*parts_of(sizes), sizes)
    assert terms is not None
    assert terms.noise == pytest.approx(float(np.trace(np.cov(SAMPLES.T))))
    mean = SAMPLES.mean(axis=0)
    assert terms.gradient == pytest.approx(float(mean @ mean) - terms.noise / len(SAMPLES))


@pytest.mark.parametrize(
    ("parts", "square", "sizes"),
    [([1.0], 1.0, [8]), ([1.0, 0.0], 1.0, [8, 0]), ([1.0, math.inf], 1.0, [8, 8])],
)
def test_steps_without_noise_estimates(parts, square, sizes):
    assert terms_of_parts(parts, square, sizes) is None


@pytest.mark.parametrize(
    ("changes", "num_bytes"),
    [
        ({"num_workers": 2}, 4000),
        ({"num_workers": 2, "gradient_compression": "bf16"}, 2000),
        ({"num_workers": 2, "gradient_compression": "fp16"}, 2000),
        ({"num_workers": 2, "exchange_gradients": False}, 0),
        ({"num_workers": 1}, 0),
    ],
)
def test_bytes_exchanged_per_step(changes, num_bytes):
    assert bytes_exchanged(RunSpec(**changes), 1000) == num_bytes  # type: ignore[arg-type]
