"""Samples mixed with others (mixup): with which, how much, and how."""

import numpy as np
import numpy.typing as npt

from raybench.data.augment.keys import Draws, whole
from raybench.data.on_demand import Array

ONE = 256
"""Shares are in whole 1/256: bytes mix in whole numbers of 16 bits, the loss by the very same
share, and the share is the same whatever digits a library's beta function ends in."""


class Mixing:
    """Shares of the Beta(alpha, alpha) distribution, by its inverse, and whom to mix with."""

    def __init__(self, alpha: float, num_rows: int) -> None:
        from scipy.special import betainc  # not with the package: it must import fast

        between = (np.arange(ONE) + 0.5) / ONE
        self._below: npt.NDArray[np.float64] = betainc(alpha, alpha, between)
        self._num_rows = num_rows

    def shares(self, draws: Draws) -> npt.NDArray[np.uint16]:
        """Return the sample's own share, (n,) from 0 to 256."""
        return np.searchsorted(self._below, draws(0), side="right").astype(np.uint16)

    def others(self, draws: Draws) -> npt.NDArray[np.int64]:
        """Return the rows that samples are mixed with, (n,); any of all, alike."""
        return whole(draws(1), self._num_rows)


def mix(samples: Array, others: Array, shares: npt.NDArray[np.uint16]) -> Array:
    """Return shares / 256 of the samples and the rest of the others; of bytes rounded to bytes."""
    assert samples.dtype in (np.uint8, np.float32)
    share = shares.reshape(-1, *(1,) * (samples.ndim - 1))
    if samples.dtype == np.float32:
        mixed = samples - others
        mixed *= share / np.float32(ONE)
        mixed += others
        return mixed
    total = samples.astype(np.uint16)
    total *= share
    added = others.astype(np.uint16)
    added *= ONE - share
    total += added
    total += ONE // 2
    total >>= 8
    return total.astype(np.uint8)
