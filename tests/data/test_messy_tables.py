"""Tables as they are found: blanks, old line ends, parts of several types, saved row numbers."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from raybench.data.load import build_dataset
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

pytestmark = pytest.mark.usefixtures("own_store")
ROWS = 60


def load(path, name="csv", **keys):
    return build_dataset(DatasetSpec(name=name, path=str(path), **keys))


def write(path, head, lines, end="\n"):
    path.write_bytes((end.join([head, *lines]) + end).encode())
    return path


def test_a_blank_among_numbers_is_a_missing_one(tmp_path):
    blank = [f"{row % 7},{' ' if row % 6 == 3 else row * 0.5},{'ab'[row % 2]}" for row in range(60)]
    gone = [line.replace(", ,", ",,") for line in blank]
    one = load(write(tmp_path / "blank.csv", "x,total,kind", blank), label="kind")
    other = load(write(tmp_path / "gone.csv", "x,total,kind", gone), label="kind")
    assert one.input_shape == (3,)
    np.testing.assert_array_equal(one.train.array, other.train.array)


def test_saved_row_numbers_are_no_input(tmp_path, capsys):
    sorted_rows = pd.DataFrame({"x": np.arange(ROWS) % 7, "kind": np.arange(ROWS) // 30})
    mixed = sorted_rows.sample(frac=1, random_state=0)
    mixed.to_csv(tmp_path / "mixed.csv")
    mixed.to_parquet(tmp_path / "mixed.parquet")
    for name in ("csv", "parquet"):
        found = load(tmp_path / f"mixed.{name}", name, label="kind")
        assert found.input_shape == (1,)
        assert "pandas' numbers of the rows" in " ".join(capsys.readouterr().err.split())
    asked = load(tmp_path / "mixed.csv", label="kind", columns=["Unnamed: 0", "x"])
    assert asked.input_shape == (2,)


def test_numbers_written_as_texts_can_be_learnt(tmp_path):
    values = np.linspace(0, 1, ROWS)
    table = pa.table({"x": np.arange(ROWS) % 7, "y": [str(value) for value in values]})
    pa.parquet.write_table(table, tmp_path / "texts.parquet")
    with pytest.raises(UserError, match=r"60 different values .* set dataset.task: regression"):
        load(tmp_path / "texts.parquet", "parquet", label="y")
    found = load(tmp_path / "texts.parquet", "parquet", label="y", task="regression")
    assert found.train.labels.std() == pytest.approx(1, rel=1e-3)


def test_parts_of_a_table_may_differ_where_values_fit_both(tmp_path):
    kind = np.arange(30) % 2
    first = pa.table({"x": pa.nulls(30), "y": np.arange(30), "kind": kind})
    second = pa.table({"x": ["u", "v"] * 15, "y": np.arange(30) / 2, "kind": kind})
    pa.parquet.write_table(first, tmp_path / "a.parquet")
    pa.parquet.write_table(second, tmp_path / "b.parquet")
    assert load(tmp_path, "parquet", label="kind").input_shape == (4,)  # u, v, missing; y
    third = second.set_column(1, "y", pa.array([[1.0]] * 30))
    pa.parquet.write_table(third, tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c.parquet and .*a.parquet have other types .*double"):
        load(tmp_path, "parquet", label="kind")
