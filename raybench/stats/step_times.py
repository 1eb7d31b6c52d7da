"""Records of optimizer steps (`record_steps`): times, bytes exchanged, gradient noise.

Workers see different samples, so their gradients differ only by noise. With per-sample covariance
Sigma and true gradient G, a gradient over b samples has E|g|^2 = |G|^2 + tr(Sigma) / b: unbiased
estimates of both terms follow from the mean of the workers' squared norms and the squared norm of
their average (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1). `scaling.fits.noise_scales`
is their ratio.
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
    """Seconds of the optimizer steps with a whole global batch since the last evaluation.

    The shorter last step of an epoch only counts for `max_s`. The time of a step is that of the
    slowest rank, from the end of the previous step to its own end, with waiting for data and for
    other workers.
    """

    num: Annotated[int, Strict(), Field(gt=0)]
    """Number of these steps."""
    median_s: Seconds
    p25_s: Seconds
    p75_s: Seconds
    p95_s: Seconds
    max_s: Seconds
    """Slowest of all steps, short ones included: a stall if far above `p95_s`."""

    @classmethod
    def of(cls, seconds: Sequence[float], short: Sequence[float] = ()) -> "StepTimes | None":
        """Return the summary of some steps; None if the time of no whole step is known.

        Args:
            seconds: Steps with a whole batch; NaN if not known.
            short: Steps without a whole batch.
        """
        known = [one for one in seconds if np.isfinite(one)]
        if not known:
            return None
        names = ("p25_s", "median_s", "p75_s", "p95_s")
        parts = dict(zip(names, np.percentile(known, [25, 50, 75, 95]).tolist(), strict=True))
        slowest = max(one for one in (*known, *short) if np.isfinite(one))
        return cls(num=len(known), max_s=slowest, **parts)


class NoiseTerms(NamedTuple):
    """Noise terms of one step, which may be negative."""

    gradient: float
    """|G|^2"""
    noise: float
    """tr(Sigma), per sample."""


@dataclass(frozen=True, kw_only=True)
class NoiseSums:
    """Sums of the noise terms of the steps since the last evaluation."""

    num_steps: Annotated[int, Strict(), Field(gt=0)]
    gradient: Finite
    """Estimate of |G|^2."""
    noise: Finite
    """Estimate of tr(Sigma)."""

    @classmethod
    def of(cls, steps: Sequence[NoiseTerms]) -> "NoiseSums | None":
        """Return the sums over some steps; None without a step."""
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
    """Return the noise terms of a step, unbiased for uneven and empty shares of samples too.

    Args:
        sum_of_squares: Sum over workers of the squared norm of their mean gradient before the
            exchange.
        square_of_average: Squared norm of the mean gradient over all samples.
        samples_per_worker: Samples of each worker.

    Returns:
        None for a step of a single worker, or if a norm is not finite.
    """
    sizes = [size for size in samples_per_worker if size > 0]
    if len(sizes) < 2 or not math.isfinite(sum_of_squares + square_of_average):
        return None
    own, averaged = sum(1 / size for size in sizes) / len(sizes), 1 / sum(sizes)
    noise = (sum_of_squares / len(sizes) - square_of_average) / (own - averaged)
    return NoiseTerms(square_of_average - averaged * noise, noise)


def terms_of_parts(
    part_squares: Sequence[float], whole_square: float, samples_per_worker: Sequence[int]
) -> NoiseTerms | None:
    """Return the noise terms of a step whose workers exchange parts of the mean gradient.

    A part is a worker's summed gradient divided by the samples of *all* workers, so that the parts
    sum to the mean gradient.

    Args:
        part_squares: Squared norm of each part.
        whole_square: Squared norm of the mean gradient.
        samples_per_worker: Samples of each worker.
    """
    total, parts = sum(samples_per_worker), zip(part_squares, samples_per_worker, strict=True)
    own = sum(square * (total / size) ** 2 for square, size in parts if size > 0)
    return noise_terms(own, whole_square, samples_per_worker)


BYTES_OF = {"none": 4, "fp16": 2, "bf16": 2}
"""Bytes of one gradient value on the network, by `gradient_compression`; gradients are float32
whatever the precision."""


def bytes_exchanged(spec: RunSpec, num_parameters: int) -> int:
    """Return the bytes that a worker contributes to the exchange of one optimizer step.

    The same for a replica of a `single_process`, without the weights, samples and outputs that
    nn.DataParallel copies.
    """
    if spec.num_workers == 1 or not spec.exchange_gradients:
        return 0
    return BYTES_OF[spec.gradient_compression] * num_parameters
