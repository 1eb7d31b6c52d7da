"""Samples to target of a study with one batch size, by the noise of its gradients."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from raybench.scaling.convergence import read
from raybench.scaling.samples_curve import SamplesToTarget
from raybench.scaling.samples_to_target import from_noise_scale

TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The one batch size: what a plan tries beside it. Farther away neither the noise scale nor the
throughput model has much to say."""


def curve_from_noise(table: pd.DataFrame, values: Sequence[float]) -> SamplesToTarget | None:
    """Return the curve through the only batch size whose runs reached the target.

    `table` is one of `scaling.convergence`, `values` are critical batches by runs' gradients. None
    where these tell nothing, or where several batch sizes do: a curve is fitted to those.
    """
    sizes = read(table).batch_sizes
    known = [size for size in sizes if size.samples is not None]
    critical = statistics.median(values) if values else 0.0
    if len(known) != 1 or not critical > 0:
        return None
    (size,) = known
    missed = tuple(one.batch_size for one in sizes if one.samples is None)
    return replace(
        from_noise_scale(size.batch_size, float(size.samples or 0), critical), missed=missed
    )


def sizes_near(batch_size: int) -> list[int]:
    """Return batch sizes to plan with, where one was run."""
    return sorted({int(times * batch_size) for times in TIMES if times * batch_size >= 1})


def curve_words(curve: SamplesToTarget) -> str:
    """Say where the curve comes from."""
    return (
        f"Of one batch size, {curve.tried[0]}, is known what it needs to the target; what others "
        "need follows from the noise of the gradients, which is right within a factor of three: "
        "they were not run."
    )
