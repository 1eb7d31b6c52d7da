"""The search space: named dimensions, some of them conditional, and what can be drawn of them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raybench.core.spec import RunSpec

NOT_SEARCHED = (
    "checkpoint_every_s",
    "dataset",
    "exchange_gradients",
    "objective",
    "record_steps",
    "seed",
    "workload",
)
SEARCHABLE = tuple(key for key in RunSpec.model_fields if key not in NOT_SEARCHED)
"""Run-spec keys that a space may search, and that its conditions may name."""


@dataclass(frozen=True)
class Choices:
    """One of a list of values, without order."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A number between two bounds, both included; `log` samples its logarithm evenly."""

    low: float
    high: float
    log: bool
    is_integer: bool


@dataclass(frozen=True)
class Powers:
    """A power of two between two bounds, both included."""

    low: int
    high: int

    def values(self) -> tuple[int, ...]:
        """Return all of them, ascending."""
        lowest, highest = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
        return tuple(2**exponent for exponent in range(lowest, highest + 1))


Simple = Choices | Range | Powers


@dataclass(frozen=True)
class Case:
    """A dimension that holds where every key in `when` has one of its values."""

    when: tuple[tuple[str, tuple[Any, ...]], ...]
    dimension: Simple

    def holds(self, values: dict[str, Any]) -> bool:
        """Whether `values` are this case's; a key they lack has the run spec's default."""
        known = known_values({}, values)
        return all(known.get(key) in allowed for key, allowed in self.when)

    def label(self) -> str:
        """Return the condition in a few words."""
        return ",".join(f"{key}={'|'.join(map(str, allowed))}" for key, allowed in self.when)


@dataclass(frozen=True)
class Cases:
    """A dimension whose range depends on others; exactly one case holds."""

    cases: tuple[Case, ...]

    def choose(self, values: dict[str, Any]) -> Case:
        """Return the case that holds; give all that is fixed or chosen, see `known_values`."""
        for case in self.cases:
            if case.holds(values):
                return case
        known = known_values({}, values)
        shown = ", ".join(f"{key}={known.get(key)}" for key in sorted(self.keys()))
        raise ValueError(f"no case holds for {shown}")

    def keys(self) -> set[str]:
        """Return the keys that the conditions name."""
        return {key for case in self.cases for key, _ in case.when}


Dimension = Simple | Cases
Space = dict[str, Dimension]

_DEFAULTS: dict[str, Any] = {key: RunSpec.model_fields[key].default for key in SEARCHABLE}


def known_values(fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return every run-spec key's value: what is chosen, else fixed, else the default."""
    return _DEFAULTS | fixed | values


def possible_values(dimension: Dimension) -> list[Any]:
    """Return every value of a discrete dimension, or the bounds of a range."""
    if isinstance(dimension, Choices):
        return list(dimension.values)
    if isinstance(dimension, Powers):
        return list(dimension.values())
    if isinstance(dimension, Range):
        return [_number(dimension, dimension.low), _number(dimension, dimension.high)]
    return [value for case in dimension.cases for value in possible_values(case.dimension)]


def values_of(key: str, space: Space, fixed: dict[str, Any]) -> list[Any]:
    """Return every value that a run-spec key can have in a study (of a range, its bounds)."""
    return possible_values(space[key]) if key in space else [known_values(fixed, {})[key]]


def combinations(
    space: Space, fixed: dict[str, Any], keys: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """Yield what can be drawn together for `keys`, and for the keys that they depend on.

    Of a range, its bounds. Keys that are not searched have their one value.
    """
    wanted = set(keys)
    for key in reversed(space):  # a dimension depends on keys above it alone
        dimension = space[key]
        if key in wanted and isinstance(dimension, Cases):
            wanted |= dimension.keys()
    given = {key: value for key, value in known_values(fixed, {}).items() if key in wanted}
    yield from _combine(space, [key for key in space if key in wanted], given)


def _combine(space: Space, keys: list[str], chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not keys:
        yield chosen
        return
    for value in possible_values(resolve(space[keys[0]], chosen)):
        yield from _combine(space, keys[1:], chosen | {keys[0]: value})


def num_configurations(space: Space, fixed: dict[str, Any] | None = None) -> int | None:
    """Return the number of distinct configurations; None if a range makes it endless.

    `fixed` is what conditions may depend on beside the space's own keys.
    """
    conditions: set[str] = set()
    for dimension in space.values():
        if isinstance(dimension, Cases):
            conditions |= dimension.keys()
    total = 0
    for chosen in combinations(space, fixed or {}, conditions):
        # Keys that conditions name have one value here; the others multiply.
        number = 1
        for key, dimension in space.items():
            size = 1 if key in chosen else _num_values(resolve(dimension, chosen))
            if size is None:
                return None
            number *= size
        total += number
    return total


def resolve(dimension: Dimension, known: dict[str, Any]) -> Simple:
    """Return what a dimension is where `known` (see `known_values`) holds."""
    return dimension.choose(known).dimension if isinstance(dimension, Cases) else dimension


def every_value(dimension: Simple) -> Sequence[Any]:
    """Return every value of a dimension, of a range of whole numbers too; of others the bounds."""
    if isinstance(dimension, Range) and dimension.is_integer:
        return range(int(dimension.low), int(dimension.high) + 1)
    return possible_values(dimension)


def _num_values(dimension: Simple) -> int | None:
    if not isinstance(dimension, Range):
        return len(possible_values(dimension))
    return int(dimension.high) - int(dimension.low) + 1 if dimension.is_integer else None


def _number(dimension: Range, value: float) -> float | int:
    return int(value) if dimension.is_integer else float(value)
