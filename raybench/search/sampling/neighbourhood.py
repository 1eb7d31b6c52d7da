"""Which proposals are told apart, and those that lie next to the best trials."""

import math
from collections.abc import Iterator
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

RESOLUTION = 0.04
"""Share of a range within which two values are not told apart: of three decades of learning
rates, a factor of 1.3."""
STEP = 0.08
"""Share of a range to a neighbour: of three decades, a factor of 1.7; of integers at least 1."""
NUM_BEST = 3
"""Of so many best trials the neighbours are tried, those of the best first."""


def is_near(
    params: dict[str, Any], distributions: dict[str, BaseDistribution], other: FrozenTrial
) -> bool:
    """Whether two proposals differ by less than RESOLUTION in every range, and by nothing else."""
    if params.keys() != other.params.keys():
        return False
    for name, value in params.items():
        distribution, earlier = distributions[name], other.params[name]
        if not isinstance(distribution, FloatDistribution):
            if value != earlier:
                return False
        elif _distance(distribution, value, earlier) >= RESOLUTION:
            return False
    return True


def new_neighbour(trials: list[FrozenTrial], scores: dict[int, float]) -> dict[str, Any] | None:
    """Return the parameters of a neighbour of the best trials that is near to no trial.

    None if all of them were tried. `scores` are those of ended trials by number, lower is better.
    """
    ended = [trial for trial in trials if trial.number in scores]
    best = sorted(ended, key=lambda trial: scores[trial.number])[:NUM_BEST]
    for trial in best:
        for params in neighbours(trial):
            if not any(is_near(params, trial.distributions, other) for other in trials):
                return params
    return None


def neighbours(trial: FrozenTrial) -> Iterator[dict[str, Any]]:
    """Yield the trial's parameters with one number after the other a step higher, and lower."""
    for name, distribution in trial.distributions.items():
        if not isinstance(distribution, FloatDistribution | IntDistribution):
            continue
        for sign in (1, -1):
            value = _shift(distribution, trial.params[name], sign)
            if distribution.low <= value <= distribution.high:
                yield trial.params | {name: value}


def _shift(distribution: FloatDistribution | IntDistribution, value: float, sign: int) -> float:
    low, high = distribution.low, distribution.high
    if distribution.log:
        shifted = value * (high / low) ** (sign * STEP)
    else:
        shifted = value + sign * STEP * (high - low)
    if isinstance(distribution, FloatDistribution):
        return shifted
    return int(value) + sign * max(1, abs(round(shifted - value)))


def _distance(distribution: FloatDistribution, one: float, other: float) -> float:
    """Return how far two values are apart, as a share of their range."""
    scale = math.log if distribution.log else float
    width = scale(distribution.high) - scale(distribution.low)
    return abs(scale(one) - scale(other)) / width if width else 0.0
