import pytest

from raybench.spec.errors import UserError
from raybench.spec.space import (
    Cases,
    Choices,
    Powers,
    Range,
    num_configurations,
    parse_space,
    possible_values,
)

FIXED = {"warmup_epochs": 1}
LARS_ONLY = {"when": {"optimizer": "lars"}, "low": 0.01, "high": 10.0, "log": True}
OTHERS = {"when": {"optimizer": ["adam", "lamb"]}, "low": 1e-4, "high": 0.03, "log": True}


def parse(space, fixed=None):
    return parse_space(space, FIXED if fixed is None else fixed, "s.yaml")


def test_lists_single_values_and_ranges():
    space = parse(
        {
            "framework": ["torch", "tensorflow"],
            "optimizer": "adam",
            "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
            "accumulate": {"low": 1, "high": 4},
            "batch_size_per_worker": {"low": 10, "high": 100, "log2": True},
        }
    )
    assert space["framework"] == Choices(("torch", "tensorflow"))
    assert space["optimizer"] == Choices(("adam",))
    assert space["learning_rate"] == Range(1e-4, 0.1, log=True, is_integer=False)
    assert space["accumulate"] == Range(1, 4, log=False, is_integer=True)
    assert possible_values(space["accumulate"]) == [1, 4]
    assert possible_values(space["batch_size_per_worker"]) == [16, 32, 64]


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [(16, 512, [16, 32, 64, 128, 256, 512]), (1, 2, [1, 2]), (17, 63, [32]), (3, 4, [4])],
)
def test_powers_of_two_include_both_bounds(low, high, values):
    assert list(Powers(low, high).values()) == values


def test_cases_choose_by_values_above_or_fixed():
    space = parse({"optimizer": ["adam", "lamb", "lars"], "learning_rate": [OTHERS, LARS_ONLY]})
    cases = space["learning_rate"]
    assert isinstance(cases, Cases)
    assert cases.choose({"optimizer": "lars"}).dimension.high == 10.0
    assert cases.choose({"optimizer": "lamb"}).dimension.high == 0.03
    assert cases.choose({"optimizer": "lamb"}).label() == "optimizer=adam|lamb"
    only = parse({"learning_rate": [OTHERS, LARS_ONLY]}, {"optimizer": "lars"})
    assert possible_values(only["learning_rate"]) == [1e-4, 0.03, 0.01, 10.0]


def test_cases_may_hold_lists_and_depend_on_two_keys():
    cases = [
        {"when": {"framework": "torch"}, "values": [1, 2]},
        {"when": {"framework": "tensorflow", "precision": "fp32"}, "values": [4]},
        {"when": {"framework": "tensorflow", "precision": "bf16"}, "values": [8]},
    ]
    space = parse(
        {"framework": ["torch", "tensorflow"], "precision": ["fp32", "bf16"], "num_workers": cases}
    )
    chosen = space["num_workers"].choose({"framework": "tensorflow", "precision": "bf16"})
    assert chosen.dimension == Choices((8,))
    assert possible_values(space["num_workers"]) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("space", "number"),
    [
        ({"framework": ["torch", "tensorflow"], "num_workers": [1, 2, 4]}, 6),
        ({"batch_size_per_worker": {"low": 16, "high": 512, "log2": True}}, 6),
        ({"framework": ["torch"], "learning_rate": {"low": 0.1, "high": 0.2}}, None),
    ],
)
def test_number_of_configurations(space, number):
    assert num_configurations(parse(space)) == number


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"optimizer": []}, r"'space\.optimizer': the list is empty"),
        ({"optimizer": ["adam", "adam"]}, "stands there twice"),
        ({"optimizer": ["adam", "adagrad"]}, r"'optimizer': .*'adagrad'"),
        ({"num_workers": [1, True]}, "num_workers"),
        ({"learning_rate": {"low": 0.2, "high": 0.1}}, "low 0.2 is not below high 0.1"),
        ({"learning_rate": {"low": float("nan"), "high": 0.1}}, "should be a finite number"),
        ({"weight_decay": {"low": 0, "high": 0.1, "log": True}}, "low above 0"),
        ({"learning_rate": {"low": "a", "high": 0.1}}, "a valid number .found 'a'"),
        ({"num_workers": {"low": True, "high": 4}}, "a valid number .found True"),
        ({"learning_rate": {"low": 0.1}}, "the key 'high' is required"),
        ({"learning_rate": {"low": 0.1, "high": 0.2, "lgo": True}}, "unknown key 'lgo'"),
        ({"learning_rate": {"low": 0.1, "high": 0.2, "log": 1}}, "a valid boolean"),
        ({"num_workers": {"low": 5, "high": 7, "log2": True}}, "no power of two"),
        ({"num_workers": {"low": 1.5, "high": 8.0}}, "must be whole numbers"),
        ({"seed": [0, 1]}, "cannot be searched; there are framework"),
        ({"batch_size": [1]}, "cannot be searched; did you mean 'batch_size_per_worker'"),
        ({"warmup_epochs": [0, 1]}, "also stands under 'fixed'"),
    ],
)
def test_bad_dimensions_are_refused_by_name(space, message):
    with pytest.raises(UserError, match=message) as refusal:
        parse(space)
    assert str(refusal.value).startswith("s.yaml: ")
    assert next(iter(space)) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {"optimizer": ["adam", "sgd"], "learning_rate": [OTHERS, LARS_ONLY]},
            "no case for optimizer: sgd",
        ),
        ({"optimizer": ["adam"], "learning_rate": [OTHERS, OTHERS]}, "2 cases for optimizer: adam"),
        ({"learning_rate": [OTHERS], "optimizer": ["adam"]}, "'optimizer', which must stand above"),
        ({"learning_rate": [LARS_ONLY]}, "no case for optimizer: adam"),
        (
            {"learning_rate": [OTHERS | {"when": {"learning_rate": 0.1}}]},
            "'learning_rate', which must stand above",
        ),
        ({"optimizer": ["adam"], "learning_rate": [OTHERS | {"when": {}}]}, "'when' must name"),
        (
            {"optimizer": ["adam"], "learning_rate": [OTHERS | {"when": {"optimizer": "adm"}}]},
            "adm",
        ),
        (
            {
                "num_workers": {"low": 1, "high": 4},
                "accumulate": [{"when": {"num_workers": [1, 4]}, "values": [1]}],
            },
            "'num_workers', which is a range",
        ),
        ({"optimizer": ["adam"], "learning_rate": [OTHERS | {"low": 9.0}]}, "the range is empty"),
    ],
)
def test_bad_cases_are_refused(space, message):
    with pytest.raises(UserError, match=message) as refusal:
        parse(space)
    assert "\n" not in str(refusal.value)


def test_cases_cannot_depend_on_a_range_inside_cases():
    # At 3 workers no case of accumulate holds: `choose` raises StopIteration in the search.
    with pytest.raises(UserError, match="num_workers"):
        parse(
            {
                "framework": ["torch"],
                "num_workers": [{"when": {"framework": "torch"}, "low": 1, "high": 4}],
                "accumulate": [{"when": {"num_workers": [1, 4]}, "values": [1]}],
            }
        )
