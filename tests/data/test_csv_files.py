"""CSV files: encodings, delimiters, strings that look like numbers or dates, and invalid files,
which are refused with row and column."""

import codecs
import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from raybench.data.sources.encode import rows_as_inputs
from raybench.data.sources.files import open_csv
from raybench.spec.errors import ErrorCode
from tests.data.making import load, of_two_classes, write
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")


def of_column(path, cells):
    """Write a CSV file with a column of cells and a label of two classes."""
    values = [cells[number % len(cells)] for number in range(60)]
    return write(path / "t.csv", ["x;y", *of_two_classes(values, ";")])


def kinds(dataset):
    return [column["kind"] for column in dataset.encoding["columns"]]


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["$35.50", "$1,200.00", "-$5"], "$35.50"),
        (["45%", "12 %"], "45%"),
        (["1.200,50", "3,5", "-"], "1.200,50"),
        (["(1,200)", "5"], "(1,200)"),
        (["€ 5", "6 €"], "€ 5"),
        (["31/12/2017", "01/02/2018"], "31/12/2017"),
        (["1.12.2017 10:15", "3.2.2018"], "1.12.2017 10:15"),
        (["1.5", "2.5", "many"], "many"),
    ],
)
def test_texts_that_look_like_numbers_or_dates_are_refused(tmp_path, cells, shown):
    path = of_column(tmp_path, cells)
    row = 2 + cells.index(shown)
    with refused(ErrorCode.INVALID_DATA, f"row {row} of", "'x'", f"'{shown}'", "categories"):
        load(path, label="y")
    assert kinds(load(path, label="y", categories=["x"])) == ["name"]
    with refused(ErrorCode.INVALID_DATA, f"row {row} of", "'x'", "dataset.task"):
        load(path, label="x", columns=["y"])
    assert load(path, label="x", columns=["y"], task="classification").num_classes == len(cells)


@pytest.mark.parametrize(
    "cells", [["a", "1"], ["3.8.1", "3.9.12"], ["192.168.1.1", "10.0.0.1"], ["-", "x", "-"]]
)
def test_text_columns_are_read_as_names(tmp_path, cells):
    assert kinds(load(of_column(tmp_path, cells), label="y")) == ["name"]


def test_typed_codes_are_read_as_names(tmp_path):
    frame = pd.DataFrame({"x": ["01234", "90210"] * 30, "y": [1e17, 1e300, 1e300] * 20})
    frame["z"] = pd.Categorical(["$5", "$6"] * 30)
    table = pa.Table.from_pandas(frame).append_column("w", pa.array(["u", "v"] * 30, "string_view"))
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    dataset = load(tmp_path / "t.parquet", "parquet", label="y", task="classification")
    assert kinds(dataset) == ["name"] * 3
    assert dataset.class_names == ("100000000000000000", "1e+300")


def test_german_numbers_and_dates_are_read(tmp_path):
    rows = [(number / 8, number % 28 + 1, number * 3 + 0.5) for number in range(80)]
    english = [f"{a};2017-02-{day:02};{price}" for a, day, price in rows]
    german = [f"{a};{day:02}/02/2017;{price}".replace(".", ",") for a, day, price in rows]
    expected = load(write(tmp_path / "e.csv", ["a;when;price", *english]), label="price")
    path = write(tmp_path / "g.csv", ["a;when;price", *german], end="\r\n")
    dataset = load(path, label="price", decimal=",", dates="day_first")
    np.testing.assert_array_equal(expected.train.array, dataset.train.array)
    np.testing.assert_array_equal(expected.train.labels, dataset.train.labels)
    assert kinds(dataset) == ["number", "number"]
    with refused(ErrorCode.INVALID_DATA, "'price'", "dataset.decimal"):
        load(path, label="price", dates="day_first")


@pytest.mark.parametrize("sign", ["-", " ", "n/a"])
def test_missing_value_signs_are_read_and_mismatched_types_refused(tmp_path, sign):
    rows = of_two_classes(number / 4 for number in range(40))
    write(tmp_path / "s" / "train.csv", ["x,y", *rows, f"{sign},a"])
    write(tmp_path / "s" / "val.csv", ["x,y", *rows])
    assert load(tmp_path / "s", label="y").input_shape == (2,)
    write(tmp_path / "s" / "val.csv", ["x,y", *rows, "low,a"])
    with refused(ErrorCode.INVALID_DATA, "val.csv", "'x'"):
        load(tmp_path / "s", label="y")


@pytest.mark.parametrize(
    ("mark", "name"), [(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")]
)
def test_utf16_with_a_byte_order_mark_is_read(tmp_path, mark, name):
    lines = ["größe;y", *(f"{number / 8};{'äb'[number % 2]}" for number in range(40))]
    path = tmp_path / "t.csv"
    path.write_bytes(mark + "\r\n".join(lines).encode(name))
    dataset = load(path, label="y")
    assert (dataset.class_names, dataset.encoding["columns"][0]["name"]) == (("b", "ä"), "größe")
    assert open_csv(path).place(1) == f"row 3 of {path}"


def test_prediction_rows_accept_numbers_and_numeric_strings(tmp_path):
    rows = of_two_classes((f"2017-02-{n % 28 + 1:02};{n}.5" for n in range(60)), ";")
    columns = load(write(tmp_path / "t.csv", ["when;x;y", *rows]), label="y").encoding["columns"]
    day = datetime.datetime(2017, 2, 13)
    from_text, from_number = (
        rows_as_inputs([{"when": day, "x": x}], columns) for x in (" 1.5", 1.5)
    )
    np.testing.assert_allclose(from_text, from_number)
    with refused(ErrorCode.INVALID_DATA, "'x'", "1,5"):
        rows_as_inputs([{"when": day, "x": "1,5"}], columns)
    with refused(ErrorCode.INVALID_VALUE):
        rows_as_inputs([{"when": day, "x": 10**30}], columns)


ROWS = of_two_classes(f"{number},{'red' if number % 3 else 'blue'}" for number in range(60))
TABLE = ["size,colour,kind", *ROWS]


def with_row(number, row):
    """Return the lines of the table with another row `number` (the header is row 1)."""
    return [*TABLE[: number - 1], row, *TABLE[number:]]


@pytest.mark.parametrize(
    ("files", "code", "names"),
    [
        ({"t.csv": with_row(9, "7,red")}, "INVALID_FILE", ["t.csv", "9", "2", "3"]),
        ({"t.csv": with_row(11, "9,red,")}, "INVALID_DATA", ["11", "t.csv", "'kind'"]),
        ({"t.csv": with_row(11, "large,red,a")}, "INVALID_DATA", ["11", "'size'", "'large'"]),
        ({"t.csv": ["1,2,3"] * 9}, "INVALID_FILE", ["t.csv", "1"]),
        ({"t.csv": ["kind, size ,size", *ROWS]}, "INVALID_FILE", ["'size'", "2", "3"]),
        ({"t.csv": []}, "INVALID_DATA", ["t.csv"]),
        ({"train.csv": TABLE, "val.csv": TABLE[:1]}, "INVALID_DATA", ["val.csv"]),
        (
            {"train.csv": TABLE, "test.csv": [*TABLE[:6], "5,red,aa"]},
            "INVALID_DATA",
            ["7", "test.csv", "'aa'", "'a'?"],
        ),
    ],
)
def test_invalid_tables_are_refused(tmp_path, files, code, names):
    for name, lines in files.items():
        write(tmp_path / name, lines)
    with refused(ErrorCode[code], *names):
        load(tmp_path, label="kind")


def test_unreadable_files_are_refused(tmp_path):
    write(tmp_path / "t.csv", with_row(22, "20,grün,a"), encoding="latin-1")
    with refused(ErrorCode.INVALID_FILE, "t.csv", "22", "'20,grün,a'", "Latin-1"):
        load(tmp_path / "t.csv", label="kind")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with refused(ErrorCode.INVALID_FILE, "t.parquet"):
        load(tmp_path / "t.parquet", "parquet", label="kind")
