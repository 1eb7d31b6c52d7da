"""Configurations for the curve model: input vectors, random draws, neighbors of good ones."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from raybench.search.factorisation import GLOBAL_BATCH
from raybench.search.sampling.default_rates import BASE_RATES, default_rate, nearest_rate
from raybench.spec.space import (
    Cases,
    Choices,
    Dimension,
    Powers,
    Range,
    Simple,
    Space,
    is_one_of,
    known_values,
    lies_in,
    possible_values,
    resolve,
)
from raybench.spec.study import StudySpec
from raybench.spec.values import identity
from raybench.stats.curve_model import Array

Values = Mapping[str, Any]
AXIS_LENGTH = 4.0
"""Length of a numeric axis, except those of learning rate, batch size and worker count."""
RATE_FACTORS = (0.5, 0.71, 1.41, 2.0)
"""Factors on the learning rate for neighbors of good configurations."""
RANGE_STEPS = (-0.2, -0.07, 0.07, 0.2)
"""Steps to neighbors in a linear range, as fractions of the range."""
SAME_RATE = 1.2
"""Learning rates within this factor count as one configuration when runs are counted."""
WIDENING = 4.0
"""Factor by which a learning rate may lie beyond its range (`search.widen`)."""


class Axes:
    """Maps configurations to input vectors (points) of the curve model: categories, then numbers.

    The learning rate is divided by the optimizer's default rate at that batch size
    (`default_rates.default_rate`), so that the best values at different batch sizes coincide.
    """

    def __init__(self, space: Space, fixed: dict[str, Any]) -> None:
        self._fixed_values = known_values(fixed, {})
        self._categories: dict[str, dict[str, int]] = {}
        self._numbers: dict[str, tuple[float, float, bool]] = {}
        """Smallest and largest value by key, and whether the scale is logarithmic."""
        for key, dimension in space.items():
            self._add(key, dimension)

    @property
    def num_categories(self) -> int:
        """Number of categories."""
        return len(self._categories)

    @property
    def numbers(self) -> list[str]:
        """Keys of the numeric axes, in order."""
        return list(self._numbers)

    @property
    def tolerances(self) -> Array:
        """Distance on each axis within which configurations count as the same, shape [axes]."""
        rates = [math.log(SAME_RATE) if key == "learning_rate" else 0.0 for key in self._numbers]
        return 1e-9 + np.array([*[0.0] * len(self._categories), *rates])

    def point(self, values: Values) -> Array:
        """Return the point of a configuration, shape [axes]."""
        categories = [float(self._category(key, values.get(key))) for key in self._categories]
        return np.array([*categories, *(self._number(key, values) for key in self._numbers)])

    def points(self, configurations: Iterable[Values]) -> Array:
        """Return the points of configurations, shape [n, axes]."""
        return np.array([self.point(values) for values in configurations])

    def _add(self, key: str, dimension: Dimension) -> None:
        parts = parts_of(dimension)
        values = [value for part in parts for value in possible_values(part)]
        if not all(_is_number(value) for value in values):
            self._categories[key] = {}
        elif len(set(values)) > 1:
            low, high = float(min(values)), float(max(values))
            logs = [part.log for part in parts if isinstance(part, Range)]
            is_log = all(logs) if logs else high >= 8 * low
            self._numbers[key] = low, high, is_log and low > 0

    def _category(self, key: str, value: Any) -> int:
        indices = self._categories[key]
        return indices.setdefault(identity(value), len(indices))

    def _number(self, key: str, values: Values) -> float:
        value = values.get(key)
        if not _is_number(value):
            return math.nan
        low, high, is_log = self._numbers[key]
        if key == "learning_rate":
            return (
                math.log(value / default_rate_of(values, self._fixed_values))
                if value > 0
                else math.nan
            )
        if key in (GLOBAL_BATCH, "batch_size_per_worker", "num_workers"):
            return math.log(value / low)
        if is_log:
            return (
                AXIS_LENGTH * math.log(value / low) / math.log(high / low)
                if value > 0
                else math.nan
            )
        return AXIS_LENGTH * (value - low) / (high - low)


def default_rate_of(values: Values, fixed_values: Values) -> float:
    """Return the default learning rate for an optimizer and batch size; 1 if unknown.

    Args:
        values: The sampled values.
        fixed_values: Values of the keys that are not searched.
    """

    def value(key: str) -> Any:
        return values[key] if key in values else fixed_values[key]

    if (optimizer := value("optimizer")) not in BASE_RATES:
        return 1.0
    batch = values.get(GLOBAL_BATCH)
    if batch is None:
        batch = value("batch_size_per_worker") * value("num_workers") * value("accumulate")
    return default_rate(optimizer, batch)


class ConfigurationSpace:
    """Draws random configurations of a space, and lists the neighbors of good ones.

    Args:
        space: The sampled space.
        fixed_values: Values of the keys that are not searched.
        rng: Random number generator.
        widen: Whether learning rates may lie up to a factor of WIDENING outside of their range.
    """

    def __init__(
        self,
        space: Space,
        fixed_values: dict[str, Any],
        rng: np.random.Generator,
        *,
        widen: bool = False,
    ) -> None:
        self._space, self._fixed_values, self._rng, self._widen = space, fixed_values, rng, widen

    def draw(self, given: Values | None = None) -> dict[str, Any]:
        """Return a random configuration, uniform on the scale of each range.

        Args:
            given: Values to keep, also for the ranges that depend on them.
        """
        values: dict[str, Any] = {}
        for key, dimension in self._space.items():
            if given is not None and key in given:
                values[key] = given[key]
            else:
                simple = resolve(dimension, {**self._fixed_values, **values})
                values[key] = _draw_one(simple, self._rng)
        return values

    def lies_inside(self, values: Values) -> bool:
        """Return whether each value lies in its dimension, given the other values."""
        all_values = {**self._fixed_values, **values}
        return all(
            lies_in(key, self._simple(key, all_values), values[key], all_values)
            for key in self._space
        )

    def _simple(self, key: str, other_values: dict[str, Any]) -> Simple:
        """Return the dimension of a key given other values; `widen` widens the learning rate's."""
        simple = resolve(self._space[key], other_values)
        if key == "learning_rate" and self._widen and isinstance(simple, Range):
            low = simple.low / WIDENING if simple.log else simple.low
            return replace(simple, low=low, high=simple.high * WIDENING)
        return simple

    def around(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Return configurations that differ from `values` in one key. With another batch size, also
        return one with the learning rate changed by the scaling rule."""
        neighbors = []
        for key in self._space:
            simple = self._simple(key, {**self._fixed_values, **values})
            if isinstance(simple, Range):
                neighbors += [
                    values | {key: neighbor} for neighbor in _neighbors_of(simple, values[key])
                ]
                continue
            options = list(possible_values(simple))
            index = next(
                i for i, option in enumerate(options) if is_one_of(key, values[key], [option])
            )
            for other in (index - 1, index + 1):
                if 0 <= other < len(options):
                    neighbor = values | {key: options[other]}
                    neighbors.append(neighbor)
                    if key in (GLOBAL_BATCH, "batch_size_per_worker"):
                        neighbors += self._with_its_rate(values, neighbor)
        return [neighbor for neighbor in neighbors if self.lies_inside(neighbor)]

    def _with_its_rate(
        self, values: dict[str, Any], neighbor: dict[str, Any]
    ) -> list[dict[str, Any]]:
        if "learning_rate" not in values:
            return []
        ratio = default_rate_of(neighbor, self._fixed_values) / default_rate_of(
            values, self._fixed_values
        )
        simple = self._simple("learning_rate", {**self._fixed_values, **neighbor})
        rate = nearest_rate(simple, values["learning_rate"] * ratio)
        return [neighbor | {"learning_rate": rate}]


def widens(study: StudySpec, space: Space) -> bool:
    """Return whether learning rates outside their range may be tried (`search.widen`)."""
    parts = parts_of(space["learning_rate"]) if "learning_rate" in space else []
    is_range = any(isinstance(part, Range) for part in parts)
    return is_range and study.search.widen and study.search.sampler == "model"


def parts_of(dimension: Dimension) -> list[Simple]:
    """Return the dimension of each case; without cases, the dimension itself."""
    if isinstance(dimension, Cases):
        return [case.dimension for case in dimension.cases]
    return [dimension]


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draw_one(simple: Simple, rng: np.random.Generator) -> Any:
    if isinstance(simple, Choices | Powers):
        options = simple.values if isinstance(simple, Choices) else simple.values()
        return options[int(rng.integers(len(options)))]
    share, half = float(rng.random()), 0.5 * simple.is_integer
    low, high = simple.low - half, simple.high + half
    value = low * (high / low) ** share if simple.log and low > 0 else low + share * (high - low)
    return _nearest_in_range(simple, value)


def _nearest_in_range(simple: Range, value: float) -> int | float:
    """Return the value of a range that is nearest to `value`."""
    if simple.is_integer:
        return int(min(max(round(value), simple.low), simple.high))
    return float(min(max(float(f"{value:.12g}"), simple.low), simple.high))


def _neighbors_of(simple: Range, value: Any) -> list[Any]:
    """Return neighbors of a value in a range."""
    if not _is_number(value):
        return []
    if simple.log:
        return [_nearest_in_range(simple, value * step) for step in RATE_FACTORS]
    return [
        _nearest_in_range(simple, value + part * (simple.high - simple.low)) for part in RANGE_STEPS
    ]
