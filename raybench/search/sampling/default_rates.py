"""First configurations of a search: the user's own (`search.first`), the default learning rate of
each optimizer, and grids.

A grid runs every combination of the listed values once. A trial is stopped only once it can no
longer win (`curve_search`), so if training and times are reproducible, a grid finds the best
configuration exactly. In a factorized space, one trial represents all placements (framework,
workers, ...) with its global batch size.
"""

import math
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raybench.search.factorisation import GLOBAL_BATCH, Factors
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import TIME
from raybench.spec.run import RunSpec, flat, value_of
from raybench.spec.schedule import scaling_factor
from raybench.spec.space import (
    Cases,
    Range,
    Simple,
    Space,
    every_value,
    has_range,
    known_values,
    lies_in,
    num_configurations,
    possible_values,
    resolve,
    values_of,
)
from raybench.spec.study import DEFAULT_TRIALS, StudySpec
from raybench.spec.text import identity

BASE_RATES: Mapping[str, float] = MappingProxyType(
    {
        "adam": 1e-3,
        "radam": 1e-3,
        "lamb": 3e-3,
        "sgd": 0.03,
        "lars": 0.5,
        "adamw": 1e-3,
        # As for AdamW: updates are scaled to the same size (Liu et al. 2025, arXiv 2502.16982).
        "muon": 1e-3,
    }
)
LINEAR = ("sgd", "lars")
"""Optimizers whose learning rate scales linearly with the batch size (Goyal 2017, arXiv
1706.02677). The learning rates of the others scale with its square root (You 2020, arXiv
1904.00962)."""
HASTE = 3.0
"""Factor on default learning rates if the objective is time to target. The defaults give the best
final accuracy, but a target is reached fastest with the largest stable rates, which are up to ten
times as large."""
BASE_BATCH = 64
"""Global batch size to which `BASE_RATES` applies."""


def typical_values(
    study: StudySpec, space: Space, *, given: Mapping[str, Any] | None = None, factor: float = 1.0
) -> dict[str, Any]:
    """Return a typical configuration of a space.

    It has the default learning rate of its optimizer. Every other key has its given value, else a
    typical value, else its first possible value.

    Args:
        study: The study.
        space: The search space.
        given: Values to keep, by key.
        factor: Factor on the default learning rate.

    Returns:
        Values by key: all searched keys and all given ones.
    """
    given_values = dict(given or {})
    other_dimensions = {
        key: dimension for key, dimension in space.items() if key not in given_values
    }
    fixed = flat(study.fixed) | given_values
    hints = next(iter(initial_configurations(other_dimensions, fixed, factor=factor)), {})
    values: dict[str, Any] = {}
    for key, dimension in other_dimensions.items():
        simple = resolve(dimension, known_values(fixed, hints | values))
        first = _middle_of(simple) if key == "learning_rate" else possible_values(simple)[0]
        values[key] = hints.get(key, first)
    return values | given_values


def _middle_of(dimension: Simple) -> float:
    """Return the middle value of a list of learning rates, or the geometric middle of a range."""
    values: list[float] = sorted(possible_values(dimension))
    is_range = isinstance(dimension, Range)
    return math.sqrt(values[0] * values[-1]) if is_range else values[len(values) // 2]


def first_specs(study: StudySpec, space: Space) -> dict[str, RunSpec]:
    """Return the run specs of the configurations in `search.first`, in the same order.

    These configurations run before all others and may lie outside the space. A searched key without
    a value gets one from a typical configuration (`typical_values`).

    Returns:
        Run specs by the `identity` of the values that the user set.

    Raises:
        UserError: A configuration is invalid.
    """
    specs = {}
    for number, given in enumerate(study.search.first):
        try:
            values = typical_values(study, space, given=flat(given))
            specs[identity(given)] = study.run_spec(values)
        except ValueError as problem:  # includes UserError
            reason = str(problem).removeprefix("configuration: ").rstrip(".")
            code = problem.code if isinstance(problem, UserError) else ErrorCode.INVALID_VALUE
            raise UserError(f"search.first[{number}]: {reason}.", code) from None
    return specs


def num_outside(study: StudySpec, space: Space) -> int:
    """Return how many configurations of `search.first` lie outside the space or contradict the
    study's fixed values."""
    number = 0
    for spec in first_specs(study, space).values():
        values: dict[str, Any] = {key: value_of(spec, key) for key in space}
        all_values = known_values(study.fixed, values)
        is_inside = all(
            lies_in(key, space[key], value, all_values) for key, value in values.items()
        )
        number += not (is_inside and study.run_spec(values, seed=spec.seed) == spec)
    return number


def rate_factor(study: StudySpec) -> float:
    """Return the factor on default learning rates that suits the objective of a study."""
    return HASTE if study.objective.kind == TIME else 1.0


def default_rate(optimizer: str, global_batch: float) -> float:
    """Return the default learning rate of an optimizer at a global batch size."""
    growth = (global_batch / BASE_BATCH) ** batch_power(optimizer)
    return float(BASE_RATES[optimizer] * growth)


def default_rate_of(values: Mapping[str, Any], fixed_values: Mapping[str, Any]) -> float:
    """Return the default learning rate of a configuration's optimizer at its global batch size.

    The result is 1 for an optimizer without a known default.

    Args:
        values: The sampled values.
        fixed_values: Values of the keys that are not searched.
    """

    def value(key: str) -> Any:
        return values[key] if key in values else fixed_values[key]

    if (optimizer := value("optimizer")) not in BASE_RATES:
        return 1.0
    keys = ("batch_size_per_worker", "num_workers", "accumulate")
    sizes = map(value, (GLOBAL_BATCH,) if GLOBAL_BATCH in values else keys)
    # In the user's own Optuna study, a name may have another meaning, such as 0 loader workers.
    counts = [size if isinstance(size, int | float) and size > 0 else 1 for size in sizes]
    return default_rate(optimizer, math.prod(counts))


def batch_power(optimizer: str) -> float:
    """Return the exponent p by which an optimizer's learning rate scales: rate ~ batch size ** p.

    The exponent is 1 for an optimizer without a known default.
    """
    return 0.5 if optimizer in BASE_RATES and optimizer not in LINEAR else 1.0


def initial_configurations(
    space: Space, fixed: dict[str, Any], *, factor: float = 1.0
) -> list[dict[str, Any]]:
    """Return good configurations for the first trials: each optimizer at two batch sizes, with its
    default learning rate. The smaller batch sizes come first.

    Args:
        space: The sampled space; with GLOBAL_BATCH if it is factorized.
        fixed: Values of the keys that are not searched.
        factor: Factor on the default learning rates.

    Returns:
        Values by key: optimizer, batch size, learning rate and the keys on which these depend; the
        sampler chooses the other keys. Empty if the learning rate is not searched. Optimizers from
        a library are left out, since they have no default learning rate.
    """
    if "learning_rate" not in space:
        return []
    batch_key = GLOBAL_BATCH if GLOBAL_BATCH in space else "batch_size_per_worker"
    configurations = []
    for batch in _two_values(space, fixed, batch_key):
        optimizers = dict.fromkeys(values_of("optimizer", space, fixed))
        for number, optimizer in enumerate(name for name in optimizers if name in BASE_RATES):
            values: dict[str, Any] = {"optimizer": optimizer, batch_key: batch}
            if batch_key != GLOBAL_BATCH:
                workers = values_of("num_workers", space, fixed)
                values["num_workers"] = workers[number % len(workers)]
            values |= _conditions(space, fixed, values, number)
            all_values = known_values(fixed, values)
            parts = all_values["num_workers"] * all_values["accumulate"]
            rate = default_rate(optimizer, values.get(GLOBAL_BATCH) or batch * parts)
            rate *= factor / scaling_factor(
                all_values["num_workers"], all_values["learning_rate_scaling"]
            )
            values["learning_rate"] = nearest_rate(
                resolve(space["learning_rate"], all_values), rate
            )
            configurations.append({key: value for key, value in values.items() if key in space})
    return configurations


def _conditions(
    space: Space, fixed: dict[str, Any], values: dict[str, Any], number: int
) -> dict[str, Any]:
    """Return values for those keys that the range of the learning rate depends on and that are
    missing in `values`.

    The number of the configuration determines which of the possible values is used.
    """
    dimension = space["learning_rate"]
    if not isinstance(dimension, Cases):
        return {}
    conditions = {key for case in dimension.cases for key, _ in case.when}
    chosen: dict[str, Any] = {}
    for key in space:  # ordered so that a key follows those it depends on
        if key in conditions and key not in values:
            all_values = known_values(fixed, values | chosen)
            options = possible_values(resolve(space[key], all_values))
            chosen[key] = options[number % len(options)]
    return chosen


def _two_values(space: Space, fixed: dict[str, Any], key: str) -> list[int]:
    """Return the values at one third and two thirds of the sorted values of a key, or of its range
    on a log scale."""
    values = values_of(key, space, fixed)
    if isinstance(space.get(key), Range):
        low, high = values
        ratio = high / low
        return [round(low * ratio ** (1 / 3)), round(low * ratio ** (2 / 3))]
    ordered = sorted(values)
    return list(dict.fromkeys(ordered[round((len(ordered) - 1) * part)] for part in (1 / 3, 2 / 3)))


def nearest_rate(dimension: Simple, rate: float) -> float:
    """Return the possible learning rate that is nearest to `rate` on a log scale."""
    if isinstance(dimension, Range):
        return min(max(rate, dimension.low), dimension.high)
    return min(possible_values(dimension), key=lambda option: abs(math.log(option / rate)))


NEARNESS = 3.0
"""Factor that divides learning rates into groups. At each worker count, a grid first runs the rates
within this factor of the default rate, then those within its square, and so on."""
MOST_LISTED = 200_000
"""Largest number of configurations in a space that is enumerated. A larger space is treated as
infinite."""


def check_grid(study: StudySpec, space: Space) -> None:
    """Check that `search.sampler: grid` can enumerate the space.

    Raises:
        UserError: A key is a range, or there are too many combinations.
    """
    if study.search.sampler != "grid":
        return
    for key, dimension in space.items():
        if has_range(dimension):
            raise UserError(
                f"search.sampler: grid needs lists, but space.{key} is a range; list its values, "
                "or use another sampler.",
                ErrorCode.CONFLICT,
            )
    number = num_configurations(space, study.fixed)
    if number is None or number > MOST_LISTED:
        raise UserError(
            f"search.sampler: grid has {number:,} combinations here, more than the limit of "
            f"{MOST_LISTED:,}; shorten the lists, or use sampler random, which draws --trials of "
            "them.",
            ErrorCode.INVALID_VALUE,
        )


def grid(study: StudySpec, space: Space, factors: Factors | None = None) -> list[dict[str, Any]]:
    """Return every combination of the listed values, in the order in which they run.

    Combinations are sorted by worker count, then (with `search.priors`) by distance from the
    default learning rate; equal ones are in random order. Cheap trials come first, because
    expensive trials can be stopped sooner once a cheap one has reached the target.

    Args:
        study: The study.
        space: The sampled space.
        factors: The factorized space; None if the space is sampled as a whole.
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
        combinations.sort(key=lambda values: _rate_distance(study, values))
    return sorted(combinations, key=lambda values: _num_workers(study, values, factors))


def num_trials(
    study: StudySpec, space: Space, factors: Factors | None = None, *, outside: int = 0
) -> int:
    """Return the number of trials of a study: `search.trials`, limited by the size of the space.

    A grid without `search.trials` runs all its combinations. In a factorized space a configuration
    may run on several placements, so only a grid is limited by the size of the space.

    Args:
        study: The study.
        space: Search space of the study.
        factors: The factorized space; None if the space is sampled as a whole.
        outside: Number of configurations of `search.first` outside the space.
    """
    number, is_grid = study.search.trials, study.search.sampler == "grid"
    if factors is not None and not is_grid:
        return number or DEFAULT_TRIALS
    size = num_configurations(space if factors is None else factors.sampled, study.fixed)
    size = None if size is None else size + outside
    if number is None:
        number = size if is_grid and size is not None else DEFAULT_TRIALS
    return number if size is None else min(number, size)


def _num_workers(study: StudySpec, values: dict[str, Any], factors: Factors | None) -> int:
    """Return the smallest worker count on which a combination can run."""
    all_values = known_values(study.fixed, values)
    if factors is None:
        return int(all_values["num_workers"])
    return min(placement.num_workers for placement in factors.placements_for(all_values))


def _rate_distance(study: StudySpec, values: dict[str, Any]) -> int:
    """Return the number of the group of learning rates to which a combination belongs; see
    NEARNESS."""
    all_values = known_values(study.fixed, values)
    if all_values["optimizer"] not in BASE_RATES:
        return 1
    rate = rate_factor(study) * default_rate_of(values, all_values)
    return int(abs(math.log(all_values["learning_rate"] / rate, NEARNESS)))
