"""Search spaces and run specs as parameters of Optuna."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raybench.data.load import load_dataset
from raybench.report.console import make_console
from raybench.runs.preflight import first_values
from raybench.search.factorisation import Factors, factorise
from raybench.search.reference import reference_spec
from raybench.search.sampling.optuna_space import distributions, encode, params_of
from raybench.search.search import Search
from raybench.search.study_plan import StudyPlan
from raybench.spec.run import RunSpec
from raybench.spec.space import num_configurations, parse_space
from raybench.spec.study import build_study
from tests.search.made_up import RATES, STUDY, run_all, trained

SHARE = "learning_rate [share of its range]"


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
def test_params_of_runs_inside_and_outside_the_space(
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


LISTS: dict[str, list[Any]] = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [1, 2],
    "optimizer": ["adam", "radam", "lars", "lamb", "sgd"],
    "precision": ["fp32", "bf16"],
    "schedule": ["constant", "cosine"],
    "accumulate": [1, 2],
    "learning_rate_scaling": ["none", "linear", "sqrt"],
    "cpus_per_worker": [1, 2],
}
RANGES: dict[str, Any] = {
    "batch_size_per_worker": {"low": 16, "high": 256, "log2": True},
    "weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "momentum": {"low": 0.5, "high": 0.99},
}
RATE_RANGES = [{"low": 1e-4, "high": 1e-2, "log": True}, {"low": 1e-3, "high": 1.0, "log": True}]


@st.composite
def studies(draw: st.DrawFn) -> dict[str, Any]:
    """A study of some keys, whose learning rate may depend on one of them or on a fixed key."""
    lists = draw(st.sets(st.sampled_from(sorted(LISTS)), max_size=4))
    space: dict[str, Any] = {
        key: draw(st.lists(st.sampled_from(LISTS[key]), min_size=1, unique=True))
        for key in sorted(lists)
    }
    for key in sorted(draw(st.sets(st.sampled_from(sorted(RANGES)), max_size=2))):
        space[key] = RANGES[key]
    fixed: dict[str, Any] = {}
    conditional = draw(st.sampled_from([None, *sorted(LISTS)]))
    if conditional is None:
        space["learning_rate"] = draw(st.sampled_from([*RATE_RANGES, [1e-3, 1e-2]]))
    else:  # searched, fixed, or neither: then its default decides
        if conditional not in space and draw(st.booleans()):
            fixed[conditional] = draw(st.sampled_from(LISTS[conditional]))
        values = LISTS[conditional]
        cut = draw(st.integers(1, len(values) - 1))
        space["learning_rate"] = [
            {"when": {conditional: part}, **rate}
            for part, rate in zip((values[:cut], values[cut:]), RATE_RANGES, strict=True)
        ]
    kind = draw(st.sampled_from(["time_to_target", "best_at_budget"]))
    objective = {"kind": kind, "target": 0.9 if kind == "time_to_target" else None}
    sampler = draw(st.sampled_from(["tpe", "tpe", "random", "qmc"]))
    search = {"sampler": sampler, "seed": draw(st.integers(0, 99)), "trials": 10}
    return {"objective": objective, "search": search, "space": space, "fixed": fixed}


@given(content=studies())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_valid_space_is_planned_and_sampled(content: dict[str, Any]) -> None:
    study, space = build_study(content, "generated")
    study.run_spec(first_values(study, space))
    reference_spec(study, space)
    plan = StudyPlan.of(study, space)
    plan.show(make_console(file=io.StringIO()), load_dataset(study.dataset), "out", None)
    apart = plan.factors if isinstance(plan.factors, Factors) else None
    with TemporaryDirectory() as folder:
        search = Search(study, space, Path(folder), factors=apart)
        ended = run_all(search, trained, most=4)  # fewer where the space is exhausted
    assert ended


@pytest.mark.parametrize(
    "values",
    [
        [None, "relu"],
        ["auto", 1, 0.5],
        [1, 1.0, True, "1"],
        [64, [64, 32]],
        [{"kernel": 3, "stride": 1}, {"kernel": 5, "stride": 2}],
        [None, [1, [2]], {"a": None}],
    ],
)
def test_choices_of_mixed_types_are_kept(values: list[Any]) -> None:
    space = parse_space({"model.n": values}, {}, "s.yaml")
    assert num_configurations(space) == len(values)
    (distribution,) = distributions(space).values()
    encoded = [encode(space, {}, {"model.n": value})["model.n"] for value in values]
    assert list(distribution.choices) == encoded
    assert [distribution.to_internal_repr(choice) for choice in encoded] == list(range(len(values)))
