"""Columns as numbers."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from raybench.data.sources import encode
from raybench.data.sources.encode import Names, NotUsed, Quantity


def written(column, training, values, parts=1):
    training = pa.array(training)
    size = -(-len(training) // parts)
    for start in range(0, len(training), size):
        column.see(training.slice(start, size))
    encoder = column.finish()
    out = np.full((len(values), len(encoder.features)), np.nan, np.float32)
    encoder.write(pa.array(values, type=training.type), out)
    return out


@pytest.mark.parametrize("parts", [1, 7])
def test_a_quantity_in_parts_has_the_moments_of_the_whole(parts):
    numbers = 1e6 + np.random.default_rng(0).normal(size=100)
    out = written(Quantity("x"), numbers, [numbers.mean(), numbers.mean() + numbers.std()], parts)
    np.testing.assert_allclose(out, [[0], [1]], atol=1e-5)


def test_missing_and_infinite_numbers_are_the_mean_and_say_so():
    out = written(Quantity("x"), [1.0, 3.0, None, np.nan], [2.0, None, np.inf])
    np.testing.assert_array_equal(out, [[0, 0], [0, 1], [0, 1]])


def test_dates_are_days_and_flags_stay():
    days = [datetime.date(2020, 1, number) for number in (1, 2, 3)]
    out = written(Quantity("x"), days, days)
    np.testing.assert_allclose(np.diff(out[:, 0]), np.sqrt(3 / 2), rtol=1e-5)
    flags = written(Quantity("x", is_flag=True), [True, True, False], [True, False])
    np.testing.assert_array_equal(flags, [[1], [0]])


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        (Quantity("x"), [2.0, 2.0], "is 2 in every"),
        (Quantity("x"), [None, np.nan], "has no values"),
        (Quantity("x", counted_rows=3), [1, 2, 3], "counts the rows"),
        (Names("x"), ["a", " a "], "is 'a' in every"),
        (Names("x"), [f"id{number}" for number in range(200)], "a text of its own"),
    ],
)
def test_columns_that_say_nothing_are_not_used(column, values, reason):
    with pytest.raises(NotUsed, match=reason):
        written(column, values, [])


def test_whole_numbers_that_do_not_count_rows_are_used():
    assert written(Quantity("x", counted_rows=3), [1, 3, 2], [2]).shape == (1, 1)
    assert written(Quantity("x", counted_rows=3), [10, 20, 30], [20]).shape == (1, 1)


def test_names_get_a_feature_each_and_unseen_ones_none():
    column = Names("x")
    out = written(column, ["b", "a", "b", None], ["a", "b", "c", None, " b"])
    assert column.finish().features == ["x=b", "x=", "x=a"]
    np.testing.assert_array_equal(out, [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]])


def test_rare_names_share_a_feature_and_have_their_frequency(monkeypatch):
    monkeypatch.setattr(encode, "MAX_LEVELS", 2)
    column = Names("x", is_asked=True)
    training = ["a"] * 8 + ["b"] * 4 + ["c", "d"]
    out = written(column, training, ["a", "b", "c", "d", "never"])
    assert column.finish().features == ["x=a", "x=b", "x=another", "x frequency"]
    np.testing.assert_array_equal(out[:, :3], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0] * 3])
    assert out[0, 3] > out[1, 3] > out[2, 3] == out[3, 3] == out[4, 3]
    assert written(column, training, training)[:, 3].mean() == pytest.approx(0, abs=1e-6)


def test_codes_named_as_categories():
    column = Names("x", is_asked=True)
    out = written(column, [10, 20, 10], [20, 10])
    assert column.finish().features == ["x=10", "x=20"]
    np.testing.assert_array_equal(out, [[0, 1], [1, 0]])
