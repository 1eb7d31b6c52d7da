"""A fitted curve of samples to target over the global batch: what it predicts, what it tells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raybench.scaling.convergence import Floats
from raybench.scaling.samples_law import CRITICAL, MISFITS, Curves, alike, scattered

MEDIAN_NOISE = 1.2533
"""Standard error of a median of n runs: this times their spread over the root of n."""
LOW, HIGH = 0.05, 0.95
"""An interval of 90 %."""
FAR = 10.0
"""A critical batch so many times outside of the batch sizes tried is not told apart from others."""


@dataclass(frozen=True)
class Interval:
    """A value, and 90 % of what is possible for it; 0 or infinite where nothing bounds it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Left:
    """What the law leaves over at the batch sizes of the runs, in one draw's misfit or another's.

    `solved[i]` is the inverse covariance under MISFITS[i].
    """

    batch: Floats
    solved: tuple[Floats, ...]
    residuals: Floats
    """A row a draw."""
    level: np.ndarray
    """Each draw's index of MISFITS."""

    def at(self, batch: Floats) -> tuple[Floats, Floats]:
        """Return what is expected over the law at batch sizes, and the variance: a row a draw."""
        mean = np.zeros((len(self.level), len(batch)))
        variance = np.zeros_like(mean)
        near = alike(batch, self.batch)
        for level, (misfit, solved) in enumerate(zip(MISFITS, self.solved, strict=True)):
            here = self.level == level
            share = misfit**2 * near @ solved
            mean[here] = self.residuals[here] @ share.T
            variance[here] = misfit**2 * np.maximum(1 - (share * near).sum(axis=1), 0)
        return mean, variance


@dataclass(frozen=True)
class SamplesToTarget:
    """A curve with its uncertainty: equally probable sets of the law's parameters."""

    log_least: Floats
    """ln S_min."""
    curves: Curves
    left: Left | None
    """None: the curve is taken for exact, but for its parameters."""
    spread: float
    """Standard deviation of the logarithm of one run's samples."""
    tried: tuple[int, int]
    """Least and greatest batch size whose median is known."""
    missed: tuple[int, ...] = ()
    """Batch sizes at which most runs missed the target."""
    notes: tuple[str, ...] = ()

    def predict(self, batch_sizes: Sequence[float], num_runs: int | None = None) -> pd.DataFrame:
        """Return batch_size, samples, low, high (90 %): the median run's samples to target.

        With `num_runs` the interval is for the median of so many runs, as it would be measured.
        """
        batch = np.asarray(batch_sizes, dtype=float)
        logs = self.log_least[:, None] + self.curves.log_rise(batch)
        variance = np.zeros_like(logs)
        if self.left is not None:
            over, variance = self.left.at(batch)
            logs = logs + over
        noise = MEDIAN_NOISE * self.spread / np.sqrt(num_runs) if num_runs else 0.0
        widths = np.sqrt(variance + noise**2) * scattered(len(logs), 1)[:, None]
        low, high = np.quantile(logs + widths, (LOW, HIGH), axis=0)
        # The median without the widths: drawing them would add nothing but chance.
        middle = np.median(logs, axis=0)
        columns = {"samples": np.exp(middle), "low": np.exp(low), "high": np.exp(high)}
        return pd.DataFrame({"batch_size": list(batch_sizes)} | columns)

    def reaches(self, batch_size: float) -> bool:
        """Tell whether the target is within reach: not where most runs missed it, nor near that.

        The law knows nothing of divergence and would go on smoothly to where no run arrives, so
        what lies between a batch size that missed and the first that did not is not trusted.
        """
        low, high = self.tried
        if any(size < low for size in self.missed) and batch_size < low:
            return False
        if any(size > high for size in self.missed) and batch_size > high:
            return False
        return batch_size not in self.missed

    @property
    def critical_batch(self) -> Interval:
        """The batch size beyond which more samples are wasted than saved in steps (B_crit)."""
        found = np.quantile(self.curves.critical, (LOW, 0.5, HIGH))
        low, value, high = (float(x) for x in found)
        if self.left is not None:
            # The grid tells no more than this apart.
            step = (CRITICAL[1] / CRITICAL[0] * self.tried[1] / self.tried[0]) ** (
                0.5 / (CRITICAL[2] - 1)
            )
            low, high = low / step, high * step
            low = 0.0 if low < self.tried[0] / FAR else low
            high = np.inf if high > FAR * self.tried[1] else high
        return Interval(value, low, high)

    def sentence(self) -> str:
        """Say what is known of the critical batch."""
        found = self.critical_batch
        value, low, high = map(_rounded, (found.value, found.low, found.high))
        if found.low == 0 and found.high == np.inf:
            return (
                "The critical batch cannot be told from these runs: try batch sizes that lie "
                "farther apart, or repeat them."
            )
        if found.high == np.inf:
            return (
                f"The critical batch is above {low}; how far above cannot be told from batches "
                f"of up to {self.tried[1]:,}."
            )
        if found.low == 0:
            return (
                f"The critical batch is below {high}; how far below cannot be told from batches "
                f"of {self.tried[0]:,} and more."
            )
        return f"The critical batch is about {value} (90 %: {low} to {high})."


def _rounded(value: float) -> str:
    """Write a number with three digits that count."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
