"""Columns as numbers."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from raybench.data.sources import encode
from raybench.data.sources.encode import NotUsed, count_names, learn_names, learn_numbers
from raybench.data.sources.table import as_numbers


def numbers(training, *, is_flag=False, counted_rows=0):
    known = as_numbers(pa.array(training))
    return learn_numbers("x", known, is_flag=is_flag, counted_rows=counted_rows)


def names(training, *, is_asked=False):
    values = pa.array(training)
    counts = count_names([values[:3], values[3:]])
    return learn_names("x", counts, len(values), is_asked=is_asked)


def test_a_number_is_less_the_mean_by_the_deviation():
    values = 1e6 + np.random.default_rng(0).normal(size=100)
    out = numbers(values).encode(pa.array([values.mean(), values.mean() + values.std()]))
    np.testing.assert_allclose(out, [[0], [1]], atol=1e-5)


def test_missing_and_infinite_numbers_are_the_mean_and_say_so():
    out = numbers([1.0, 3.0, None, np.nan]).encode(pa.array([2.0, None, np.inf]))
    np.testing.assert_array_equal(out, [[0, 0], [0, 1], [0, 1]])


def test_dates_are_days_and_flags_stay():
    days = [datetime.date(2020, 1, number) for number in (1, 2, 3)]
    out = numbers(days).encode(pa.array(days))
    np.testing.assert_allclose(np.diff(out[:, 0]), np.sqrt(3 / 2), rtol=1e-5)
    flags = numbers([True, True, False], is_flag=True).encode(pa.array([True, False]))
    np.testing.assert_array_equal(flags, [[1], [0]])


@pytest.mark.parametrize(
    ("learn", "reason"),
    [
        (lambda: numbers([2.0, 2.0]), "is 2 in every"),
        (lambda: numbers([None, np.nan]), "has no values"),
        (lambda: numbers([1, 2, 3], counted_rows=3), "counts the rows"),
        (lambda: names(["a", " a "]), "is 'a' in every"),
        (lambda: names([f"id{number}" for number in range(200)]), "a text of its own"),
    ],
)
def test_columns_that_say_nothing_are_not_used(learn, reason):
    with pytest.raises(NotUsed, match=reason):
        learn()


def test_whole_numbers_that_do_not_count_rows_are_used():
    assert numbers([1, 3, 2], counted_rows=3).features == ["x"]
    assert numbers([10, 20, 30], counted_rows=3).features == ["x"]


def test_names_get_a_feature_each_and_unseen_ones_none():
    column = names(["b", "a", "b", None])
    assert column.features == ["x=b", "x=", "x=a"]
    out = column.encode(pa.array(["a", "b", "c", None, " b"]))
    np.testing.assert_array_equal(out, [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]])


def test_rare_names_share_a_feature_and_have_their_frequency(monkeypatch):
    monkeypatch.setattr(encode, "MAX_LEVELS", 2)
    training = ["a"] * 8 + ["b"] * 4 + ["c", "d"]
    column = names(training, is_asked=True)
    assert column.features == ["x=a", "x=b", "x=another", "x frequency"]
    out = column.encode(pa.array(["a", "b", "c", "d", "never"]))
    np.testing.assert_array_equal(out[:, :3], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0] * 3])
    assert out[0, 3] > out[1, 3] > out[2, 3] == out[3, 3] == out[4, 3]
    assert column.encode(pa.array(training))[:, 3].mean() == pytest.approx(0, abs=1e-6)


def test_codes_named_as_categories():
    column = names([10, 20, 10], is_asked=True)
    assert column.features == ["x=10", "x=20"]
    np.testing.assert_array_equal(column.encode(pa.array([20, 10])), [[0, 1], [1, 0]])
