"""Factorized spaces: sampled keys, placements, and reasons why a space is not factorized."""

from typing import Any

import pytest

from raybench.search.factorisation import (
    GLOBAL_BATCH,
    SAMPLED_WHOLE,
    Factors,
    factorise,
    study_factors,
    with_placement,
)
from raybench.spec.run import RunSpec
from raybench.spec.space import Choices, Powers
from raybench.spec.study import build_study

SPACE: dict[str, Any] = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [1, 2, 4],
    "batch_size_per_worker": {"low": 16, "high": 64, "log2": True},
    "optimizer": ["adam", "lars"],
    "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
}
BATCH = {GLOBAL_BATCH: 64}


def take_apart(
    changes: dict[str, Any], *, equal: bool = True, kind: str = "time_to_target", **fixed: Any
) -> Factors | str:
    space = {key: value for key, value in (SPACE | changes).items() if value is not None}
    objective = {"kind": kind, "target": 0.9 if kind == "time_to_target" else None}
    study, parsed = build_study({"objective": objective, "space": space, "fixed": fixed}, "test")
    return factorise(study, parsed, equal_frameworks=equal)


def factors(changes: dict[str, Any], *, equal: bool = True, **fixed: Any) -> Factors:
    factorized = take_apart(changes, equal=equal, **fixed)
    assert isinstance(factorized, Factors), factorized
    return factorized


def test_a_global_batch_stands_for_all_its_placements_most_workers_first():
    space = factors({})
    assert set(space.sampled) == {GLOBAL_BATCH, "optimizer", "learning_rate"}
    assert space.sampled[GLOBAL_BATCH] == Powers(16, 256)
    placements = space.placements_for({GLOBAL_BATCH: 64})
    assert [
        (place.num_workers, place.batch_size_per_worker, place.framework) for place in placements
    ] == [(k, 64 // k, framework) for k in (4, 2, 1) for framework in ("torch", "tensorflow")]
    assert space.placements_for_spec(RunSpec(num_workers=2, batch_size_per_worker=32)) == placements


BF16 = {"precision": "bf16"}


@pytest.mark.parametrize(
    ("changes", "equal", "sampled"),
    [({}, False, {"framework": "torch"}), ({"precision": ["fp32", "bf16"]}, True, BF16)],
    ids=["frameworks of different networks", "precision"],
)
def test_a_key_of_a_placement_that_changes_the_curve_is_sampled(changes, equal, sampled):
    factorized = factors(changes, equal=equal)
    assert sampled.keys() <= factorized.sampled.keys()
    placements = factorized.placements_for(BATCH | sampled)
    (key,) = sampled
    assert {getattr(place, key) for place in placements} == {*sampled.values()}
    assert {place.num_workers for place in placements} == {1, 2, 4}
    spec = with_placement(RunSpec(**sampled), placements[0])
    assert factorized.placements_for_spec(spec) == placements


BY_FRAMEWORK = [
    {"when": {"framework": "torch"}, "values": ["none", "default"]},
    {"when": {"framework": "tensorflow"}, "values": ["none", "xla"]},
]
COMPILED = {("torch", "none"), ("torch", "default"), ("tensorflow", "none"), ("tensorflow", "xla")}


@pytest.mark.parametrize(
    ("key", "values", "varies", "expected"),
    [
        ("compile", BY_FRAMEWORK, ("framework", "compile"), COMPILED),
        ("accelerator_type", ["A100", "H100"], ("accelerator_type",), {("A100",), ("H100",)}),
        ("accumulate", [1, 2], ("batch_size_per_worker", "accumulate"), {(64, 1), (32, 2)}),
        ("prefetch", [0, 1], ("prefetch",), {(0,), (1,)}),
    ],
)
def test_keys_that_change_only_the_speed_are_not_sampled(key, values, varies, expected):
    factorized = factors({"num_workers": None, key: values}, gpus_per_worker=1)
    assert set(factorized.sampled) == {GLOBAL_BATCH, "optimizer", "learning_rate"}
    placements = factorized.placements_for(BATCH)
    assert {tuple(getattr(place, name) for name in varies) for place in placements} == expected
    assert len(placements) == 4


@pytest.mark.parametrize(
    ("workers", "batches", "products"),
    [([1, 3], [10, 20], (10, 20, 30, 60)), ([2], [64], (128,)), (None, None, (64,))],
)
def test_global_batches_that_are_no_range_of_powers_are_listed(workers, batches, products):
    factorized = factors({"num_workers": workers, "batch_size_per_worker": batches})
    assert factorized.sampled[GLOBAL_BATCH] == Choices(products)
    placements = factorized.placements_for({GLOBAL_BATCH: products[0]})
    assert [place.framework for place in placements] == ["torch", "tensorflow"]


BY_OPTIMIZER = [
    {"when": {"optimizer": optimizer}, "values": ["none"]} for optimizer in ("adam", "lars")
]
BY_WORKERS = [{"when": {"num_workers": k}, "values": [k / 10]} for k in (1, 2, 4)]


@pytest.mark.parametrize(
    ("changes", "fixed", "reason"),
    [
        ({"num_workers": [2], "framework": ["torch"]}, {}, "workers"),
        ({"batch_size_per_worker": {"low": 16, "high": 64}}, {}, "space.batch_size_per_worker"),
        ({"bucket_mb": [1.0, 25.0]}, {}, "space.bucket_mb"),
        ({"compile": BY_OPTIMIZER}, {}, "space.compile"),
        ({"framework": ["tensorflow"]}, {"strategy": "single_process"}, "strategy"),
        ({}, {"learning_rate_scaling": "linear"}, "learning_rate_scaling"),
        ({"weight_decay": BY_WORKERS}, {}, "space.weight_decay"),
        ({}, {"kind": "best_at_budget"}, "seconds"),
    ],
)
def test_spaces_that_cannot_be_factorized_name_the_reason(changes, fixed, reason):
    explanation = take_apart(changes, **fixed)
    assert isinstance(explanation, str)
    assert reason in explanation


@pytest.mark.parametrize(
    ("workers", "search", "is_whole"),
    [([1, 2], {}, True), ([1], {}, False), ([1, 2], {"factorise": True}, False)],
)
def test_worker_counts_of_a_model_with_batch_statistics_are_not_predicted_by_default(
    workers, search, is_whole
):
    content = {"objective": {"target": 0.9}, "space": SPACE | {"num_workers": workers}}
    study, parsed = build_study(content | {"search": search}, "test")
    factorized = study_factors(study, parsed, batch_statistics=True)
    assert (factorized == SAMPLED_WHOLE) == is_whole
    assert isinstance(study_factors(study, parsed), Factors)
