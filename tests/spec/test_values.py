"""Values of settings: conversion from Python objects, identity and labels."""

import enum
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raybench.api import call_options
from raybench.search.resolve import study_content
from raybench.search.sampling.optuna_space import distributions, encode
from raybench.spec.documents import parse_yaml
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec, describe
from raybench.spec.space import num_configurations, parse_space, possible_values
from raybench.spec.study import build_study
from raybench.spec.values import identity, plain_data, short
from tests.refusals import refused

ALIKE = [None, "", "None", "null", "1", 1, 1.0, True, "true", "1.0", [1], "[1]", [], {}, [None]]
ALIKE += [{"a": 1}, {"a": 1.0}, "nan", 1e300, "inf", " ", "a, b", ["a", "b"], "~", "it's"]


class Act(enum.Enum):
    RELU = "relu"


def test_values_that_look_alike_stay_distinct():
    assert len({*map(short, ALIKE)}) == len({*map(identity, ALIKE)}) == len(ALIKE)
    specs = [RunSpec(model={"n": value}) for value in ALIKE]
    assert all((a == b) == (a is b) for a in specs for b in specs)
    assert len({describe(spec, ["model.n"]) for spec in specs}) == len(ALIKE)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (None, "null"),
        (True, "true"),
        ("relu", "relu"),
        ("max pool", "max pool"),
        ("1", "'1'"),
        (0.9999, "0.9999"),
        (0.99995, "0.99995"),
        (0.0123456, "0.0123"),
        ({"kernel": 3, "act": None}, "{kernel:3,act:null}"),
    ],
)
def test_labels_are_yaml(value, label):
    assert short(value) == label


def test_labels_are_read_back_as_the_same_value():
    for value in (None, True, 1, 1.0, 0.25, "relu", "1", "null", "", "1e3"):
        assert identity(parse_yaml(short(value), "label")) == identity(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.logspace(-3, -1, 3), [0.001, 0.01, 0.1]),
        (list(np.arange(1, 4)), [1, 2, 3]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([0.1, 0.2], dtype="float32"), [0.1, 0.2]),
        ((np.bool_(True), np.str_("a"), np.float32(0.1), np.array(3)), [True, "a", 0.1, 3]),
        (pd.Series([1, 2]), [1, 2]),
        (range(4, 8), [4, 5, 6, 7]),
        ({"b", "a"}, ["a", "b"]),
        ([Act.RELU, Path("x/y")], ["relu", "x/y"]),
        ({"low": np.int64(1), "high": np.int64(9)}, {"low": 1, "high": 9}),
    ],
)
def test_python_objects_become_plain_data(value, expected):
    assert identity(plain_data(value, "space")) == identity(expected)


@pytest.mark.parametrize("value", [object(), 1j, b"x", lambda: 1, np.datetime64("2020-01-01")])
def test_unsupported_objects_are_refused_by_key(value):
    with refused(ErrorCode.INVALID_VALUE, "'space.n'"):
        plain_data({"space": {"n": [value]}}, "space")


def searched(**space):
    """Return the space of a `raybench.tune` call."""
    content = {"objective": {"target": 0.9}, "fixed": {"framework": "python"}, "space": space}
    options = call_options("tune", {"space": content, "train": "loop.py:train"})
    return build_study(*study_content(options)[:2])[1]


def test_numpy_values_of_a_space_become_numbers():
    space = searched(
        learning_rate=np.logspace(-3, -1, 3),
        model={"n": (1, 2), "m": {"low": np.int64(1), "high": np.int64(9)}},
    )
    assert possible_values(space["learning_rate"]) == [0.001, 0.01, 0.1]
    assert possible_values(space["model.n"]) == [1, 2]
    assert space["model.m"].is_integer


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
def test_choices_of_mixed_types_are_kept(values):
    space = parse_space({"model.n": values}, {}, "s.yaml")
    assert num_configurations(space) == len(values)
    (distribution,) = distributions(space).values()
    encoded = [encode(space, {}, {"model.n": value})["model.n"] for value in values]
    assert list(distribution.choices) == encoded
    assert [distribution.to_internal_repr(choice) for choice in encoded] == list(range(len(values)))
