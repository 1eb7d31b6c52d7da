"""Search space: parses and checks the key `space` of a search-space file, and lists its values.

Each searched key has a dimension: a list of values, a range, or cases that depend on other keys.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from pydantic import ValidationError, model_validator

from raybench.spec.documents import Document, problem_of, validate, validate_key
from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.run import OPEN, RunSpec, flat, is_case, is_open, nested, value_of
from raybench.spec.text import identity, short

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
"""Run-spec keys that may be searched, or used in a condition (`when`)."""


@dataclass(frozen=True)
class Choices:
    """Dimension with an unordered list of values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """Numeric dimension between two bounds, both inclusive."""

    low: float
    high: float
    log: bool
    """Whether the logarithm of the number is sampled uniformly, instead of the number."""
    is_integer: bool


@dataclass(frozen=True)
class Powers:
    """Dimension of powers of two between two bounds, both included."""

    low: int
    high: int

    def values(self) -> tuple[int, ...]:
        """Return all powers of two in the range, ascending."""
        lowest, highest = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
        return tuple(2**exponent for exponent in range(lowest, highest + 1))


Simple = Choices | Range | Powers
"""Dimension that does not depend on other keys."""


@dataclass(frozen=True)
class Case:
    """A dimension, and the condition under which it applies: each key in `when` has one of the
    values that are listed for this key."""

    when: tuple[tuple[str, tuple[Any, ...]], ...]
    dimension: Simple

    def holds(self, values: dict[str, Any]) -> bool:
        """Return whether the case applies, given the values of other keys; missing keys have the
        defaults of a run spec."""
        return all(
            is_one_of(key, values.get(key, _DEFAULTS.get(key)), allowed)
            for key, allowed in self.when
        )

    def label(self) -> str:
        """Return the condition as text: `optimizer=adam|lamb`."""
        return ",".join(f"{key}={'|'.join(map(short, allowed))}" for key, allowed in self.when)


@dataclass(frozen=True)
class Cases:
    """Dimension that depends on other keys; exactly one case applies to a configuration."""

    cases: tuple[Case, ...]

    def choose(self, values: dict[str, Any]) -> Case:
        """Return the case that applies, given the values of all keys (see `known_values`)."""
        for case in self.cases:
            if case.holds(values):
                return case
        key_values = known_values({}, values)
        raise ValueError(
            "no case applies to "
            + ", ".join(f"{key}={short(key_values.get(key))}" for key in self.keys())
        )

    def keys(self) -> set[str]:
        """Return the keys in the conditions."""
        return {key for case in self.cases for key, _ in case.when}


Dimension = Simple | Cases
Space = dict[str, Dimension]

_DEFAULTS: dict[str, Any] = {key: RunSpec.model_fields[key].default for key in SEARCHABLE}


def is_one_of(key: str, value: Any, values: Sequence[Any]) -> bool:
    """Return whether the value of a key is among `values`.

    Settings under OPEN, such as `model.NAME`, have no known type: for them, `1`, `1.0` and `true`
    are different values.
    """
    if is_open(key):
        return identity(value) in map(identity, values)
    return value in values


def lies_in(key: str, dimension: "Dimension", value: Any, values: dict[str, Any]) -> bool:
    """Return whether a value lies within the dimension of its key.

    Args:
        key: The key.
        dimension: Dimension of the key.
        value: Value of the key.
        values: Values of all keys (see `known_values`), which decide which case applies.
    """
    if isinstance(dimension, Cases):
        cases = [case for case in dimension.cases if case.holds(values)]
        return any(lies_in(key, case.dimension, value, values) for case in cases)
    if isinstance(dimension, Range):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and bool(dimension.low <= value <= dimension.high)
    return is_one_of(key, value, possible_values(dimension))


def known_values(fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return a value for every searchable key: from `values`, from `fixed`, or the default of a run
    spec, in this order of precedence."""
    return _DEFAULTS | flat(fixed) | values


def possible_values(dimension: Dimension) -> list[Any]:
    """Return all values of a dimension.

    A range is represented by its two bounds. For cases, the values of all cases are returned.
    """
    if isinstance(dimension, Choices):
        return list(dimension.values)
    if isinstance(dimension, Powers):
        return list(dimension.values())
    if isinstance(dimension, Range):
        kind = int if dimension.is_integer else float
        return [kind(dimension.low), kind(dimension.high)]
    return [value for case in dimension.cases for value in possible_values(case.dimension)]


def values_of(key: str, space: Space, fixed: dict[str, Any]) -> list[Any]:
    """Return all values that a run-spec key has in a study, or the bounds of its range.

    Args:
        key: The key, which may be searched, fixed or neither.
        space: Search space of the study.
        fixed: Fixed keys of the study.
    """
    return possible_values(space[key]) if key in space else [known_values(fixed, {})[key]]


def combinations(
    space: Space, fixed: dict[str, Any], keys: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the values of `keys` and of the keys on which their cases depend.

    A range contributes only its bounds. A key that is not searched contributes only its fixed or
    default value.
    """
    used_keys = set(keys)
    for key in reversed(space):  # a dimension depends only on keys that precede it
        dimension = space[key]
        if key in used_keys and isinstance(dimension, Cases):
            used_keys |= dimension.keys()
    fixed_values = {
        key: value for key, value in known_values(fixed, {}).items() if key in used_keys
    }
    yield from _combine(space, [key for key in space if key in used_keys], fixed_values)


def _combine(space: Space, keys: list[str], chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not keys:
        yield chosen
        return
    for value in possible_values(resolve(space[keys[0]], chosen)):
        yield from _combine(space, keys[1:], chosen | {keys[0]: value})


def num_configurations(space: Space, fixed: dict[str, Any] | None = None) -> int | None:
    """Return the number of distinct configurations; None if there is a range of real numbers.

    `fixed` contains the values of fixed keys, on which conditions (`when`) may depend.
    """
    cases = [dimension for dimension in space.values() if isinstance(dimension, Cases)]
    conditions = set().union(*(dimension.keys() for dimension in cases))
    total = 0
    for chosen in combinations(space, fixed or {}, conditions):
        # Keys in conditions have one value here; multiply the numbers of values of all other keys.
        dimensions = [
            resolve(dimension, chosen) for key, dimension in space.items() if key not in chosen
        ]
        if any(
            isinstance(dimension, Range) and not dimension.is_integer for dimension in dimensions
        ):
            return None
        total += math.prod(len(every_value(dimension)) for dimension in dimensions)
    return total


def resolve(dimension: Dimension, values: dict[str, Any]) -> Simple:
    """Return the dimension without cases that a key has for given values of the other keys.

    Args:
        dimension: A dimension; one without cases is returned unchanged.
        values: Values of all keys (see `known_values`), which decide which case applies.
    """
    return dimension.choose(values).dimension if isinstance(dimension, Cases) else dimension


NEAR = 0.05
"""Largest distance at which a value counts as at an end of its range, as a fraction of the length
of the range. Distances in a logarithmic range are those of the logarithms."""


def end_of(dimension: Dimension, key: str, spec: RunSpec) -> str | None:
    """Return the end of the range that the value of a key is near (within NEAR).

    Args:
        dimension: Dimension of the key.
        key: The key.
        spec: Run spec with the values of all keys.

    Returns:
        "upper" or "lower"; None if the value is near neither end, or if the dimension is a list. A
        lower bound of 0 (1 for integers and powers of two) does not count as an end, because the
        range cannot be extended there.
    """
    values = {name: getattr(spec, name) for name in SEARCHABLE}
    values |= flat({name: getattr(spec, name) for name in OPEN})
    simple, value = resolve(dimension, values), value_of(spec, key)
    if not isinstance(simple, Range | Powers) or simple.high <= simple.low or value is None:
        return None
    is_log = isinstance(simple, Powers) or simple.log
    low, high, position = (
        math.log(bound) if is_log else bound for bound in (simple.low, simple.high, value)
    )
    fraction = (position - low) / (high - low)
    if fraction >= 1 - NEAR:
        return "upper"
    smallest = 1 if isinstance(simple, Powers) or simple.is_integer else 0
    return "lower" if fraction <= NEAR and simple.low > smallest else None


def every_value(dimension: Simple) -> Sequence[Any]:
    """Return all values of a dimension, or the two bounds of a range of real numbers."""
    if isinstance(dimension, Range) and dimension.is_integer:
        return range(int(dimension.low), int(dimension.high) + 1)
    return possible_values(dimension)


def is_searchable(key: str) -> bool:
    """Return whether a key may be searched or used in a condition (`when`); True for settings such
    as `model.NAME`."""
    return key in SEARCHABLE or is_open(str(key))


def parse_space(raw: dict[str, Any], fixed: dict[str, Any], source: str) -> Space:
    """Parse the key `space` of a search-space file.

    Args:
        raw: Content of `space`. A dimension may depend on keys listed before it, on fixed keys, and
            on keys that are neither searched nor fixed, which have their default.
        fixed: Run-spec keys with a single value.
        source: Name of the file, for error messages.

    Raises:
        UserError: A dimension is invalid, or a combination of values is invalid in a run spec.
    """
    space: Space = {}
    for key, content in raw.items():
        where = f"{source}: 'space.{key}'"
        if not is_searchable(key):
            hint = did_you_mean(key, [*SEARCHABLE, *OPEN])
            raise UserError(f"{where}: cannot be searched; {hint}", ErrorCode.UNKNOWN_KEY)
        if key in flat(fixed):
            raise UserError(
                f"{where}: is also under 'fixed'; remove one of the two.", ErrorCode.CONFLICT
            )
        dimension = _parse_dimension(content, key, where, f"{source}: space")
        if is_open(key, "data") and has_range(dimension):
            raise UserError(
                f"{where}: each value makes a separate dataset, so a range is not allowed; list "
                "the values.",
                ErrorCode.INVALID_VALUE,
            )
        if isinstance(dimension, Cases):
            _check_conditions(dimension, space, fixed, where, raw)
        space[key] = dimension
    _check_combinations(space, fixed, [], source)
    return space


class RangeForm(Document):
    """Range as written in a search-space file; both bounds are included."""

    low: float
    high: float
    log: bool = False
    """Whether to sample the logarithm of the number uniformly."""
    log2: bool = False
    """Whether to allow only powers of two."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "RangeForm":
        if not self.low < self.high:
            raise ValueError(
                f"the range is empty, low {self.low:g} is not below high {self.high:g}"
            )
        if (self.log or self.log2) and self.low <= 0:
            raise ValueError(f"a logarithmic range needs low above 0 (found {self.low:g})")
        return self


def _parse_dimension(content: Any, key: str, where: str, source: str) -> Dimension:
    if not isinstance(content, list) or not any(map(is_case, content)):
        return _parse_simple(content, key, where, source)
    if not all(map(is_case, content)):
        raise UserError(
            f"{where}: mixes values and cases; give every item a 'when'.", ErrorCode.INVALID_VALUE
        )
    cases = []
    for item in content:
        when = item["when"]
        case = {name: value for name, value in item.items() if name != "when"}
        if not isinstance(when, dict) or not when:
            raise UserError(
                f"{where}: 'when' must name a key and its values, as optimizer: [adam].",
                ErrorCode.INVALID_VALUE,
            )
        simple = case["values"] if set(case) == {"values"} else case
        conditions = tuple(
            (name, tuple(allowed) if isinstance(allowed, list) else (allowed,))
            for name, allowed in when.items()
        )
        cases.append(Case(conditions, _parse_simple(simple, key, where, source)))
    return Cases(tuple(cases))


def _parse_simple(content: Any, key: str, where: str, source: str) -> Simple:
    """Parse a dimension (a list of values or a range), and check its values.

    Error messages about the form of the dimension start with `where`, those about values with
    `source`.
    """
    if isinstance(content, dict):
        if not content.keys() & RangeForm.model_fields.keys():
            raise UserError(
                f"{where}: a mapping must be a range with the keys low and high (optional: log, "
                "log2); write a choice between mappings as a list, [{...}, {...}].",
                ErrorCode.INVALID_VALUE,
            )
        form = validate(RangeForm, content, where)
        dimension = _parse_range(form, content, key, where)
        for value in possible_values(dimension):
            validate_key(RunSpec, key, value, source)
        return dimension
    values = content if isinstance(content, list) else [content]
    if not values:
        raise UserError(
            f"{where}: the list is empty; name at least one value.", ErrorCode.INVALID_VALUE
        )
    validated = [validate_key(RunSpec, key, value, source) for value in values]
    if len({*map(identity, validated)}) < len(validated):
        raise UserError(
            f"{where}: the list has a value twice; remove the duplicate.", ErrorCode.INVALID_VALUE
        )
    # Lists as values (`augment`) are kept in the form in which a run spec stores them.
    return Choices(
        tuple(validated if any(isinstance(value, list) for value in validated) else values)
    )


def _parse_range(form: RangeForm, content: dict[str, Any], key: str, where: str) -> Range | Powers:
    if is_open(key):  # the type is unknown: 1 to 8 is a range of integers, 1.0 to 8.0 is not
        is_integer = _are_whole(content["low"], content["high"], where)
    else:
        # The type of the key decides whether numbers are whole, not the bounds.
        annotation = RunSpec.model_fields[key].annotation
        is_integer = annotation is int or int in _members(annotation)
    low, high = form.low, form.high
    if not is_integer and not form.log2:
        return Range(low, high, form.log, is_integer)
    if not (low.is_integer() and high.is_integer()):
        raise UserError(
            f"{where}: low and high must be whole numbers (found {low} and {high}).",
            ErrorCode.INVALID_VALUE,
        )
    if not form.log2:
        return Range(int(low), int(high), form.log, is_integer)
    powers = Powers(int(low), int(high))
    if not powers.values():
        raise UserError(
            f"{where}: no power of two lies between {low:g} and {high:g}.", ErrorCode.INVALID_VALUE
        )
    return powers


def _are_whole(low: float, high: float, where: str) -> bool:
    """Return whether both bounds are written as integers; raise UserError if only one of them is,
    as in 1 and 8.0."""
    are_integers = [isinstance(bound, int) for bound in (low, high)]
    if (
        any(are_integers)
        and not all(are_integers)
        and all(float(bound).is_integer() for bound in (low, high))
    ):
        raise UserError(
            f"{where}: the bounds {low} and {high} are ambiguous; for whole numbers write "
            f"{int(low)} and {int(high)}, for fractions {float(low)} and {float(high)}.",
            ErrorCode.INVALID_VALUE,
        )
    return all(are_integers)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return all types nested in an annotation such as `Annotated[int, ...] | None`."""
    inner = get_args(annotation)
    return tuple(member for item in inner for member in (item, *_members(item)))


def _check_conditions(
    dimension: Cases, space: Space, fixed: dict[str, Any], where: str, raw: dict[str, Any]
) -> None:
    """Raise UserError for a condition with an invalid key or value, and for a combination of values
    to which no case or several cases apply."""
    for case in dimension.cases:
        for key, allowed in case.when:
            if not is_searchable(key):
                hint = did_you_mean(key, SEARCHABLE)
                raise UserError(
                    f"{where}: unknown key '{key}' in 'when'; {hint}", ErrorCode.UNKNOWN_KEY
                )
            if key in raw and key not in space:
                raise UserError(
                    f"{where}: depends on '{key}', which must be listed above it in the space.",
                    ErrorCode.CONFLICT,
                )
            if has_range(space.get(key)):
                raise UserError(
                    f"{where}: depends on '{key}', which is a range; list its values instead.",
                    ErrorCode.CONFLICT,
                )
            for value in allowed:
                validate_key(RunSpec, key, value, f"{where} when")
    for values in combinations(space, fixed, dimension.keys()):
        applicable = [case for case in dimension.cases if case.holds(values)]
        if len(applicable) != 1:
            values_text = ", ".join(
                f"{name}: {short(values.get(name))}" for name in sorted(dimension.keys())
            )
            number = "no case" if not applicable else f"{len(applicable)} cases"
            raise UserError(
                f"{where}: {number} for {values_text}; write exactly one.", ErrorCode.CONFLICT
            )


def has_range(dimension: Dimension | None) -> bool:
    """Return whether a dimension, or a case of it, is a range."""
    if isinstance(dimension, Cases):
        return any(isinstance(case.dimension, Range) for case in dimension.cases)
    return isinstance(dimension, Range)


class _KeyRecorder(RunSpec):
    """Run spec that records which of its keys are read while it is validated."""

    keys_read: ClassVar[list[str]] = []
    """Keys that the last validation has read, with repetitions."""

    def __getattribute__(self, name: str) -> Any:
        if name in RunSpec.model_fields:
            _KeyRecorder.keys_read.append(name)
        return super().__getattribute__(name)


def _check_combinations(space: Space, fixed: dict[str, Any], keys: list[str], source: str) -> None:
    """Raise UserError for the first combination of values that is invalid in a run spec.

    Only the keys that the validation of a run spec reads are combined, so that checking a large
    space is fast. If a validation reads a searched key that is not in `keys`, the function starts
    again with this key added.
    """
    for values in combinations(space, fixed, keys):
        run_values, problem = known_values(fixed, values), ""
        _KeyRecorder.keys_read.clear()
        try:
            _KeyRecorder.model_validate(nested(run_values))
        except ValidationError as error:
            problem = problem_of(error.errors()[0])
        keys_read = list(dict.fromkeys(_KeyRecorder.keys_read))
        further_keys = [
            key for key in space if key not in keys and key.partition(".")[0] in keys_read
        ]
        if further_keys:
            return _check_combinations(space, fixed, [*keys, *further_keys], source)
        if problem and not keys:
            raise UserError(f"{source}: fixed: {problem}.", ErrorCode.CONFLICT)
        if problem:
            values_text = ", ".join(
                f"{key}: {short(run_values[key])}" for key in keys_read if key in run_values
            )
            raise UserError(f"{source}: 'space': {values_text}: {problem}.", ErrorCode.CONFLICT)
    return None
