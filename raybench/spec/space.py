"""The search space: the `space:` part of a file, read and checked, and what can be drawn of it."""

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

from pydantic import ValidationError

from raybench.spec.documents import number_problem, problem_of, validate_key
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec

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


def parse_space(raw: dict[str, Any], fixed: dict[str, Any], source: str) -> Space:
    """Read the `space:` part of a file; UserError names the key and what is allowed.

    Dimensions may depend on those above them in the file, on fixed keys and on keys that keep
    their default. `fixed` may hold any run-spec key.
    """
    space: Space = {}
    for key, content in raw.items():
        where = f"{source}: 'space.{key}'"
        if key not in SEARCHABLE:
            raise UserError(f"{where}: cannot be searched; {_hint(key)}")
        if key in fixed:
            raise UserError(f"{where}: also stands under 'fixed'; keep one of the two.")
        dimension = _checked(_parse_dimension(content, key, where), key, f"{source}: space")
        _check_conditions(dimension, space, fixed, where, raw)
        space[key] = dimension
    check_together(space, fixed, source)
    return space


def _checked(dimension: Dimension, key: str, source: str) -> Dimension:
    """Check every value that can be drawn; lists (`augment`) come as a run spec holds them."""
    if not isinstance(dimension, Cases):
        return _checked_simple(dimension, key, source)
    cases = [(case, _checked_simple(case.dimension, key, source)) for case in dimension.cases]
    return Cases(tuple(replace(case, dimension=simple) for case, simple in cases))


def _checked_simple(dimension: Simple, key: str, source: str) -> Simple:
    found = [validate_key(RunSpec, key, value, source) for value in possible_values(dimension)]
    is_listed = isinstance(dimension, Choices) and any(isinstance(one, list) for one in found)
    return Choices(tuple(found)) if is_listed else dimension


def check_together(space: Space, fixed: dict[str, Any], source: str) -> None:
    """Raise UserError for the first combination of values that no run spec can have.

    Which keys exclude each other is the run spec's own: each check of it is asked with every
    combination of the keys that it looks at, and of no others, so large spaces cost nothing.
    """
    _check_combinations(space, fixed, [], source)


class _Watched(RunSpec):
    """A run spec that notes which keys its checks look at."""

    seen: ClassVar[list[str]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in RunSpec.model_fields:
            _Watched.seen.append(name)
        return super().__getattribute__(name)


def _check_combinations(space: Space, fixed: dict[str, Any], keys: list[str], source: str) -> None:
    """Ask with all combinations of `keys`; where a check looks at more keys, with those too."""
    for values in combinations(space, fixed, keys):
        problem, seen = _ask(known_values(fixed, values))
        more = [key for key in seen if key in space and key not in keys]
        if more:
            return _check_combinations(space, fixed, [*keys, *dict.fromkeys(more)], source)
        if problem:
            known = known_values(fixed, values)
            shown = ", ".join(f"{key}: {known[key]}" for key in seen if key in known)
            raise UserError(f"{source}: 'space': {shown}: {problem}.")
    return None


def _ask(content: dict[str, Any]) -> tuple[str, list[str]]:
    """Return what is wrong with a run spec (nothing: ""), and the keys that were looked at."""
    _Watched.seen.clear()
    problem = ""
    try:
        _Watched.model_validate(content)
    except ValidationError as error:
        problem = problem_of(error.errors()[0])
    return problem, list(dict.fromkeys(_Watched.seen))


def _hint(key: object) -> str:
    close = difflib.get_close_matches(str(key), SEARCHABLE, n=1)
    return f"did you mean '{close[0]}'?" if close else f"allowed are {', '.join(SEARCHABLE)}."


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
    rest = {name: value for name, value in item.items() if name != "when"}
    if not rest:
        raise UserError(f"{where}: a case needs values: [...] or low and high beside its 'when'.")
    simple = _parse_simple(rest["values"] if set(rest) == {"values"} else rest, key, where)
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
    # 1 and 1.0 are one value; True, which Python counts as 1, is refused as a value later.
    if any(value in values[:index] for index, value in enumerate(values) if value is not True):
        raise UserError(f"{where}: a value stands there twice; name each once.")
    return Choices(tuple(values))


def _parse_range(content: dict[str, Any], key: str, where: str) -> Range | Powers:
    unknown = set(content) - {"low", "high", "log", "log2"}
    if unknown or not {"low", "high"} <= set(content):
        raise UserError(f"{where}: a range is written {{low: 1, high: 8}}, with log or log2: true.")
    low, high = content["low"], content["high"]
    for bound in (low, high):
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not is_number or (isinstance(bound, float) and not math.isfinite(bound)):
            raise UserError(f"{where}: low and high must be numbers (found {bound!r}).")
        if problem := number_problem(bound):
            raise UserError(f"{where}: {bound!r} {problem}.")
    if not low < high:
        raise UserError(f"{where}: the range is empty, low {low} is not below high {high}.")
    log, log2 = content.get("log", False), content.get("log2", False)
    if not isinstance(log, bool) or not isinstance(log2, bool):
        raise UserError(f"{where}: log and log2 are true or false.")
    if log and log2:
        raise UserError(f"{where}: has log and log2; keep log or log2, a range is drawn one way.")
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


def _check_conditions(
    dimension: Dimension,
    space: Space,
    fixed: dict[str, Any],
    where: str,
    raw: dict[str, Any],
) -> None:
    """Check that exactly one case holds for every combination of what the cases depend on."""
    if not isinstance(dimension, Cases):
        return
    for case in dimension.cases:
        for other, allowed in case.when:
            if other not in SEARCHABLE:
                raise UserError(f"{where}: unknown key '{other}' in 'when'; {_hint(other)}")
            if other in raw and other not in space:
                raise UserError(
                    f"{where}: depends on '{other}', which must stand above it in the space."
                )
            if _has_range(space.get(other)):
                raise UserError(f"{where}: depends on '{other}', which is a range and not a list.")
            if not allowed:
                raise UserError(f"{where}: 'when': '{other}' has an empty list; name its values.")
            for value in allowed:
                validate_key(RunSpec, other, value, f"{where} when")
    for values in combinations(space, fixed, dimension.keys()):
        holding = [case for case in dimension.cases if case.holds(values)]
        if len(holding) != 1:
            shown = ", ".join(f"{name}: {values[name]}" for name in sorted(dimension.keys()))
            number = "no case" if not holding else f"{len(holding)} cases"
            raise UserError(f"{where}: {number} for {shown}; give it exactly one.")


def _has_range(dimension: Dimension | None) -> bool:
    if isinstance(dimension, Cases):
        return any(isinstance(case.dimension, Range) for case in dimension.cases)
    return isinstance(dimension, Range)
