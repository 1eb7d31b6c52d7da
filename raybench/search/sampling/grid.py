"""Every combination of a space of lists, each run once.

With the cap (`search.asha`) and the space taken apart (`speed.factorisation`) a grid costs a
small part of what it would: a trial ends once it cannot win any more, and a curve stands for all
its placements. Nothing else stops a trial early, so the best configuration is found for certain
where training and times repeat themselves.
"""

import math
import random
from typing import Any

from raybench.core.errors import UserError
from raybench.core.space import Cases, Range, Space, every_value, known_values, resolve
from raybench.core.study import StudySpec
from raybench.search.policy import DEFAULT, SearchPolicy
from raybench.search.sampling.default_rates import rate_factor, usual_rate
from raybench.speed.factorisation import GLOBAL_BATCH, Factors

NEARNESS = 3.0
"""Rates within this factor of the usual one come first, then those within its square, ..."""


def check_grid(study: StudySpec, space: Space) -> None:
    """Raise UserError where sampler grid cannot list every value of the space."""
    if study.search.sampler != "grid":
        return
    for key, dimension in space.items():
        cases = dimension.cases if isinstance(dimension, Cases) else ()
        if any(isinstance(one, Range) for one in (dimension, *(case.dimension for case in cases))):
            raise UserError(
                f"search.sampler: grid needs lists, and space.{key} is a range; list its values, "
                "or take another sampler."
            )


def grid(
    study: StudySpec,
    space: Space,
    factors: Factors | None = None,
    policy: SearchPolicy = DEFAULT,
) -> list[dict[str, Any]]:
    """Return every combination, those first that need few workers; else drawn by the seed.

    With priors, rates near the usual ones come before others of as many workers. Both have one
    reason: a good time that is known early, and found by cheap trials, lets the cap end the
    dear ones sooner. `factors` is given where `space` is what they leave to sample.
    """
    combinations: list[dict[str, Any]] = [{}]
    for key, dimension in space.items():
        combinations = [
            values | {key: value}
            for values in combinations
            for value in every_value(resolve(dimension, known_values(study.fixed, values)))
        ]
    random.Random(study.search.seed).shuffle(combinations)
    if study.search.priors and "learning_rate" in space:
        combinations.sort(key=lambda values: _remoteness(study, values, policy))
    return sorted(combinations, key=lambda values: _num_workers(study, values, factors))


def num_trials(study: StudySpec, space: Space) -> int:
    """Return how many trials a study has: the grid's, or as many as asked for."""
    return len(grid(study, space)) if study.search.sampler == "grid" else study.search.trials


def _num_workers(study: StudySpec, values: dict[str, Any], factors: Factors | None) -> int:
    """Return the least number of workers that a combination can be run with."""
    known = known_values(study.fixed, values)
    if factors is None:
        return int(known["num_workers"])
    return min(placement.num_workers for placement in factors.of_values(known))


def _remoteness(study: StudySpec, values: dict[str, Any], policy: SearchPolicy) -> int:
    known = known_values(study.fixed, values)
    batch = values.get(GLOBAL_BATCH) or known["batch_size_per_worker"] * known["num_workers"]
    usual = usual_rate(known["optimizer"], batch * known["accumulate"], policy)
    usual *= rate_factor(study, policy)
    return int(abs(math.log(known["learning_rate"] / usual, NEARNESS)))
