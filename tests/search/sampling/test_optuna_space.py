"""The parameters that the sampler sees, and run specs as such parameters."""

from typing import Any

import pytest

from raybench.search.factorisation import Factors, factorise
from raybench.search.sampling.optuna_space import distributions, encode, params_of
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from tests.search.made_up import RATES, SHARE, STUDY


def test_ranges_by_optimizer_are_one_parameter_that_comes_back_exactly() -> None:
    _, space = build_study(RATES, "test")
    assert set(distributions(space)) == {"optimizer", SHARE}
    for optimizer, rate, share in (
        ("adam", 1e-4, 0.0),
        ("adam", 1e-1, 1.0),
        ("adam", 1e-2, 2 / 3),
        ("lars", 10.0, 1.0),
        ("lars", 0.1, 1 / 3),
    ):
        params = encode(space, {}, {"optimizer": optimizer, "learning_rate": rate})
        assert params[SHARE] == pytest.approx(share)
        assert 0.0 <= params[SHARE] <= 1.0
    outside = encode(space, {}, {"optimizer": "adam", "learning_rate": 1.0})
    assert outside[SHARE] > 1.0


def test_cases_that_are_lists_keep_names_of_their_own() -> None:
    rates = [
        {"when": {"optimizer": "adam"}, "values": [1e-3, 1e-2]},
        {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
    ]
    _, space = build_study(RATES | {"space": RATES["space"] | {"learning_rate": rates}}, "test")
    assert set(distributions(space)) == {
        "optimizer",
        "learning_rate [optimizer=adam]",
        "learning_rate [optimizer=lars]",
    }


def spec_of(**changes: Any) -> RunSpec:
    study, _ = build_study(STUDY, "test")
    values = {"num_workers": 2, "batch_size_per_worker": 64, "optimizer": "adam"}
    return study.run_spec(values | {"learning_rate": 0.01} | changes)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("changes", "is_inside"),
    [
        ({}, True),
        ({"optimizer": "lars", "learning_rate": 10.0}, True),
        ({"optimizer": "lars", "learning_rate": 1e-3}, False),
        ({"optimizer": "sgd"}, False),  # no case of the rate holds for it
        ({"batch_size_per_worker": 65}, False),  # no power of two, and not the next one either
        ({"batch_size_per_worker": 1024}, False),
        ({"weight_decay": 0.1}, False),
        ({"eval_every_samples": 77}, True),
    ],
)
def test_a_run_is_of_the_space_or_not(
    changes: dict[str, Any], is_inside: bool, apart: bool
) -> None:
    study, space = build_study(STUDY, "test")
    factors = factorise(study, space, equal_frameworks=True)
    assert isinstance(factors, Factors)
    sampled = factors.sampled if apart else space
    spec = spec_of(**changes)
    params = params_of(spec, study, sampled)
    assert (params is not None) == is_inside
    if params is not None:
        values = {"optimizer": spec.optimizer, "learning_rate": spec.learning_rate}
        values |= (
            {"global_batch_size": 128} if apart else {"num_workers": 2, "batch_size_per_worker": 64}
        )
        assert params == encode(sampled, {}, values)
