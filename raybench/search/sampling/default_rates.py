"""First configurations: each optimizer's usual rate, carried to the batch by its scaling rule.

A space of lists is a grid: every combination of it is run once. With the time cutoff
(`search.curve_search`) and the space taken apart (`search.factorisation`) a grid costs a small part
of what it would: a trial ends once it cannot win any more, and a curve stands for all its
placements. Nothing else stops a trial early, so the best configuration is found for certain where
training and times repeat.
"""

import math
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raybench.search.factorisation import GLOBAL_BATCH, Factors
from raybench.spec.errors import UserError
from raybench.spec.run import flat
from raybench.spec.schedule import scaling_factor
from raybench.spec.space import (
    Cases,
    Range,
    Simple,
    Space,
    every_value,
    known_values,
    num_configurations,
    possible_values,
    resolve,
    values_of,
)
from raybench.spec.study import DEFAULT_TRIALS, TIME, StudySpec

BASE_RATES: Mapping[str, float] = MappingProxyType(
    {
        "adam": 1e-3,
        "radam": 1e-3,
        "lamb": 3e-3,
        "sgd": 0.03,
        "lars": 0.5,
        "adamw": 1e-3,
        # That of AdamW: updates are scaled to be as large (Liu et al. 2025, arXiv 2502.16982).
        "muon": 1e-3,
    }
)
LINEAR = ("sgd", "lars")
"""Optimizers whose rate grows with the batch (Goyal 2017, arXiv 1706.02677); that of the
others grows with its square root (You 2020, arXiv 1904.00962)."""
HASTE = 3.0
"""Factor on usual rates where seconds to a target count: these suit the accuracy at the end;
soonest at a target are the largest stable ones, about ten times as large."""
BASE_BATCH = 64
"""Global batch that `BASE_RATES` are for."""


def usual_values(
    study: StudySpec, space: Space, *, given: Mapping[str, Any] | None = None, factor: float = 1.0
) -> dict[str, Any]:
    """Return the values of the configuration that a user of the space would try first: an
    optimizer's usual rate, of other lists the first value; what is `given` as it is."""
    named = dict(given or {})
    rest = {key: one for key, one in space.items() if key not in named}
    fixed = flat(study.fixed) | named
    hints = next(iter(priors(rest, fixed, factor=factor)), {})
    values: dict[str, Any] = {}
    for key, dimension in rest.items():
        simple = resolve(dimension, known_values(fixed, hints | values))
        first = middle_of(simple) if key == "learning_rate" else possible_values(simple)[0]
        values[key] = hints.get(key, first)
    return values | named


def middle_of(dimension: Simple) -> float:
    """Return the value in the middle of a dimension of rates."""
    values: list[float] = sorted(possible_values(dimension))
    is_range = isinstance(dimension, Range)
    return math.sqrt(values[0] * values[-1]) if is_range else values[len(values) // 2]


def rate_factor(study: StudySpec) -> float:
    """Return the factor on default rates that suits a study's objective."""
    return HASTE if study.objective.kind == TIME else 1.0


def default_rate(optimizer: str, global_batch: int) -> float:
    """Return the rate to try first."""
    growth = (global_batch / BASE_BATCH) ** batch_power(optimizer)
    return float(BASE_RATES[optimizer] * growth)


def batch_power(optimizer: str) -> float:
    """Return by which power of the global batch an optimizer's rate grows; of one whose rule is
    not known the larger, which leaves out least."""
    return 0.5 if optimizer in BASE_RATES and optimizer not in LINEAR else 1.0


def priors(space: Space, fixed: dict[str, Any], *, factor: float = 1.0) -> list[dict[str, Any]]:
    """Return configurations to try first: every optimizer at two batch sizes, small ones first.

    A library's optimizer has no default rate, and none of these. Rates are `factor` times the
    default ones.

    Keys that say nothing of the rate are left out, for the sampler to choose. Without a
    searched learning rate there is nothing to know beforehand. Of a space taken apart
    (`search.factorisation`) the global batch is named, otherwise workers and batch per worker.
    """
    if "learning_rate" not in space:
        return []
    batch_key = GLOBAL_BATCH if GLOBAL_BATCH in space else "batch_size_per_worker"
    found = []
    for batch in _two_of(space, fixed, batch_key):
        optimizers = dict.fromkeys(values_of("optimizer", space, fixed))
        for number, optimizer in enumerate(one for one in optimizers if one in BASE_RATES):
            values: dict[str, Any] = {"optimizer": optimizer, batch_key: batch}
            if batch_key != GLOBAL_BATCH:
                workers = values_of("num_workers", space, fixed)
                values["num_workers"] = workers[number % len(workers)]
            values |= _conditions(space, fixed, values, number)
            known = known_values(fixed, values)
            parts = known["num_workers"] * known["accumulate"]
            rate = default_rate(optimizer, values.get(GLOBAL_BATCH) or batch * parts)
            rate *= factor / scaling_factor(known["num_workers"], known["learning_rate_scaling"])
            values["learning_rate"] = _nearest(resolve(space["learning_rate"], known), rate)
            found.append({key: value for key, value in values.items() if key in space})
    return found


def _conditions(
    space: Space, fixed: dict[str, Any], values: dict[str, Any], number: int
) -> dict[str, Any]:
    """Choose the searched keys that the rate's range depends on and that have no value yet."""
    dimension = space["learning_rate"]
    if not isinstance(dimension, Cases):
        return {}
    named = {key for case in dimension.cases for key, _ in case.when}
    chosen: dict[str, Any] = {}
    for key in space:  # in this order a key stands below those that it depends on
        if key in named and key not in values:
            known = known_values(fixed, values | chosen)
            options = possible_values(resolve(space[key], known))
            chosen[key] = options[number % len(options)]
    return chosen


def _two_of(space: Space, fixed: dict[str, Any], key: str) -> list[int]:
    """Return the values a third and two thirds into a dimension."""
    values = values_of(key, space, fixed)
    if isinstance(space.get(key), Range):
        low, high = values
        ratio = high / low
        return [round(low * ratio ** (1 / 3)), round(low * ratio ** (2 / 3))]
    ordered = sorted(values)
    return list(dict.fromkeys(ordered[round((len(ordered) - 1) * part)] for part in (1 / 3, 2 / 3)))


def _nearest(dimension: Simple, rate: float) -> float:
    if isinstance(dimension, Range):
        return min(max(rate, dimension.low), dimension.high)
    return min(possible_values(dimension), key=lambda option: abs(math.log(option / rate)))


NEARNESS = 3.0
"""Rates within this factor of the default one come first, then those within its square, ..."""


MOST_LISTED = 200_000
"""Configurations of a space that are looked for one by one; more have no end for a search."""


def check_grid(study: StudySpec, space: Space) -> None:
    """Raise UserError where sampler grid cannot list every value of the space, or has too many
    combinations."""
    if study.search.sampler != "grid":
        return
    for key, dimension in space.items():
        cases = dimension.cases if isinstance(dimension, Cases) else ()
        if any(isinstance(one, Range) for one in (dimension, *(case.dimension for case in cases))):
            raise UserError(
                f"search.sampler: grid needs lists, and space.{key} is a range; list its values, "
                "or take another sampler."
            )
    number = num_configurations(space, study.fixed)
    if number is None or number > MOST_LISTED:
        raise UserError(
            f"search.sampler: grid has {number:,} combinations here, and lists {MOST_LISTED:,} at "
            "most; shorten the lists, or take sampler random, which draws --trials of them."
        )


def grid(study: StudySpec, space: Space, factors: Factors | None = None) -> list[dict[str, Any]]:
    """Return every combination, those first that need few workers; else drawn by the seed.

    With priors, rates near the default ones come before others of as many workers. Both have one
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
        combinations.sort(key=lambda values: _remoteness(study, values))
    return sorted(combinations, key=lambda values: _num_workers(study, values, factors))


def num_trials(
    study: StudySpec, space: Space, factors: Factors | None = None, *, outside: int = 0
) -> int:
    """Return how many trials a study has: as many as asked for, as far as its space has so many;
    of a grid without a number all its combinations.

    Of a space taken apart (`factors`) each configuration may run on several placements, so that
    the end of its lists is no end for another sampler. `outside`: configurations of the user's own
    beside them.
    """
    asked, is_grid = study.search.trials, study.search.sampler == "grid"
    if factors is not None and not is_grid:
        return asked or DEFAULT_TRIALS
    size = num_configurations(space if factors is None else factors.sampled, study.fixed)
    size = None if size is None else size + outside
    if asked is None:
        asked = size if is_grid and size is not None else DEFAULT_TRIALS
    return asked if size is None else min(asked, size)


def _num_workers(study: StudySpec, values: dict[str, Any], factors: Factors | None) -> int:
    """Return the least number of workers that a combination can be run with."""
    known = known_values(study.fixed, values)
    if factors is None:
        return int(known["num_workers"])
    return min(placement.num_workers for placement in factors.of_values(known))


def _remoteness(study: StudySpec, values: dict[str, Any]) -> int:
    known = known_values(study.fixed, values)
    if known["optimizer"] not in BASE_RATES:
        return 1
    parts = known["num_workers"] * known["accumulate"]
    batch = values.get(GLOBAL_BATCH) or known["batch_size_per_worker"] * parts
    rate = default_rate(known["optimizer"], batch)
    rate *= rate_factor(study)
    return int(abs(math.log(known["learning_rate"] / rate, NEARNESS)))
