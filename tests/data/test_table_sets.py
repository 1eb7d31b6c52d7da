"""Tables as datasets: encoded columns, statistics of training rows, splits, missing values, parts
of different types and saved row numbers."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from raybench.data.check import check_dataset
from raybench.data.sources import encode
from raybench.data.sources.encode import ColumnLeftOut, fit_name_encoder, fit_number_encoder
from raybench.data.sources.table import as_numbers
from raybench.data.split_metrics import baselines
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from tests.data.making import load, of_two_classes, sizes, write
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")
ROWS = 400


@pytest.fixture(scope="module")
def houses():
    rng = np.random.default_rng(0)
    size = rng.uniform(30, 200, ROWS).round(1)
    return pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "size": np.where(rng.random(ROWS) < 0.1, np.nan, size),
            "built": rng.integers(1900, 2020, ROWS),
            "garden": rng.random(ROWS) < 0.5,
            "town": rng.choice(["Bonn", "Köln", "Aachen"], ROWS, p=[0.6, 0.3, 0.1]),
            "sold": pd.date_range("2020-01-01", periods=ROWS).strftime("%Y-%m-%d"),
            "country": "DE",
            "price": (1000 * size + rng.normal(0, 5000, ROWS)).round(2),
        }
    )


@pytest.fixture
def csv(houses, tmp_path):
    houses.to_csv(tmp_path / "houses.csv", index=False)
    return tmp_path / "houses.csv"


def test_regression_labels_are_scaled_and_restored(csv, houses, capsys):
    dataset = load(csv, label="price")
    assert (dataset.task, dataset.num_classes, dataset.num_outputs) == ("regression", None, 1)
    assert sizes(dataset) == [320, 40, 40]
    # size and its missing indicator, built, garden, three towns, sold; not id and country.
    assert dataset.input_shape == (8,)
    scaled = np.concatenate([split.labels for split in dataset.splits.values()])
    restored = np.sort(scaled * dataset.label_scale + dataset.label_offset)
    np.testing.assert_allclose(restored, np.sort(houses["price"]), rtol=1e-5, atol=0.1)
    assert dataset.train.labels.dtype == np.float32
    assert abs(dataset.train.labels.mean()) < 1e-5
    assert dataset.train.labels.std() == pytest.approx(1, abs=1e-4)
    messages = capsys.readouterr().err
    assert all(name in messages for name in ("'id'", "'country'", "'DE'"))


def test_statistics_use_only_training_rows(csv):
    dataset = load(csv, label="price", columns=["size", "built"])
    is_known = dataset.train.inputs[:, 1] == 0
    np.testing.assert_allclose(dataset.train.inputs[is_known, 0].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(dataset.train.inputs[is_known, 0].std(), 1, atol=1e-4)
    assert not dataset.train.inputs[~is_known, 0].any(), "missing values are the mean"
    assert abs(dataset.validation.inputs[:, 2].mean()) > 1e-3, "validation rows are not included"


def test_several_labels_become_a_vector_and_weights_have_mean_1(csv):
    dataset = load(csv, label=["price", "built"], weight="id", columns=["town"])
    assert dataset.train.labels.shape == (320, 2)
    assert dataset.num_outputs == 2
    assert dataset.label_scale.shape == (2,)
    assert dataset.train.weights.mean() == pytest.approx(1, abs=1e-5)
    assert dataset.validation.weights is None


@pytest.mark.parametrize(
    ("labels", "task", "names"),
    [
        ([2.0, 10.0, 3.0], "classification", ("2", "3", "10")),
        ([True, False, True], "classification", ("false", "true")),
        ([0.5, 1.5, 1.0], "regression", ()),
    ],
)
def test_the_task_is_inferred_from_the_labels(tmp_path, labels, task, names):
    table = {"x": np.random.default_rng(0).normal(size=200), "y": (labels * 200)[:200]}
    pd.DataFrame(table).to_parquet(tmp_path / "t.parquet")
    dataset = load(tmp_path / "t.parquet", "parquet", label="y")
    assert (dataset.task, dataset.class_names) == (task, names)


def test_unknown_and_conflicting_columns_are_refused(csv):
    with refused(ErrorCode.UNKNOWN_NAME, "'prise'", "'price'"):
        load(csv, label="prise")
    with refused(ErrorCode.CONFLICT, "dataset.columns", "'price'", "dataset.label"):
        load(csv, label="price", columns=["price"])


@pytest.mark.parametrize(
    ("files", "test_size", "rows"),
    [
        (["train"], None, [320, 40, 40]),
        (["train", "val"], None, [360, 400, 40]),
        (["train"], "none", [360, 40, 0]),
    ],
)
def test_missing_splits_are_cut_from_training_rows(tmp_path, houses, files, test_size, rows):
    for name in files:
        houses.to_csv(tmp_path / f"{name}.csv", index=False)
    dataset = load(tmp_path, label="town", test_size=test_size)
    assert sizes(dataset) == rows
    check_dataset(dataset, "csv")
    objective = Objective(kind="best_at_budget", metric="accuracy", baseline_value=0.4)
    assert (baselines(objective, dataset)["test"] is None) == (rows[2] == 0)


def numbers(training, *, is_flag=False, counted_rows=0):
    training_numbers = as_numbers(pa.array(training))
    return fit_number_encoder("x", training_numbers, is_flag=is_flag, counted_rows=counted_rows)


def names(training, *, keep_ids=False):
    return fit_name_encoder("x", pa.array(training), keep_ids=keep_ids)


def test_numbers_are_encoded_with_an_indicator_of_missing_values():
    assert numbers([1, 3, 2], counted_rows=3).features == ["x"]
    assert numbers([10, 20, 30], counted_rows=3).features == ["x"]
    out = numbers([1.0, 3.0, None, np.nan]).encode(pa.array([2.0, None, np.inf]))
    np.testing.assert_array_equal(out, [[0, 0], [0, 1], [0, 1]])


def test_dates_become_days_and_flags_stay_unchanged():
    days = [datetime.date(2020, 1, number) for number in (1, 2, 3)]
    out = numbers(days).encode(pa.array(days))
    np.testing.assert_allclose(np.diff(out[:, 0]), np.sqrt(3 / 2), rtol=1e-5)
    flags = numbers([True, True, False], is_flag=True).encode(pa.array([True, False]))
    np.testing.assert_array_equal(flags, [[1], [0]])


@pytest.mark.parametrize(
    ("learn", "value"),
    [
        (lambda: numbers([2.0, 2.0]), "2"),
        (lambda: numbers([None, np.nan]), "no values"),
        (lambda: numbers([1, 2, 3], counted_rows=3), "dataset.columns"),
        (lambda: names(["a", " a "]), "'a'"),
        (lambda: names([f"id{number}" for number in range(200)]), "dataset.text"),
    ],
)
def test_uninformative_columns_are_left_out(learn, value):
    with pytest.raises(ColumnLeftOut, match=value):
        learn()


def test_names_are_one_hot_encoded_and_unseen_names_are_zero():
    column = names(["b", "a", "b", None])
    assert column.features == ["x=b", "x=", "x=a"]
    out = column.encode(pa.array(["a", "b", "c", None, " b"]))
    np.testing.assert_array_equal(out, [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]])


def test_rare_names_share_a_feature_with_their_frequency(monkeypatch):
    monkeypatch.setattr(encode, "MAX_LEVELS", 2)
    training = ["a"] * 8 + ["b"] * 4 + ["c", "d"]
    column = names(training, keep_ids=True)
    assert column.features == ["x=a", "x=b", "x=another", "x frequency"]
    out = column.encode(pa.array(["a", "b", "c", "d", "never"]))
    np.testing.assert_array_equal(out[:, :3], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0] * 3])
    assert out[0, 3] > out[1, 3] > out[2, 3] == out[3, 3] == out[4, 3]
    assert column.encode(pa.array(training))[:, 3].mean() == pytest.approx(0, abs=1e-6)


def test_saved_row_numbers_are_left_out(tmp_path, capsys):
    sorted_rows = pd.DataFrame({"x": np.arange(60) % 7, "kind": np.arange(60) // 30})
    mixed = sorted_rows.sample(frac=1, random_state=0)
    mixed.to_csv(tmp_path / "mixed.csv")
    mixed.to_parquet(tmp_path / "mixed.parquet")
    for name in ("csv", "parquet"):
        dataset = load(tmp_path / f"mixed.{name}", name, label="kind")
        assert dataset.input_shape == (1,)
        assert "left out" in capsys.readouterr().err
    with_index = load(tmp_path / "mixed.csv", label="kind", columns=["Unnamed: 0", "x"])
    assert with_index.input_shape == (2,)


def test_parts_of_a_table_may_have_compatible_types(tmp_path):
    kind = np.arange(30) % 2
    first = pa.table({"x": pa.nulls(30), "y": np.arange(30), "kind": kind})
    second = pa.table({"x": ["u", "v"] * 15, "y": np.arange(30) / 2, "kind": kind})
    pa.parquet.write_table(first.drop_columns("x"), tmp_path / "0.parquet")
    pa.parquet.write_table(first, tmp_path / "a.parquet")
    pa.parquet.write_table(second, tmp_path / "b.parquet")
    assert load(tmp_path, "parquet", label="kind").input_shape == (4,)  # u, v, missing; y
    third = second.set_column(1, "y", pa.array([[1.0]] * 30))
    pa.parquet.write_table(third, tmp_path / "c.parquet")
    with refused(ErrorCode.INVALID_FILE, tmp_path, "y", "double"):
        load(tmp_path, "parquet", label="kind")


@pytest.mark.parametrize("value", ["1e308", "-inf"])
def test_infinite_and_overflowing_numbers_count_as_missing(tmp_path, value):
    rows = of_two_classes(row / 7 for row in range(59))
    dataset = load(write(tmp_path / "x.csv", ["x,y", *rows, f"{value},a"]), label="y", test_size=20)
    assert max(np.abs(split.array).max() for split in dataset.splits.values()) < 10
    rows = [f"{row % 3},{row / 7}" for row in range(59)]
    with refused(ErrorCode.INVALID_DATA, "61", "'y'"):
        load(write(tmp_path / "y.csv", ["x,y", *rows, f"1,{value}"]), label="y")
