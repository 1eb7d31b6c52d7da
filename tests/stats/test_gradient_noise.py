"""The terms of steps, from gradients whose parts are known."""

import itertools
import math

import numpy as np
import pytest

from raybench.stats.step_times import NoiseSums, NoiseTerms, noise_terms, terms_of_parts

SAMPLES = np.random.default_rng(0).standard_normal((24, 5)) + 1.0
"""Gradients of single samples."""


def parts_of(sizes: list[int]) -> tuple[list[float], float]:
    """The workers' parts of the gradient over all samples: squared norms, and their sum's."""
    edges = np.cumsum([0, *sizes])
    total = edges[-1]
    parts = [SAMPLES[a:b].sum(axis=0) / total for a, b in itertools.pairwise(edges)]
    whole = np.sum(parts, axis=0)
    return [float(part @ part) for part in parts], float(whole @ whole)


@pytest.mark.parametrize("sizes", [[8, 8], [16, 5], [8, 8, 8], [7, 0, 3]])
def test_parts_of_a_global_gradient_say_what_mean_gradients_do(sizes: list[int]) -> None:
    parts, whole = parts_of(sizes)
    edges = np.cumsum([0, *sizes])
    means = [SAMPLES[a:b].mean(axis=0) for a, b in itertools.pairwise(edges) if b > a]
    expected = noise_terms(sum(float(g @ g) for g in means), whole, sizes)
    assert expected is not None
    assert terms_of_parts(parts, whole, sizes) == pytest.approx(expected)


def test_single_samples_give_the_sample_covariance() -> None:
    """With one sample a worker the noise is the unbiased trace of the samples' covariance."""
    sizes = [1] * len(SAMPLES)
    found = terms_of_parts(*parts_of(sizes), sizes)
    assert found is not None
    assert found.noise == pytest.approx(float(np.trace(np.cov(SAMPLES.T))))
    mean = SAMPLES.mean(axis=0)
    assert found.gradient == pytest.approx(float(mean @ mean) - found.noise / len(SAMPLES))


@pytest.mark.parametrize(
    ("parts", "whole", "sizes"),
    [([1.0], 1.0, [8]), ([1.0, 0.0], 1.0, [8, 0]), ([1.0, math.inf], 1.0, [8, 8])],
)
def test_steps_that_tell_nothing(parts: list[float], whole: float, sizes: list[int]) -> None:
    assert terms_of_parts(parts, whole, sizes) is None


def test_sums_are_over_steps() -> None:
    found = NoiseSums.of([NoiseTerms(1.0, 10.0), NoiseTerms(2.0, -4.0)])
    assert found == NoiseSums(
        num_steps=2,
        gradient=3.0,
        noise=6.0,
        gradient_squares=5.0,
        noise_squares=116.0,
        products=2.0,
    )
    assert NoiseSums.of([]) is None
