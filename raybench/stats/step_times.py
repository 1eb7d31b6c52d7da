"""Measurements of optimizer steps (`record_steps`): times, bytes exchanged, gradient noise.

Workers compute gradients from different samples, so the gradients differ only by sampling noise. If
G is the true gradient and Sigma the covariance of the gradient of a single sample, a gradient g
over b samples has the expectation E|g|^2 = |G|^2 + tr(Sigma) / b. Unbiased estimates of |G|^2 and
tr(Sigma) follow from two numbers: the mean of the squared norms of the workers' gradients, and the
squared norm of the average gradient (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).
`scaling.fits.noise_scales` computes the gradient noise scale, tr(Sigma) / |G|^2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, Strict

from raybench.spec.run import RunSpec

Finite = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Seconds = Annotated[Finite, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Durations in seconds of the optimizer steps since the last evaluation.

    Only steps with a full global batch count; the partial last step of an epoch counts only in
    `max_s`. The duration of a step is measured on the slowest rank, from the end of the previous
    step to the end of the step, including waits for data and for other workers.
    """

    num: Annotated[int, Strict(), Field(gt=0)]
    """Number of steps with a full global batch."""
    median_s: Seconds
    p25_s: Seconds
    p75_s: Seconds
    p95_s: Seconds
    max_s: Seconds
    """Duration of the longest step, including partial steps. A value far above `p95_s` indicates
    that training stalled."""

    @classmethod
    def of(cls, seconds: Sequence[float], short: Sequence[float] = ()) -> "StepTimes | None":
        """Summarize the durations of steps; return None if no full step has a known duration.

        Args:
            seconds: Durations of steps with a full global batch, in seconds; NaN if unknown.
            short: Durations of partial steps, in seconds.
        """
        measured = [duration for duration in seconds if np.isfinite(duration)]
        if not measured:
            return None
        names = ("p25_s", "median_s", "p75_s", "p95_s")
        parts = dict(zip(names, np.percentile(measured, [25, 50, 75, 95]).tolist(), strict=True))
        slowest = max(duration for duration in (*measured, *short) if np.isfinite(duration))
        return cls(num=len(measured), max_s=slowest, **parts)


class NoiseTerms(NamedTuple):
    """Unbiased estimates of gradient noise from one optimizer step; they may be negative."""

    gradient: float
    """Estimate of |G|^2."""
    noise: float
    """Estimate of tr(Sigma), where Sigma is the covariance of the gradient of a single sample."""


@dataclass(frozen=True, kw_only=True)
class NoiseSums:
    """Sums of the gradient-noise estimates of the steps since the last evaluation."""

    num_steps: Annotated[int, Strict(), Field(gt=0)]
    """Number of steps with an estimate."""
    gradient: Finite
    """Sum of the estimates of |G|^2."""
    noise: Finite
    """Sum of the estimates of tr(Sigma)."""

    @classmethod
    def of(cls, steps: Sequence[NoiseTerms]) -> "NoiseSums | None":
        """Return the sums of the estimates of several steps; None if there are no steps."""
        if not steps:
            return None
        return cls(
            num_steps=len(steps),
            gradient=sum(step.gradient for step in steps),
            noise=sum(step.noise for step in steps),
        )


def noise_terms(
    sum_of_squares: float, square_of_average: float, samples_per_worker: Sequence[int]
) -> NoiseTerms | None:
    """Return the gradient-noise estimates of a step.

    The estimates are unbiased even if workers have different numbers of samples, or no samples.

    Args:
        sum_of_squares: Sum over workers of the squared norm of each worker's mean gradient, before
            the all-reduce.
        square_of_average: Squared norm of the mean gradient over all samples.
        samples_per_worker: Number of samples of each worker.

    Returns:
        The estimates; None if fewer than two workers have samples, or if a norm is not finite.
    """
    sizes = [size for size in samples_per_worker if size > 0]
    if len(sizes) < 2 or not math.isfinite(sum_of_squares + square_of_average):
        return None
    mean_inverse, averaged = sum(1 / size for size in sizes) / len(sizes), 1 / sum(sizes)
    noise = (sum_of_squares / len(sizes) - square_of_average) / (mean_inverse - averaged)
    return NoiseTerms(square_of_average - averaged * noise, noise)


def terms_of_parts(
    part_squares: Sequence[float], whole_square: float, samples_per_worker: Sequence[int]
) -> NoiseTerms | None:
    """Return the gradient-noise estimates of a step, from each worker's part of the mean gradient.

    The part of a worker is the sum of its samples' gradients divided by the number of samples of
    *all* workers, so that the sum of the parts is the mean gradient.

    Args:
        part_squares: Squared norm of the part of each worker.
        whole_square: Squared norm of the mean gradient.
        samples_per_worker: Number of samples of each worker.
    """
    total, parts = sum(samples_per_worker), zip(part_squares, samples_per_worker, strict=True)
    sum_of_squares = sum(square * (total / size) ** 2 for square, size in parts if size > 0)
    return noise_terms(sum_of_squares, whole_square, samples_per_worker)


BYTES_OF = {"none": 4, "fp16": 2, "bf16": 2}
"""Bytes sent per element of a gradient, keyed by value of `gradient_compression`. Without
compression, gradients are float32 for any `precision`."""


def bytes_exchanged(spec: RunSpec, num_parameters: int) -> int:
    """Return the number of bytes that one worker contributes to the gradient all-reduce of a step.

    It is 0 if there is no exchange. With `strategy: single_process`, it is the number for one
    replica, without the weights, samples and outputs that nn.DataParallel copies.

    Args:
        spec: Run spec.
        num_parameters: Number of trained parameters of the model.
    """
    if spec.num_workers == 1 or not spec.exchange_gradients:
        return 0
    return BYTES_OF[spec.gradient_compression] * num_parameters
