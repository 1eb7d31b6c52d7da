"""The search space: the `space:` part of a file, read and checked, and what can be drawn of it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args

from pydantic import Field, ValidationError, model_validator

from raybench.spec.documents import Document, problem_of, validate, validate_key
from raybench.spec.errors import UserError, did_you_mean
from raybench.spec.other_tools import written_here
from raybench.spec.run import OPEN, RunSpec, flat, is_case, is_open, nested, value_of
from raybench.spec.values import identity, is_among, short

NOT_SEARCHED = (
    "checkpoint_every_s",
    "dataset",
    "exchange_gradients",
    *OPEN,
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
        return all(
            is_one_of(key, values.get(key, _DEFAULTS.get(key)), allowed)
            for key, allowed in self.when
        )

    def label(self) -> str:
        """Return the condition in a few words."""
        return ",".join(f"{key}={'|'.join(map(short, allowed))}" for key, allowed in self.when)


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
        raise ValueError(
            "no case holds for "
            + ", ".join(f"{key}={short(known.get(key))}" for key in self.keys())
        )

    def keys(self) -> set[str]:
        """Return the keys that the conditions name."""
        return {key for case in self.cases for key, _ in case.when}


Dimension = Simple | Cases
Space = dict[str, Dimension]

_DEFAULTS: dict[str, Any] = {key: RunSpec.model_fields[key].default for key in SEARCHABLE}


def is_one_of(key: str, value: Any, values: Sequence[Any]) -> bool:
    """Return whether a key's value is one of `values`; of a setting below OPEN, whose type is not
    known, 1, 1.0 and true are three."""
    return is_among(value, values) if is_open(key) else value in values


def lies_in(key: str, dimension: "Dimension", value: Any, known: dict[str, Any]) -> bool:
    """Return whether a key's value is one of its dimension's; `known`: see `known_values`."""
    if isinstance(dimension, Cases):
        cases = [case for case in dimension.cases if case.holds(known)]
        return any(lies_in(key, case.dimension, value, known) for case in cases)
    if isinstance(dimension, Range):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and bool(dimension.low <= value <= dimension.high)
    return is_one_of(key, value, possible_values(dimension))


def known_values(fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return every run-spec key's value: what is chosen, else fixed, else the default."""
    return _DEFAULTS | flat(fixed) | values


def possible_values(dimension: Dimension) -> list[Any]:
    """Return every value of a discrete dimension, or the bounds of a range."""
    if isinstance(dimension, Choices):
        return list(dimension.values)
    if isinstance(dimension, Powers):
        return list(dimension.values())
    if isinstance(dimension, Range):
        kind = int if dimension.is_integer else float
        return [kind(dimension.low), kind(dimension.high)]
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
    cases = [one for one in space.values() if isinstance(one, Cases)]
    conditions = set().union(*(one.keys() for one in cases))
    total = 0
    for chosen in combinations(space, fixed or {}, conditions):
        # Keys that conditions name have one value here; the others multiply.
        rest = [resolve(one, chosen) for key, one in space.items() if key not in chosen]
        if any(isinstance(one, Range) and not one.is_integer for one in rest):
            return None
        total += math.prod(len(every_value(one)) for one in rest)
    return total


def resolve(dimension: Dimension, known: dict[str, Any]) -> Simple:
    """Return what a dimension is where `known` (see `known_values`) holds."""
    return dimension.choose(known).dimension if isinstance(dimension, Cases) else dimension


NEAR = 0.05
"""Share of a range from its end that is at the end."""


def end_of(dimension: Dimension, key: str, spec: RunSpec) -> str | None:
    """Return at which end of a range the value of `key` lies: upper, lower; None within it.

    A list has no ends. Nor is there anything below 0 of a range, and 1 of whole numbers.
    """
    found, value = at_run(dimension, spec), value_of(spec, key)
    if not isinstance(found, Range | Powers) or found.high <= found.low or value is None:
        return None
    is_log = isinstance(found, Powers) or found.log
    low, high, at = (math.log(end) if is_log else end for end in (found.low, found.high, value))
    place = (at - low) / (high - low)
    if place >= 1 - NEAR:
        return "upper"
    least = 1 if isinstance(found, Powers) or found.is_integer else 0
    return "lower" if place <= NEAR and found.low > least else None


def at_run(dimension: Dimension, spec: RunSpec) -> Simple:
    """Return what a dimension is in a run."""
    known = {one: getattr(spec, one) for one in SEARCHABLE}
    return resolve(dimension, known | flat({one: getattr(spec, one) for one in OPEN}))


def every_value(dimension: Simple) -> Sequence[Any]:
    """Return every value of a dimension, of a range of whole numbers too; of others the bounds."""
    if isinstance(dimension, Range) and dimension.is_integer:
        return range(int(dimension.low), int(dimension.high) + 1)
    return possible_values(dimension)


def is_searchable(key: str) -> bool:
    """Whether a space may search a key, and its conditions name it; any setting below OPEN."""
    return key in SEARCHABLE or is_open(str(key))


def parse_space(raw: dict[str, Any], fixed: dict[str, Any], source: str) -> Space:
    """Read the `space:` part of a file; UserError names the key and what is allowed.

    Dimensions may depend on those above them in the file, on fixed keys and on keys that keep
    their default. `fixed` may hold any run-spec key.
    """
    space: Space = {}
    for key, content in raw.items():
        where = f"{source}: 'space.{key}'"
        if not is_searchable(key):
            hint = did_you_mean(key, [*SEARCHABLE, *OPEN])
            raise UserError(f"{where}: cannot be searched; {hint}")
        if key in flat(fixed):
            raise UserError(f"{where}: also stands under 'fixed'; keep one of the two.")
        dimension = _parse_dimension(content, key, where, f"{source}: space")
        if is_open(key, "data") and _has_range(dimension):
            raise UserError(f"{where}: each value is a dataset of its own; list the values.")
        if isinstance(dimension, Cases):
            _check_conditions(dimension, space, fixed, where, raw)
        space[key] = dimension
    _check_together(space, fixed, [], source)
    return space


Bound = Annotated[float, Field(allow_inf_nan=False)]


class RangeForm(Document):
    """A range as a file has it, both bounds included."""

    low: Bound
    high: Bound
    log: bool = False
    """Sample the logarithm evenly."""
    log2: bool = False
    """Powers of two only."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "RangeForm":
        if not self.low < self.high:
            raise ValueError(
                f"the range is empty, low {self.low:g} is not below high {self.high:g}"
            )
        if self.log and self.log2:
            raise ValueError("has log and log2; keep log or log2, a range is drawn one way")
        if (self.log or self.log2) and self.low <= 0:
            raise ValueError(f"a logarithmic range needs low above 0 (found {self.low:g})")
        return self


def _parse_dimension(content: Any, key: str, where: str, source: str) -> Dimension:
    if not isinstance(content, list) or not any(map(is_case, content)):
        return _parse_simple(content, key, where, source)
    if not all(map(is_case, content)):
        raise UserError(f"{where}: has values beside cases; give each of them a 'when'.")
    cases = []
    for item in content:
        when, rest = item["when"], {name: one for name, one in item.items() if name != "when"}
        if not isinstance(when, dict) or not when:
            raise UserError(
                f"{where}: 'when' must name a key and its values, as optimizer: [adam]."
            )
        if not rest:
            raise UserError(
                f"{where}: a case needs values: [...] or low and high beside its 'when'."
            )
        simple = rest["values"] if set(rest) == {"values"} else rest
        conditions = tuple(
            (other, tuple(allowed) if isinstance(allowed, list) else (allowed,))
            for other, allowed in when.items()
        )
        cases.append(Case(conditions, _parse_simple(simple, key, where, source)))
    return Cases(tuple(cases))


def _parse_simple(content: Any, key: str, where: str, source: str) -> Simple:
    """Read values or a range and check all that can be drawn; `source` begins what is refused."""
    if (how := written_here(content)) is not None:
        raise UserError(f"{where}: is in another tool's form; {how}.")
    if isinstance(content, dict):
        if not content.keys() & RangeForm.model_fields.keys():
            raise UserError(
                f"{where}: a range has low and high; a choice of settings that go together is a "
                f"list of them, [{{...}}, {{...}}]; there are {', '.join(RangeForm.model_fields)}."
            )
        form = validate(RangeForm, content, where)
        dimension = _parse_range(form, content, key, where)
        for value in possible_values(dimension):
            _validated(key, value, source)
        return dimension
    values = content if isinstance(content, list) else [content]
    if not values:
        raise UserError(f"{where}: the list is empty; name at least one value.")
    if any(isinstance(one, dict) and {"low", "high"} <= one.keys() for one in values):
        raise UserError(
            f"{where}: a list has values, and a range beside others a condition; add a 'when', or "
            "write one range without the list."
        )
    found = [_validated(key, value, source) for value in values]
    if len({*map(identity, found)}) < len(found):
        raise UserError(f"{where}: a value stands there twice; name each once.")
    # Lists (`augment`) come as a run spec holds them.
    return Choices(tuple(found if any(isinstance(one, list) for one in found) else values))


def _validated(key: str, value: Any, source: str) -> Any:
    """Return a value as a run spec holds it; UserError where it cannot."""
    if not is_open(key):
        return validate_key(RunSpec, key, value, source)
    parent, _, name = key.partition(".")
    return validate_key(RunSpec, parent, {name: value}, source).get(name)


def _parse_range(form: RangeForm, content: dict[str, Any], key: str, where: str) -> Range | Powers:
    if is_open(key):  # its type is not known here: 1 and 8 are whole, 1.0 and 8.0 not
        is_integer = _are_whole(content["low"], content["high"], where)
    else:
        # The key's type decides whether numbers are whole, not the bounds.
        annotation = RunSpec.model_fields[key].annotation
        is_integer = annotation is int or int in _members(annotation)
    low, high = form.low, form.high
    if not is_integer and not form.log2:
        return Range(low, high, form.log, is_integer)
    if not (low.is_integer() and high.is_integer()):
        raise UserError(f"{where}: low and high must be whole numbers (found {low} and {high}).")
    if not form.log2:
        return Range(int(low), int(high), form.log, is_integer)
    powers = Powers(int(low), int(high))
    if not powers.values():
        raise UserError(f"{where}: no power of two lies between {low:g} and {high:g}.")
    return powers


def _are_whole(low: float, high: float, where: str) -> bool:
    """Return whether a range whose bounds are `low` and `high` is of whole numbers; UserError where
    one bound says so and the other, a whole number too, does not."""
    whole = [isinstance(end, int) for end in (low, high)]
    if any(whole) and not all(whole) and all(float(end).is_integer() for end in (low, high)):
        raise UserError(
            f"{where}: {low} is to {high} in whole numbers or in fractions? For whole numbers "
            f"write {int(low)} and {int(high)}, for fractions {float(low)} and {float(high)}."
        )
    return all(whole)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types in an annotation such as `Annotated[int, ...] | None`."""
    inner = get_args(annotation)
    return tuple(part for item in inner for part in (item, *_members(item)))


def _check_conditions(
    dimension: Cases, space: Space, fixed: dict[str, Any], where: str, raw: dict[str, Any]
) -> None:
    """Check that exactly one case holds for every combination of what the cases depend on."""
    for case in dimension.cases:
        for other, allowed in case.when:
            if not is_searchable(other):
                hint = did_you_mean(other, SEARCHABLE)
                raise UserError(f"{where}: unknown key '{other}' in 'when'; {hint}")
            if other in raw and other not in space:
                raise UserError(
                    f"{where}: depends on '{other}', which must stand above it in the space."
                )
            if _has_range(space.get(other)):
                raise UserError(f"{where}: depends on '{other}', which is a range and not a list.")
            if not allowed:
                raise UserError(f"{where}: 'when': '{other}' has an empty list; name its values.")
            for value in allowed:
                _validated(other, value, f"{where} when")
    for values in combinations(space, fixed, dimension.keys()):
        holding = [case for case in dimension.cases if case.holds(values)]
        if len(holding) != 1:
            shown = ", ".join(
                f"{name}: {short(values.get(name))}" for name in sorted(dimension.keys())
            )
            number = "no case" if not holding else f"{len(holding)} cases"
            raise UserError(f"{where}: {number} for {shown}; give it exactly one.")


def _has_range(dimension: Dimension | None) -> bool:
    if isinstance(dimension, Cases):
        return any(isinstance(case.dimension, Range) for case in dimension.cases)
    return isinstance(dimension, Range)


class _Watched(RunSpec):
    """A run spec that notes which keys its checks look at."""

    seen: ClassVar[list[str]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in RunSpec.model_fields:
            _Watched.seen.append(name)
        return super().__getattribute__(name)


def _check_together(space: Space, fixed: dict[str, Any], keys: list[str], source: str) -> None:
    """Raise UserError for the first combination of values that no run spec can have.

    Which keys exclude each other is the run spec's own: its checks are asked with all combinations
    of the keys that they look at, and of no others, so large spaces cost nothing. `keys` are those
    known so far.
    """
    for values in combinations(space, fixed, keys):
        known, problem = known_values(fixed, values), ""
        _Watched.seen.clear()
        try:
            _Watched.model_validate(nested(known))
        except ValidationError as error:
            problem = problem_of(error.errors()[0])
        seen = list(dict.fromkeys(_Watched.seen))
        more = [key for key in space if key not in keys and key.partition(".")[0] in seen]
        if more:
            return _check_together(space, fixed, [*keys, *more], source)
        if problem and not keys:
            raise UserError(f"{source}: fixed: {problem}.")
        if problem:
            shown = ", ".join(f"{key}: {short(known[key])}" for key in seen if key in known)
            raise UserError(f"{source}: 'space': {shown}: {problem}.")
    return None
