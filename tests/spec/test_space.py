"""Search spaces: dimensions, conditions, counts and conflicting keys."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.spec.documents import validate
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RunSpec
from raybench.spec.space import (
    SEARCHABLE,
    Cases,
    combinations,
    known_values,
    num_configurations,
    parse_space,
    possible_values,
)
from tests.refusals import refused


def parse(space, fixed=None):
    return parse_space(space, fixed or {}, "s.yaml")


def span(low, high, **keys):
    return {"low": low, "high": high, **keys}


def case(values, **when):
    """Return a list of values or a range that applies under a condition."""
    return {"when": when} | (values if isinstance(values, dict) else {"values": values})


def rates(*cases, **others):
    """Return a space of other keys and a learning rate that depends on them."""
    return others | {"learning_rate": list(cases)}


LARS_ONLY = case(span(0.01, 10.0, log=True), optimizer="lars")
OTHERS = case(span(1e-4, 0.03, log=True), optimizer=["adam", "lamb"])


def test_conditions_use_searched_or_fixed_values():
    cases = parse(rates(OTHERS, LARS_ONLY, optimizer=["adam", "lamb", "lars"]))["learning_rate"]
    assert isinstance(cases, Cases)
    assert cases.choose({"optimizer": "lars"}).dimension.high == 10.0
    assert cases.choose({"optimizer": "lamb"}).dimension.high == 0.03
    assert cases.choose({"optimizer": "lamb"}).label() == "optimizer=adam|lamb"
    only = parse(rates(OTHERS, LARS_ONLY), {"optimizer": "lars"})
    assert possible_values(only["learning_rate"]) == [1e-4, 0.03, 0.01, 10.0]


BY_PRECISION = rates(
    case(span(1e-4, 0.01, log=True), precision="fp32"),
    case(span(1e-3, 0.1, log=True), precision="bf16"),
)
BOTH = case([0.2], precision=["fp32", "bf16"])
NOT_AT_3 = {"accumulate": [case([1], num_workers=[1, 4])]}
INVALID, CONFLICT, UNKNOWN = ErrorCode.INVALID_VALUE, ErrorCode.CONFLICT, ErrorCode.UNKNOWN_KEY


@pytest.mark.parametrize(
    ("space", "code", "names"),
    [
        ({"optimizer": []}, INVALID, ["'space.optimizer'"]),
        ({"optimizer": ["adam", "adam"]}, INVALID, ["'space.optimizer'"]),
        ({"learning_rate": span(0.2, 0.1)}, INVALID, ["'space.learning_rate'", 0.2]),
        ({"learning_rate": {"low": 0.1}}, ErrorCode.MISSING, ["'space.learning_rate'", "'high'"]),
        ({"weight_decay": span(0, 0.1, log=True)}, INVALID, ["low", 0]),
        ({"num_workers": span(5, 7, log2=True)}, INVALID, [5, 7]),
        ({"num_workers": span(1.5, 8.0)}, INVALID, [1.5]),
        ({"seed": [0, 1]}, UNKNOWN, ["'space.seed'"]),
        ({"batch_size": [1]}, UNKNOWN, ["'batch_size_per_worker'"]),
        ({"warmup_epochs": [0, 1]}, CONFLICT, ["'space.warmup_epochs'", "'fixed'"]),
        (rates(OTHERS, LARS_ONLY, optimizer=["adam", "sgd"]), CONFLICT, ["optimizer: sgd"]),
        (rates(OTHERS, OTHERS, optimizer=["adam"]), CONFLICT, [2, "optimizer: adam"]),
        (rates(OTHERS) | {"optimizer": ["adam"]}, CONFLICT, ["'optimizer'"]),
        (rates(LARS_ONLY), CONFLICT, ["optimizer: adam"]),
        (rates(case([0.1])), INVALID, ["'when'"]),
        (rates(case({}, precision="fp32")), INVALID, ["low"]),
        ({"num_workers": span(1, 4)} | NOT_AT_3, CONFLICT, ["'space.accumulate'", "'num_workers'"]),
        ({"num_workers": [case(span(1, 4), framework="torch")]} | NOT_AT_3, CONFLICT, ["workers"]),
        (rates(case([0.1], optimzer="adam"), BOTH), UNKNOWN, ["'optimzer'", "'optimizer'"]),
        (rates(case([0.1], precision="bf61"), BOTH), INVALID, ["'precision'", "'bf61'"]),
    ],
)
def test_an_invalid_dimension_is_refused(space, code, names):
    with refused(code, "s.yaml: ", *names) as caught:
        parse(space, {"warmup_epochs": 1})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("values", "high"), [({}, 0.01), ({"precision": "bf16"}, 0.1)])
def test_a_condition_may_use_the_default_of_a_key(values, high):
    cases = parse(BY_PRECISION)["learning_rate"]
    assert cases.choose(values).dimension.high == high
    with pytest.raises(ValueError, match="fp8"):
        cases.choose({"precision": "fp8"})


NESTED = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [case([1, 2, 3], framework="torch"), case([4], framework="tensorflow")],
    "accumulate": [
        case([1], framework="torch", num_workers=[1, 2]),
        case([2, 3], framework="torch", num_workers=3),
        case([1, 2, 3, 4], framework="tensorflow", num_workers=4),
    ],
}


@pytest.mark.parametrize(
    ("space", "number"),
    [
        ({"framework": ["torch", "tensorflow"], "num_workers": [1, 2, 4]}, 6),
        ({"batch_size_per_worker": span(16, 512, log2=True)}, 6),
        (NESTED, 1 + 1 + 2 + 4),
        ({key: NESTED[key] for key in ("num_workers", "accumulate")}, 4),
        (BY_PRECISION, None),
        ({"precision": ["fp32"], "num_workers": span(1, 4)}, 4),
        (rates(case([0.1], optimizer="adam"), case(span(0.1, 1.0), optimizer="sgd")), 1),
    ],
)
def test_the_configurations_of_a_space_are_counted(space, number):
    assert num_configurations(parse(space)) == number


def with_warmup(constant, ramp_decay):
    """Return a space of two schedules, each with its own list of warm-up epochs."""
    cases = [case(constant, schedule="constant"), case(ramp_decay, schedule="ramp_decay")]
    return {"schedule": ["constant", "ramp_decay"], "warmup_epochs": cases}


@pytest.mark.parametrize("warmup", [[0, 1], with_warmup([0], [0, 1])["warmup_epochs"]])
def test_an_impossible_combination_is_refused(warmup):
    with refused(CONFLICT, "schedule: ramp_decay, warmup_epochs: 1", "warmup_epochs: 0"):
        parse({"schedule": ["constant", "ramp_decay"], "warmup_epochs": warmup})


def test_conflicting_keys_are_allowed_if_conditions_separate_them():
    # Too many other keys to enumerate all combinations.
    space = with_warmup([0, 1], [0])
    for key in ("num_workers", "batch_size_per_worker", "accumulate"):
        space[key] = list(range(1, 100))
    for key in ("momentum", "beta1", "beta2"):
        space[key] = [number / 10 for number in range(1, 8)]
    assert num_configurations(parse(space)) == 3 * 7**3 * 99**3


VALUES = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [1, 2, 4],
    "accumulate": [1, 2],
    "optimizer": ["adam", "lars", "sgd"],
    "schedule": ["constant", "cosine", "ramp_decay"],
    "warmup_epochs": [0, 1, 2.5],
    "precision": ["fp32", "bf16"],
    "momentum": [0.0, 0.9],
}


@st.composite
def studies(draw):
    """A space and fixed keys, with conditions on any key, searched or not."""
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    some = st.sampled_from
    space = {}
    for key in keys:
        values = draw(st.lists(some(VALUES[key]), min_size=1, unique=True))
        condition = draw(some(sorted(VALUES)))
        if draw(st.booleans()):
            space[key] = values
            continue
        allowed = VALUES[condition]
        cut = draw(st.integers(0, len(allowed)))
        space[key] = [
            case(draw(st.permutations(VALUES[key]))[:2], **{condition: part})
            for part in (allowed[:cut], allowed[cut:])
            if part
        ]
    rest = [key for key in sorted(VALUES) if key not in keys]
    fixed = {key: draw(some(VALUES[key])) for key in rest if draw(st.booleans())}
    return space, fixed


@settings(max_examples=60, deadline=None)
@given(studies())
def test_every_accepted_space_yields_only_valid_runs(study):
    raw, fixed = study
    problem = ""
    try:
        space = parse(raw, fixed)
    except UserError as error:
        problem = str(error)
    if problem:
        assert problem.startswith(("s.yaml: 'space", "s.yaml: fixed: "))
        return
    drawn = [
        tuple(values[key] for key in space) for values in combinations(space, fixed, list(space))
    ]
    assert len(set(drawn)) == len(drawn) == num_configurations(space, fixed)
    for values in drawn:
        content = known_values(fixed, dict(zip(space, values, strict=True)))
        assert set(content) == set(SEARCHABLE)
        validate(RunSpec, content, "drawn")


@pytest.mark.parametrize(
    ("dimension", "name"),
    [
        ({"values": [1, 2]}, "[{...}, {...}]"),
        ({"min": 1, "max": 8}, "low"),
        ([float("nan"), 1], "nan"),
        ({"kernel": 3, "stride": 1}, "[{...}, {...}]"),
        ([case([1], optimizer="adam"), 3], "'when'"),
    ],
)
def test_a_dimension_that_is_neither_list_nor_range_is_refused(dimension, name):
    with refused(INVALID, "model", name):
        parse({"model.n": dimension})


@pytest.mark.parametrize(
    ("low", "high", "is_integer"), [(100, 1000, True), (100.0, 1000.0, False), (0, 0.5, False)]
)
def test_bounds_decide_whether_a_range_is_an_integer(low, high, is_integer):
    assert parse({"model.n": span(low, high)})["model.n"].is_integer == is_integer


@pytest.mark.parametrize(("low", "high"), [(100.0, 1000), (8, 512.0), (0, 1.0)])
def test_mixed_integer_and_float_bounds_are_refused(low, high):
    with refused(INVALID, int(low), int(high), float(low), float(high)):
        parse({"model.n": span(low, high)})
