"""Which proposals are told apart, and those that lie next to the best trials."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from raybench.search.policy import DEFAULT, SearchPolicy

IsTried = Callable[[dict[str, Any], dict[str, BaseDistribution]], bool]
"""Whether parameters with these distributions are near to those of a trial."""


def is_near(
    params: dict[str, Any],
    distributions: dict[str, BaseDistribution],
    other: FrozenTrial,
    policy: SearchPolicy = DEFAULT,
) -> bool:
    """Whether two proposals differ by less than the policy's resolution in every range, and by
    nothing else."""
    if params.keys() != other.params.keys():
        return False
    for name, value in params.items():
        distribution, earlier = distributions[name], other.params[name]
        if not isinstance(distribution, FloatDistribution):
            if value != earlier:
                return False
        elif _distance(distribution, value, earlier) >= policy.resolution:
            return False
    return True


def new_neighbour(
    best: Iterable[FrozenTrial], is_tried: IsTried, policy: SearchPolicy = DEFAULT
) -> dict[str, Any] | None:
    """Return the parameters of a neighbour of the best trials, best first, that is not tried.

    None if all of them were.
    """
    for trial in best:
        for params in neighbours(trial, policy):
            if not is_tried(params, trial.distributions):
                return params
    return None


def neighbours(trial: FrozenTrial, policy: SearchPolicy = DEFAULT) -> Iterator[dict[str, Any]]:
    """Yield the trial's parameters with one number after the other a step higher, and lower."""
    for name, distribution in trial.distributions.items():
        if not isinstance(distribution, FloatDistribution | IntDistribution):
            continue
        for sign in (1, -1):
            value = _shift(distribution, trial.params[name], sign * policy.step)
            if distribution.low <= value <= distribution.high:
                yield trial.params | {name: value}


def _shift(distribution: FloatDistribution | IntDistribution, value: float, by: float) -> float:
    """Return the value moved by a share of its range; an integer by at least 1."""
    low, high = distribution.low, distribution.high
    shifted = value * (high / low) ** by if distribution.log else value + by * (high - low)
    if isinstance(distribution, FloatDistribution):
        return shifted
    return int(value) + int(math.copysign(max(1, abs(round(shifted - value))), by))


def position(distribution: FloatDistribution, value: float) -> float:
    """Return where a value lies in its range, as a share of it."""
    scale = math.log if distribution.log else float
    width = scale(distribution.high) - scale(distribution.low)
    return (scale(value) - scale(distribution.low)) / width if width else 0.0


def _distance(distribution: FloatDistribution, one: float, other: float) -> float:
    """Return how far two values are apart, as a share of their range."""
    scale = math.log if distribution.log else float
    width = scale(distribution.high) - scale(distribution.low)
    return abs(scale(one) - scale(other)) / width if width else 0.0
