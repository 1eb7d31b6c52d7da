"""Candidate configurations for the curve model: random draws, neighbors, and input vectors.

The curve model (`stats/curve_model.py`) predicts learning curves. `ConfigurationSpace` generates
the configurations that the model ranks, and `Axes` converts them to its input vectors.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from raybench.search.factorisation import GLOBAL_BATCH
from raybench.search.sampling.default_rates import default_rate_of, nearest_rate
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
from raybench.spec.study import WIDENING
from raybench.spec.text import identity
from raybench.stats.curve_model import Array

Values = Mapping[str, Any]
AXIS_LENGTH = 4.0
"""Length to which a numeric axis is scaled. The axes of learning rate, batch size and worker count
are natural logarithms and are not scaled."""
RATE_FACTORS = (0.5, 0.71, 1.41, 2.0)
"""Factors by which a value on a logarithmic range, such as the learning rate, is multiplied to get
the neighbors of a configuration."""
RANGE_STEPS = (-0.2, -0.07, 0.07, 0.2)
"""Fractions of a linear range by which a value is shifted to get the neighbors of a
configuration."""
SAME_RATE = 1.2
"""Largest factor by which the learning rates of two runs of the same configuration may differ."""


class Axes:
    """Converts configurations to points, the input vectors of the curve model.

    A point has first one integer per categorical key, then one coordinate per numeric key. The
    learning rate is divided by the optimizer's default rate at that batch size
    (`default_rates.default_rate`), so that the best coordinates at different batch sizes coincide.

    Args:
        space: The sampled space.
        fixed: Values of the keys that are not searched.
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
        """Number of categorical keys."""
        return len(self._categories)

    @property
    def numbers(self) -> list[str]:
        """Numeric keys, in the order of their coordinates."""
        return list(self._numbers)

    @property
    def tolerances(self) -> Array:
        """Largest distance along each axis at which configurations count as equal, shape [axes]."""
        rates = [math.log(SAME_RATE) if key == "learning_rate" else 0.0 for key in self._numbers]
        return 1e-9 + np.array([*[0.0] * len(self._categories), *rates])

    def point(self, values: Values) -> Array:
        """Return the point of a configuration, shape [axes]."""
        categories = [float(self._category(key, values.get(key))) for key in self._categories]
        return np.array([*categories, *(self._number(key, values) for key in self._numbers)])

    def points(self, configurations: Iterable[Values]) -> Array:
        """Return one point per configuration, shape [n, axes]."""
        return np.array([self.point(values) for values in configurations])

    def _add(self, key: str, dimension: Dimension) -> None:
        values = possible_values(dimension)
        if not all(_is_number(value) for value in values):
            self._categories[key] = {}
        elif len(set(values)) > 1:
            low, high = float(min(values)), float(max(values))
            parts: list[Simple] = (
                [case.dimension for case in dimension.cases]
                if isinstance(dimension, Cases)
                else [dimension]
            )
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
        if key in (GLOBAL_BATCH, "batch_size_per_worker", "num_workers") and low > 0:
            return math.log(value / low)
        if is_log:
            return (
                AXIS_LENGTH * math.log(value / low) / math.log(high / low)
                if value > 0
                else math.nan
            )
        return AXIS_LENGTH * (value - low) / (high - low)


class ConfigurationSpace:
    """Draws random configurations from a space, and lists the neighbors of good configurations.

    Args:
        space: The sampled space.
        fixed_values: Values of the keys that are not searched.
        rng: Random number generator.
        widen: Whether neighbors may have learning rates outside their range, by up to a factor of
            WIDENING.
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
        """Return a random configuration, uniform on the linear or log scale of each range.

        Args:
            given: Values to keep; only the other keys are drawn, from the ranges that apply to
                these values.
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
        """Return whether a configuration lies in the space (widened if `widen` is set)."""
        all_values = {**self._fixed_values, **values}
        return all(
            lies_in(key, self._simple(key, all_values), values[key], all_values)
            for key in self._space
        )

    def _simple(self, key: str, other_values: dict[str, Any]) -> Simple:
        """Return the list or range of a key for given values of the other keys.

        The range of the learning rate is widened if `widen` is set.
        """
        simple = resolve(self._space[key], other_values)
        if key == "learning_rate" and self._widen and isinstance(simple, Range):
            low = simple.low / WIDENING if simple.log else simple.low
            return replace(simple, low=low, high=simple.high * WIDENING)
        return simple

    def around(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the neighbors of a configuration: each differs in the value of one key.

        A neighbor with another batch size is followed by one that also has the learning rate scaled
        to that batch size.
        """
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
                        neighbors += self._with_scaled_rate(values, neighbor)
        return [neighbor for neighbor in neighbors if self.lies_inside(neighbor)]

    def _with_scaled_rate(
        self, values: dict[str, Any], neighbor: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return `neighbor` with the learning rate of `values` scaled to its batch size.

        The list is empty if the learning rate is not searched.
        """
        if "learning_rate" not in values:
            return []
        ratio = default_rate_of(neighbor, self._fixed_values) / default_rate_of(
            values, self._fixed_values
        )
        simple = self._simple("learning_rate", {**self._fixed_values, **neighbor})
        rate = nearest_rate(simple, values["learning_rate"] * ratio)
        return [neighbor | {"learning_rate": rate}]


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
    """Return values of a range near a given value; [] if the value is not a number."""
    if not _is_number(value):
        return []
    if simple.log:
        return [_nearest_in_range(simple, value * step) for step in RATE_FACTORS]
    return [
        _nearest_in_range(simple, value + part * (simple.high - simple.low)) for part in RANGE_STEPS
    ]
