"""The law of samples to target over the global batch, and what is thought of it beforehand.

    S(B) = S_min (1 + (B / B_crit)^p + B_small / B)

With p = 1 and B_small = 0 this is the law of McCandlish et al. 2018 (arXiv 1812.06162, eq. 2.11):
small batches waste nothing, far above B_crit the steps stay the same and the samples grow with the
batch, and at B_crit twice the least is needed. Between these regimes real curves bend sooner or
later (Shallue et al. 2018, arXiv 1811.03600, section 4), which p lets them; and where the learning
rate is too high for tiny batches these need more samples again: B_small, which is 0 unless runs
say otherwise.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from raybench.scaling.convergence import Floats

POWERS = np.array([0.4, 0.5, 0.63, 0.8, 1.0, 1.26, 1.6, 2.0, 2.5])
POWER_FACTOR = 1.5
"""Before anything is known the power is 1, times or over this (one standard deviation)."""
CRITICAL = (0.01, 30.0, 120)
"""Critical batches that are tried: from this share of the least batch size to this multiple of
the greatest, so many in equal ratios."""
SMALL = (0.25, 0.25, 14)
"""Likewise B_small, beside 0."""
SMALL_PROBABILITY = 0.1
"""That B_small is not 0, before anything is known."""
MISFITS = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
"""Relative misfits of the law that are tried."""
REACH = 1.0
"""Doublings of the batch size over which misfits are alike to 1/e."""


@dataclass(frozen=True)
class Curves:
    """Sets of the law's parameters but for S_min, as arrays of one length."""

    critical: Floats
    power: Floats
    small: Floats

    def log_rise(self, batch: Floats) -> Floats:
        """Return ln(S / S_min): a row a set, a column a batch size."""
        critical, power, small = (x[:, None] for x in (self.critical, self.power, self.small))
        return np.asarray(np.log1p((batch / critical) ** power + small / batch))

    def take(self, index: np.ndarray) -> "Curves":
        """Return some of the sets."""
        return Curves(self.critical[index], self.power[index], self.small[index])


def grid(least: float, greatest: float) -> tuple[Curves, Floats]:
    """Return all sets that are tried for batch sizes in a range, and their log probability."""
    critical = np.geomspace(CRITICAL[0] * least, CRITICAL[1] * greatest, CRITICAL[2])
    small = np.append(0.0, np.geomspace(SMALL[0] * least, SMALL[1] * greatest, SMALL[2]))
    sets = Curves(*(x.ravel() for x in np.meshgrid(critical, POWERS, small)))
    prior = -0.5 * (np.log(sets.power) / np.log(POWER_FACTOR)) ** 2
    rises = np.log(SMALL_PROBABILITY / SMALL[2])
    return sets, prior + np.where(sets.small == 0, np.log(1 - SMALL_PROBABILITY), rises)


def alike(here: Floats, there: Floats) -> Floats:
    """Return how the law's misfits at batch sizes are correlated."""
    apart = np.abs(np.log2(here[:, None] / there[None, :]))
    return np.asarray(np.exp(-apart / REACH))


def draw(scores: Floats, number: int) -> np.ndarray:
    """Return indices drawn by their log probability, evenly: the same ones every time."""
    total = np.cumsum(np.exp(scores - scores.max()))
    return np.asarray(np.searchsorted(total, middles(number) * total[-1]))


def middles(number: int) -> Floats:
    """Return the middles of so many equal parts of 0 to 1."""
    return np.asarray((np.arange(number) + 0.5) / number)


def scattered(number: int, seed: int) -> Floats:
    """Return evenly spaced quantiles of a normal distribution, in an order without meaning."""
    order = np.random.default_rng(seed).permutation(number)
    return np.asarray(norm.ppf(middles(number))[order])
