"""Where to look first: each optimizer's usual rate, carried to the batch by its scaling rule."""

import math
from typing import Any

from raybench.core.space import (
    Cases,
    Choices,
    Powers,
    Range,
    Simple,
    Space,
    known_values,
    possible_values,
)
from raybench.core.spec import RunSpec
from raybench.core.study import TIME, StudySpec
from raybench.speed.factorisation import GLOBAL_BATCH

BASE_BATCH = 64
BASE_RATES = {"adam": 1e-3, "radam": 1e-3, "lamb": 3e-3, "sgd": 0.03, "lars": 0.5}
"""Usual rates at a global batch of 64."""
LINEAR = ("sgd", "lars")
"""Optimizers whose rate grows with the batch (Goyal 2017, arXiv 1706.02677); that of the
others grows with its square root (You 2020, arXiv 1904.00962)."""


HASTE = 3.0
"""Factor on usual rates where seconds to a target count. These are usual for the accuracy at
the end; soonest at a target are the largest stable ones, about ten times as large."""


def rate_factor(study: StudySpec) -> float:
    """Return the factor on usual rates that suits a study's objective."""
    return HASTE if study.objective.kind == TIME else 1.0


def usual_rate(optimizer: str, global_batch: int) -> float:
    """Return the rate to try first."""
    return float(BASE_RATES[optimizer] * (global_batch / BASE_BATCH) ** batch_power(optimizer))


def batch_power(optimizer: str) -> float:
    """Return by which power of the global batch an optimizer's rate grows."""
    return 1.0 if optimizer in LINEAR else 0.5


def priors(space: Space, fixed: dict[str, Any], *, factor: float = 1.0) -> list[dict[str, Any]]:
    """Return configurations to try first: every optimizer at two batch sizes, small ones first.

    Rates are `factor` times the usual ones.

    Keys that say nothing of the rate are left out, for the sampler to choose. Without a
    searched learning rate there is nothing to know beforehand. Of a space taken apart
    (`factor.py`) the global batch is named, otherwise workers and batch per worker.
    """
    if "learning_rate" not in space:
        return []
    batch_key = GLOBAL_BATCH if GLOBAL_BATCH in space else "batch_size_per_worker"
    found = []
    for batch in _two_of(space, fixed, batch_key):
        for number, optimizer in enumerate(_values(space, fixed, "optimizer")):
            values: dict[str, Any] = {"optimizer": optimizer, batch_key: batch}
            if batch_key != GLOBAL_BATCH:
                workers = _values(space, fixed, "num_workers")
                values["num_workers"] = workers[number % len(workers)]
            values |= _conditions(space, fixed, values, number)
            known = known_values(fixed, values)
            samples = values.get(GLOBAL_BATCH) or batch * known["num_workers"]
            rate = usual_rate(optimizer, samples * known["accumulate"])
            rate *= factor / _own_scaling(known)
            values["learning_rate"] = _nearest(_simple(space["learning_rate"], known), rate)
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
            one = space[key]
            if isinstance(one, Cases):
                one = one.choose(known_values(fixed, values | chosen)).dimension
            options = possible_values(one)
            chosen[key] = options[number % len(options)]
    return chosen


def _own_scaling(known: dict[str, Any]) -> float:
    """Return what the run spec itself multiplies the rate by."""
    powers = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}
    return float(known["num_workers"] ** powers[known["learning_rate_scaling"]])


def _two_of(space: Space, fixed: dict[str, Any], key: str) -> list[int]:
    """Return the values a third and two thirds into a dimension."""
    values = _values(space, fixed, key)
    if isinstance(space.get(key), Range):
        low, high = values
        ratio = high / low
        return [round(low * ratio ** (1 / 3)), round(low * ratio ** (2 / 3))]
    ordered = sorted(values)
    return list(dict.fromkeys(ordered[round((len(ordered) - 1) * part)] for part in (1 / 3, 2 / 3)))


def _values(space: Space, fixed: dict[str, Any], key: str) -> list[Any]:
    if key in space:
        return possible_values(space[key])
    return [fixed.get(key, _defaults()[key])]


def _defaults() -> dict[str, Any]:
    return {name: field.default for name, field in RunSpec.model_fields.items()}


def _simple(dimension: Any, known: dict[str, Any]) -> Simple:
    return dimension.choose(known).dimension if isinstance(dimension, Cases) else dimension


def _nearest(dimension: Simple, rate: float) -> float:
    if isinstance(dimension, Range):
        return min(max(rate, dimension.low), dimension.high)
    assert isinstance(dimension, Choices | Powers)
    options = dimension.values() if isinstance(dimension, Powers) else dimension.values
    return min(options, key=lambda option: abs(math.log(option / rate)))
