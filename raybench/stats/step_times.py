"""Records of optimizer steps (`record_steps`): their times, bytes exchanged, gradient noise.

Workers see different samples, so their gradients differ by noise alone. With per-sample covariance
Sigma and true gradient G, a gradient over b samples has E|g|^2 = |G|^2 + tr(Sigma) / b: from the
mean of the workers' squared norms and the squared norm of their average both terms follow without
bias (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1). `scaling.noise_scale` makes the
noise scale of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, Strict

from raybench.spec.run import RunSpec

Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of the optimizer steps since the last evaluation that had a whole global batch.

    The last step of an epoch has less to do and counts for `max_s` alone. A step's time is that of
    the slowest rank, from the end of the step before it (or the beginning of training) to its own
    end, with waiting for data and for other workers.
    """

    num: Annotated[int, Strict(), Field(gt=0)]
    """Number of these steps."""
    median_s: Seconds
    p25_s: Seconds
    p75_s: Seconds
    p95_s: Seconds
    max_s: Seconds
    """The slowest of all steps, short ones too: a stall, where it is far above `p95_s`."""

    @classmethod
    def of(cls, seconds: Sequence[float], short: Sequence[float] = ()) -> "StepTimes | None":
        """Return those of steps in their order; a NaN is a step whose time is not known.

        `short` are those of steps without a whole batch. None where no whole step's time is known.
        """
        known = [one for one in seconds if np.isfinite(one)]
        if not known:
            return None
        names = ("p25_s", "median_s", "p75_s", "p95_s")
        parts = dict(zip(names, np.percentile(known, [25, 50, 75, 95]).tolist(), strict=True))
        slowest = max(one for one in (*known, *short) if np.isfinite(one))
        return cls(num=len(known), max_s=slowest, **parts)


Finite = Annotated[float, Strict(), Field(allow_inf_nan=False)]


class NoiseTerms(NamedTuple):
    """Noise terms of one step; those of a single step may well be negative."""

    gradient: float
    """|G|^2"""
    noise: float
    """tr(Sigma), per sample."""


@dataclass(frozen=True, kw_only=True)
class NoiseSums:
    """Sums over the steps since the last evaluation that had something to say."""

    num_steps: Annotated[int, Strict(), Field(gt=0)]
    gradient: Finite
    """Estimate of |G|^2."""
    noise: Finite
    """Estimate of tr(Sigma)."""

    @classmethod
    def of(cls, steps: Sequence[NoiseTerms]) -> "NoiseSums | None":
        """Return the sums over some steps; None of none."""
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
    """Return what a step says.

    `sum_of_squares` is the sum over workers of the squared norm of their own mean gradient,
    before the exchange; `square_of_average` the squared norm of the average over all samples.
    Uneven and empty shares, as in the last step of an epoch, cost no bias. None for a step of a
    single worker, or with a norm that is not finite (an overflow that the training skips, too).
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
    """Return what a step says whose workers exchange their parts of the global batch's gradient.

    A part is a worker's summed gradient over the samples of *all* workers, so that the parts sum
    to the mean gradient, of squared norm `whole_square`: its own mean gradient is larger by the
    samples of all over its own.
    """
    total, parts = sum(samples_per_worker), zip(part_squares, samples_per_worker, strict=True)
    own = sum(square * (total / size) ** 2 for square, size in parts if size > 0)
    return noise_terms(own, whole_square, samples_per_worker)


BYTES_OF = {"none": 4, "fp16": 2, "bf16": 2}
"""Bytes of one gradient value on the wire, by `gradient_compression`: weights, and so gradients,
are float32 whatever the precision."""


def bytes_exchanged(spec: RunSpec, num_parameters: int) -> int:
    """Return what a worker gives to the exchange of one optimizer step, in bytes.

    A replica of a `single_process` gives as much, to others in its process. What nn.DataParallel
    copies beside it (weights and samples to every GPU, outputs back) is not in it.
    """
    if spec.num_workers == 1 or not spec.exchange_gradients:
        return 0
    return BYTES_OF[spec.gradient_compression] * num_parameters
