"""Conditions of a space: on defaults, reachable combinations, and keys that exclude each other."""

import pytest

from raybench.spec.errors import UserError
from raybench.spec.space import num_configurations, parse_space

BY_PRECISION = [
    {"when": {"precision": "fp32"}, "low": 1e-4, "high": 0.01, "log": True},
    {"when": {"precision": "bf16"}, "low": 1e-3, "high": 0.1, "log": True},
]


def parse(space, fixed=None):
    return parse_space(space, fixed or {}, "s.yaml")


def refusal(space, fixed=None):
    with pytest.raises(UserError) as caught:
        parse(space, fixed)
    sentence = str(caught.value)
    assert sentence.startswith("s.yaml: ")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(("values", "high"), [({}, 0.01), ({"precision": "bf16"}, 0.1)])
def test_a_condition_on_a_key_with_a_default_just_works(values, high):
    cases = parse({"learning_rate": BY_PRECISION})["learning_rate"]
    assert cases.choose(values).dimension.high == high


def test_no_case_is_an_error_that_generators_do_not_swallow():
    cases = parse({"precision": ["fp32"], "learning_rate": BY_PRECISION})["learning_rate"]
    with pytest.raises(ValueError, match="no case holds for precision=fp8"):
        cases.choose({"precision": "fp8"})


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"optimzer": "adam"}, "unknown key 'optimzer' in 'when'; did you mean 'optimizer'?"),
        ({"zzz": 1}, "unknown key 'zzz' in 'when'; there are framework, num_workers"),
        (
            {"precision": "bf61"},
            "'precision': input should be 'fp32', 'tf32' or 'bf16' (found 'bf61')",
        ),
        ({"precision": []}, "'precision' has an empty list"),
        ({7: 1}, "unknown key '7' in 'when'"),
    ],
)
def test_a_condition_that_cannot_be_is_named(when, message):
    case = {"when": when, "values": [0.1]}
    rest = {"when": {"precision": ["fp32", "bf16"]}, "values": [0.2]}
    assert message in refusal({"learning_rate": [case, rest]}, {"optimizer": "adam"})


NESTED = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [
        {"when": {"framework": "torch"}, "values": [1, 2, 3]},
        {"when": {"framework": "tensorflow"}, "values": [4]},
    ],
    "accumulate": [
        {"when": {"framework": "torch", "num_workers": [1, 2]}, "values": [1]},
        {"when": {"framework": "torch", "num_workers": 3}, "values": [2, 3]},
        {"when": {"framework": "tensorflow", "num_workers": 4}, "values": [1, 2, 3, 4]},
    ],
}


def test_only_combinations_that_can_come_need_a_case():
    space = parse(NESTED)  # nobody draws tensorflow with 3 workers
    chosen = space["accumulate"].choose({"framework": "tensorflow", "num_workers": 4})
    assert len(chosen.dimension.values) == 4


@pytest.mark.parametrize(
    ("space", "fixed", "number"),
    [
        (NESTED, {}, 1 + 1 + 2 + 4),
        (NESTED | {"optimizer": ["adam", "sgd"]}, {}, 16),
        ({key: NESTED[key] for key in ("num_workers", "accumulate")}, {"framework": "torch"}, 4),
        ({key: NESTED[key] for key in ("num_workers", "accumulate")}, {}, 4),
        ({"learning_rate": BY_PRECISION}, {}, None),
        ({"precision": ["fp32"], "num_workers": {"low": 1, "high": 4}}, {}, 4),
        ({"momentum": [{"when": {"optimizer": "adam"}, "values": [0.5, 0.9]}]}, {}, 2),
        (
            {
                "optimizer": ["adam"],
                "learning_rate": [
                    {"when": {"optimizer": "adam"}, "values": [0.1]},
                    {"when": {"optimizer": "sgd"}, "low": 0.1, "high": 1.0},
                ],
            },
            {},
            1,
        ),
    ],
)
def test_a_space_of_conditional_lists_is_counted(space, fixed, number):
    assert num_configurations(parse(space, fixed), fixed) == number


@pytest.mark.parametrize(
    ("space", "fixed"),
    [
        ({"schedule": ["constant", "ramp_decay"], "warmup_epochs": [0, 1]}, {}),
        ({"warmup_epochs": [0, 1], "schedule": ["constant", "ramp_decay"]}, {}),
        ({"schedule": ["constant", "ramp_decay"]}, {"warmup_epochs": 1}),
        ({"warmup_epochs": {"low": 0, "high": 1}}, {"schedule": "ramp_decay"}),
        (
            {
                "schedule": ["constant", "ramp_decay"],
                "warmup_epochs": [
                    {"when": {"schedule": "constant"}, "values": [0]},
                    {"when": {"schedule": "ramp_decay"}, "values": [0, 1]},
                ],
            },
            {},
        ),
    ],
)
def test_a_combination_that_no_run_could_have_is_refused_and_named(space, fixed):
    sentence = refusal(space, fixed)
    assert "schedule: ramp_decay, warmup_epochs: 1" in sentence
    assert "set warmup_epochs: 0" in sentence


def test_keys_that_exclude_each_other_pass_where_cases_keep_them_apart():
    space = parse(
        {
            "schedule": ["constant", "ramp_decay"],
            "warmup_epochs": [
                {"when": {"schedule": "constant"}, "values": [0, 1]},
                {"when": {"schedule": "ramp_decay"}, "values": [0]},
            ],
            # Enough other keys that all combinations together would take for ever.
            **{key: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7] for key in ("momentum", "beta1", "beta2")},
            "num_workers": list(range(1, 100)),
            "batch_size_per_worker": list(range(1, 100)),
            "accumulate": list(range(1, 100)),
        }
    )
    assert num_configurations(space) == 3 * 7**3 * 99**3


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"learning_rate": {"low": 0.1, "high": 1e300}}, "1e+300"),
        ({"weight_decay": [0, 1e39]}, "1e+39"),
        ({"epsilon": [1e-60]}, "1e-60"),
        ({"learning_rate": {"low": 0.1, "high": 10**40}}, "64 bits"),
        ({"num_workers": [1, 2**63]}, "64 bits"),
        ({"batch_size_per_worker": {"low": 1, "high": 2**70, "log2": True}}, "64 bits"),
    ],
)
def test_numbers_that_no_machine_type_holds(space, words):
    assert words in refusal(space)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"learning_rate": {"low": 1, "high": 8, "log": True, "log2": True}}, "log or log2"),
        ({"learning_rate": [1, 1.0]}, "stands there twice"),
        ({"learning_rate": [{"when": {"precision": "fp32"}}]}, "values: [...] or low and high"),
        ({"learning_rate": {}}, "the key 'low' is required"),
        ({"learning_rate": [[0.1, 0.2]]}, "'learning_rate'"),
    ],
)
def test_other_dimensions_that_cannot_be(space, words):
    assert words in refusal(space)
