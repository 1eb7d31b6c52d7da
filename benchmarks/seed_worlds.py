"""Worlds whose runs differ by their seeds: recorded tables, stretched ones, smooth plateaus.

A recorded table has two or three seeds a cell, which is too few to stand for a distribution: a
median of three draws from two seeds is one of the two. `Stretched` takes the mean of the recorded
curves and draws how much later, or sooner, a run learns all of it. `Plateau` has no recordings: a
smooth bowl with many configurations near the best, as spaces of ranges have.
"""

import math
import zlib
from functools import cached_property

import numpy as np
from recorded import Config, Table

SIGMA = 0.3
"""Of the logarithm of seconds to the target over seeds: 0.12 to 0.54 in `search_real.json`."""

SHARED = 0.26
"""Share of its variance that all configurations have in common (there, too)."""


def lateness(sigma: float, config: Config, rng: np.random.Generator) -> float:
    """Draw the factor on a run's seconds: what its seed does to all runs, and to this one.

    Runs of one seed are given generators in the same state.
    """
    of_all, number = rng.standard_normal(), int(rng.integers(2**32))
    own = np.random.default_rng([number, zlib.crc32(repr(config).encode())]).standard_normal()
    return math.exp(sigma * (math.sqrt(SHARED) * of_all + math.sqrt(1 - SHARED) * own))


class Alone(Table):
    """A recorded table without its placements: one worker runs every trial."""

    def configs(self) -> list[Config]:
        """Return the grid of one worker."""
        return [config for config in super().configs() if config.num_workers == 1]


class Stretched(Alone):
    """A recorded table's mean curves; a run's seed says how late it learns all of it."""

    def __init__(self, name: str, sigma: float = SIGMA) -> None:
        super().__init__(name)
        self.sigma = sigma

    def curve(
        self, config: Config, rng: np.random.Generator | None = None, *, seed: int | None = None
    ) -> tuple[list[int], list[float], list[float]]:
        """Return samples, train seconds and accuracies: the mean, or one run drawn."""
        samples, seconds, accuracies = super().curve(config)
        if rng is not None:
            late = lateness(self.sigma, config, rng)
            # Past the recorded end a curve stays where it is.
            there = np.divide(samples, late)
            accuracies = np.interp(there, samples, accuracies).tolist()
        return samples, seconds, accuracies


class Plateau(Table):
    """A smooth bowl over optimizer, rate and batch size, the best of which needs a second."""

    EVALUATIONS, PERIOD_S = 72, 0.125
    RATES = 25
    """Of every optimizer, an equal factor apart."""
    batches_per_worker = (16, 32, 64, 128, 256, 512)

    def __init__(self, sigma: float = SIGMA, *, steepness: float = 3.0) -> None:
        self.name, self.sigma = f"plateau, sigma {sigma:g}", sigma
        self._steepness = steepness
        ranges = {"adam": (1e-4, 1e-1), "radam": (1e-4, 1e-1), "lars": (0.03, 100.0)}
        rates = {name: np.geomspace(*ends, self.RATES).tolist() for name, ends in ranges.items()}
        self.meta = {
            "rates": rates,
            "optimizers": list(rates),
            "batches": list(self.batches_per_worker),
        }
        self.mean = np.zeros(
            (len(rates), self.RATES, len(self.batches_per_worker), self.EVALUATIONS)
        )

    @cached_property
    def _centres(self) -> dict[str, tuple[float, float]]:
        """Share of its range where an optimizer's best rate lies, and how much later it is."""
        return {"adam": (0.6, 0.0), "radam": (0.66, 0.04), "lars": (0.5, 0.25)}

    def seconds(self, config: Config) -> float:
        """Return the median seconds to the target; infinite where the rate is too large."""
        low, *_, high = self.meta["rates"][config.optimizer]
        share = math.log(config.rate / low) / math.log(high / low)
        batch = math.log2(config.batch_size_per_worker / 64)
        centre, later = self._centres[config.optimizer]
        off = share - centre - 0.04 * batch
        if off > 0.22:
            return math.inf
        # A bowl, and steeper on the side of rates that are nearly too large.
        slope = self._steepness * (3.0 if off > 0 else 1.0)
        return math.exp(later + slope * 4 * off**2 + 0.03 * self._steepness * (batch + 0.5) ** 2)

    def curve(
        self, config: Config, rng: np.random.Generator | None = None, *, seed: int | None = None
    ) -> tuple[list[int], list[float], list[float]]:
        """Return samples, train seconds and accuracies: the median run, or one drawn."""
        late = 1.0 if rng is None else lateness(self.sigma, config, rng)
        seconds = self.PERIOD_S * np.arange(1, self.EVALUATIONS + 1)
        wanted = late * self.seconds(config)
        # 0.9 is reached then; what came before is a usual exponential approach.
        accuracy = 0.1 + 0.9 * (1 - np.exp(-math.log(9) * seconds / wanted))
        factor = self.step_s("", 0, 0)
        samples = (1000 * np.arange(1, self.EVALUATIONS + 1)).tolist()
        return samples, (factor * seconds).tolist(), accuracy.tolist()

    def step_s(self, optimizer: str, batch: int, workers: int) -> float:
        """Return 1: a run's own speed is what `NoisyTask` makes of it."""
        return 1.0

    def tta(self, config: Config, target: float) -> float:
        """Return the median seconds to the target, between evaluations too."""
        return self.seconds(config)

    def configs(self) -> list[Config]:
        """Return the whole grid."""
        return [
            Config(optimizer, rate, batch, 1)
            for optimizer, rates in self.meta["rates"].items()
            for rate in rates
            for batch in self.batches_per_worker
        ]

    def default_target(self) -> float:
        """Return the accuracy that seconds are counted to."""
        return 0.9
