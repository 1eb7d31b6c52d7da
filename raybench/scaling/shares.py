"""Where a step's time goes: shares of its parts from the times of its probes, with their doubt."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from raybench.scaling.cells import Floats
from raybench.scaling.probes import Probe, Probes, whole_rounds

Part = Literal["compute", "communication", "input", "overhead"]
PARTS: tuple[Part, ...] = ("compute", "communication", "input", "overhead")
CONFIDENCE = 0.95
"""Of intervals, two-sided; Student's, since rounds are few."""
FEWEST_ROUNDS = 3
"""Of which a spread can be told."""


@dataclass(frozen=True)
class Estimate:
    """A median over rounds, and the interval that it is in 19 times of 20."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> "Estimate":
        """Return the estimate from a value for each round; infinitely wide of a single one."""
        middle, number = float(np.median(values)), len(values)
        if number < 2:
            return cls(middle, -math.inf, math.inf)
        factor = float(stats.t.ppf((1 + CONFIDENCE) / 2, number - 1))
        half = factor * float(np.std(values, ddof=1)) / math.sqrt(number)
        return cls(middle, middle - half, middle + half)


@dataclass(frozen=True)
class Shares:
    """What part of a step each of its parts is, round by round; every round sums to one."""

    rounds: dict[Part, Floats]

    @classmethod
    def of(cls, probes: Probes, times: Mapping[Probe, Sequence[float]]) -> "Shares":
        """Return the shares from seconds of a step: one of each probe for each round.

        | part | is |
        |---|---|
        | communication | what the step loses without exchange of gradients |
        | input | what it loses with synthetic data in memory |
        | overhead | what is left of it without both, and without any sample |
        | compute | the rest: forward and backward, as long as there are samples |

        Rounds are compared within themselves: what slows the machine for a while slows all of a
        round. Where exchange and input each hide behind the other, leaving one out wins little:
        what only both together win counts half to each.
        """
        number = whole_rounds(times)
        at = {
            name: np.array(times[probe][:number], dtype=float)
            for name, probe in vars(probes).items()
        }
        whole = at["as_it_is"]
        outside = np.clip(1 - at["alone"] / whole, 0, 1)
        exchange = np.clip(1 - at["no_exchange"] / whole, 0, 1)
        data = np.clip(1 - at["in_memory"] / whole, 0, 1)
        both = exchange + data
        shrunk = np.minimum(1.0, outside / np.maximum(both, 1e-12))
        hidden = np.maximum(outside - both, 0.0) / 2
        fixed = _fixed_seconds(probes, at["alone"], at["other_batch"])
        inside = 1 - outside
        overhead = inside * fixed / at["alone"]
        return cls(
            {
                "compute": inside - overhead,
                "communication": exchange * shrunk + hidden,
                "input": data * shrunk + hidden,
                "overhead": overhead,
            }
        )

    def __getitem__(self, part: Part) -> Estimate:
        return Estimate.of(self.rounds[part])

    @property
    def order(self) -> list[Part]:
        """The parts, largest first."""
        return sorted(PARTS, key=lambda part: -self[part].value)

    @property
    def is_sure(self) -> bool:
        """Whether the spread leaves no doubt which part is the largest.

        Each of the others is smaller in the whole interval of the difference, round by round.
        """
        largest, *others = self.order
        if len(self.rounds[largest]) < FEWEST_ROUNDS:
            return False
        return all(
            Estimate.of(self.rounds[largest] - self.rounds[other]).low > 0 for other in others
        )


def _fixed_seconds(probes: Probes, alone: Floats, other: Floats) -> Floats:
    """Return what a step takes beside its samples: the line through two batches, at none."""
    batch = probes.alone.batch_size_per_worker
    slope = (alone - other) / (batch - probes.other_batch.batch_size_per_worker)
    return np.clip(alone - slope * batch, 0.0, alone)
