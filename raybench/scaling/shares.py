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

    @property
    def percent(self) -> str:
        """A share for people: `62 %`; noise below none is none."""
        return f"{100 * _within(self.value):.0f} %"

    @property
    def percents(self) -> str:
        """A share's interval for people: `58 to 66 %`."""
        return f"{100 * _within(self.low):.0f} to {100 * _within(self.high):.0f} %"

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
        round. Exchange and input may each hide behind the other, or wait for each other: each gets
        the mean of what it costs beside the other and alone (Shapley 1953), so that nothing counts
        twice. Noise may make a part negative in a round; cut off, it would be no noise but a bias.
        """
        number = whole_rounds(times)
        at = {
            name: np.array(times[probe][:number], dtype=float)
            for name, probe in vars(probes).items()
        }
        whole = at["as_it_is"]
        beside = {"communication": whole - at["no_exchange"], "input": whole - at["in_memory"]}
        alone = {
            "communication": at["in_memory"] - at["alone"],
            "input": at["no_exchange"] - at["alone"],
        }
        fixed = _fixed_seconds(probes, at["alone"], at["other_batch"])
        return cls(
            {
                "compute": (at["alone"] - fixed) / whole,
                "communication": (beside["communication"] + alone["communication"]) / 2 / whole,
                "input": (beside["input"] + alone["input"]) / 2 / whole,
                "overhead": fixed / whole,
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


def _within(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _fixed_seconds(probes: Probes, alone: Floats, other: Floats) -> Floats:
    """Return what a step takes beside its samples: the line through two batches, at none."""
    batch = probes.alone.batch_size_per_worker
    slope = (alone - other) / (batch - probes.other_batch.batch_size_per_worker)
    return np.asarray(alone - slope * batch)
