"""The search space: named dimensions, some of them conditional, and their validation."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from raybench.core.documents import validate
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec

NOT_SEARCHED = ("dataset", "objective", "seed", "workload")


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
        """Whether the values chosen so far are this case's."""
        return all(values.get(key) in allowed for key, allowed in self.when)

    def label(self) -> str:
        """Return the condition in a few words."""
        return ",".join(f"{key}={'|'.join(map(str, allowed))}" for key, allowed in self.when)


@dataclass(frozen=True)
class Cases:
    """A dimension whose range depends on others; exactly one case holds."""

    cases: tuple[Case, ...]

    def choose(self, values: dict[str, Any]) -> Case:
        """Return the case that holds."""
        return next(case for case in self.cases if case.holds(values))


Dimension = Simple | Cases
Space = dict[str, Dimension]


def parse_space(raw: dict[str, Any], fixed: dict[str, Any], source: str) -> Space:
    """Read the `space:` part of a file; UserError names the key and what is allowed.

    Dimensions may depend on those above them in the file and on fixed keys.
    """
    space: Space = {}
    for key, content in raw.items():
        where = f"{source}: 'space.{key}'"
        if key in NOT_SEARCHED or key not in RunSpec.model_fields:
            allowed = [name for name in RunSpec.model_fields if name not in NOT_SEARCHED]
            raise UserError(f"{where}: cannot be searched; allowed are {', '.join(allowed)}.")
        if key in fixed:
            raise UserError(f"{where}: also stands under 'fixed'; keep one of the two.")
        space[key] = _parse_dimension(content, key, where)
        _check_values(key, space[key], where)
        _check_conditions(space[key], space, fixed, where)
    return space


def possible_values(dimension: Dimension) -> list[Any]:
    """Return every value of a discrete dimension, or the bounds of a range."""
    if isinstance(dimension, Choices):
        return list(dimension.values)
    if isinstance(dimension, Powers):
        return list(dimension.values())
    if isinstance(dimension, Range):
        return [_number(dimension, dimension.low), _number(dimension, dimension.high)]
    return [value for case in dimension.cases for value in possible_values(case.dimension)]


def num_configurations(space: Space) -> int | None:
    """Return the number of distinct configurations; None if a range makes it endless."""
    sizes = []
    for dimension in space.values():
        if isinstance(dimension, Range | Cases):
            return None
        sizes.append(len(possible_values(dimension)))
    return math.prod(sizes)


def _parse_dimension(content: Any, key: str, where: str) -> Dimension:
    if (
        isinstance(content, list)
        and content
        and all(isinstance(item, dict) and "when" in item for item in content)
    ):
        return Cases(tuple(_parse_case(item, key, where) for item in content))
    return _parse_simple(content, key, where)


def _parse_case(item: dict[str, Any], key: str, where: str) -> Case:
    when = item["when"]
    if not isinstance(when, dict) or not when:
        raise UserError(f"{where}: 'when' must name a key and its values, as optimizer: [adam].")
    rest = {key: value for key, value in item.items() if key != "when"}
    simple = _parse_simple(rest.get("values") if set(rest) == {"values"} else rest, key, where)
    conditions = tuple(
        (other, tuple(allowed) if isinstance(allowed, list) else (allowed,))
        for other, allowed in when.items()
    )
    return Case(conditions, simple)


def _parse_simple(content: Any, key: str, where: str) -> Simple:
    if isinstance(content, dict):
        return _parse_range(content, key, where)
    values = content if isinstance(content, list) else [content]
    if not values:
        raise UserError(f"{where}: the list is empty; name at least one value.")
    if len({repr(value) for value in values}) < len(values):
        raise UserError(f"{where}: a value stands there twice; name each once.")
    return Choices(tuple(values))


def _parse_range(content: dict[str, Any], key: str, where: str) -> Range | Powers:
    unknown = set(content) - {"low", "high", "log", "log2"}
    if unknown or not {"low", "high"} <= set(content):
        raise UserError(f"{where}: a range is written {{low: 1, high: 8}}, with log or log2: true.")
    low, high = content["low"], content["high"]
    for bound in (low, high):
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not is_number or not math.isfinite(bound):
            raise UserError(f"{where}: low and high must be numbers (found {bound!r}).")
    if not low < high:
        raise UserError(f"{where}: the range is empty, low {low} is not below high {high}.")
    log, log2 = content.get("log", False), content.get("log2", False)
    if not isinstance(log, bool) or not isinstance(log2, bool):
        raise UserError(f"{where}: log and log2 are true or false.")
    if (log or log2) and low <= 0:
        raise UserError(f"{where}: a logarithmic range needs low above 0 (found {low}).")
    is_integer = _is_integer_key(key)
    if (is_integer or log2) and not (float(low).is_integer() and float(high).is_integer()):
        raise UserError(f"{where}: low and high must be whole numbers (found {low} and {high}).")
    if not log2:
        return Range(low, high, log, is_integer)
    powers = Powers(int(low), int(high))
    if not powers.values():
        raise UserError(f"{where}: no power of two lies between {low} and {high}.")
    return powers


def _is_integer_key(key: str) -> bool:
    """Whether the run spec takes whole numbers for `key`: its type decides, not the bounds."""
    annotation = RunSpec.model_fields[key].annotation
    return annotation is int or int in _members(annotation)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types in an annotation such as `Annotated[int, ...] | None`."""
    inner = get_args(annotation)
    return tuple(part for item in inner for part in (item, *_members(item)))


def _check_values(key: str, dimension: Dimension, where: str) -> None:
    for value in possible_values(dimension):
        validate(RunSpec, {key: value}, where.rsplit(":", 1)[0] + ": space")


def _check_conditions(
    dimension: Dimension, space: Space, fixed: dict[str, Any], where: str
) -> None:
    """Check that exactly one case holds for every combination of what the cases depend on."""
    if not isinstance(dimension, Cases):
        return
    keys = sorted({key for case in dimension.cases for key, _ in case.when})
    known = {}
    for key in keys:
        earlier = space.get(key)
        if earlier is dimension or (earlier is None and key not in fixed):
            raise UserError(f"{where}: depends on '{key}', which must stand above it in the space.")
        if _has_range(earlier):
            raise UserError(f"{where}: depends on '{key}', which is a range and not a list.")
        known[key] = [fixed[key]] if earlier is None else possible_values(earlier)
    for case in dimension.cases:
        for key, allowed in case.when:
            for value in allowed:
                if key in space and value not in known[key] and key in RunSpec.model_fields:
                    validate(RunSpec, {key: value}, where + " when")
    for values in _combinations(known):
        holding = [case for case in dimension.cases if case.holds(values)]
        if len(holding) != 1:
            shown = ", ".join(f"{key}: {value}" for key, value in values.items())
            number = "no case" if not holding else f"{len(holding)} cases"
            raise UserError(f"{where}: {number} for {shown}; give it exactly one.")


def _has_range(dimension: Dimension | None) -> bool:
    if isinstance(dimension, Cases):
        return any(isinstance(case.dimension, Range) for case in dimension.cases)
    return isinstance(dimension, Range)


def _combinations(known: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for combination in itertools.product(*known.values()):
        yield dict(zip(known, combination, strict=True))


def _number(dimension: Range, value: float) -> float | int:
    return int(value) if dimension.is_integer else float(value)
