"""Numbers and dates as people write them, in inputs and labels alike; encodings of their files."""

import codecs
import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from raybench.data.load import build_dataset
from raybench.data.sources.encode import encoder_of, rows_as_inputs
from raybench.data.sources.files import CsvTable, open_tables
from raybench.data.sources.table import Table
from raybench.data.sources.written import parse_text_columns
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode
from tests.data.making import load, write
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")


def read(columns, **keys):
    """Return what columns are read as, the reasons why others are not, and what is said."""
    table, said = Table(pa.table(columns), "t"), []
    spec = DatasetSpec(name="huggingface", path="t", **keys)
    found = parse_text_columns(spec, {"train": table}, said.append)["train"]
    values = {name: found.column(name).to_pylist() for name in columns}
    return values, {name: one.reason for name, one in found.unread.items()}, " ".join(said)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["$35.50", "$1,200.00", "-$5"], [35.5, 1200, -5]),
        (["1,200", "900"], [1200, 900]),
        (["45%", "12 %"], [45, 12]),
        (["1.200,50", "3,5"], [1200.5, 3.5]),
        (["0,126", "-2,100"], [0.126, -2.1]),
        (["(1,200)", "5", "-5", "\u22127", "3-"], [-1200, 5, -5, -7, -3]),
        (["€ 5", "6 €"], [5, 6]),
        (["5 EUR", "1.000 EUR"], [5, 1000]),
        (["2.100", "900"], [2100, 900]),
        (["1.200.500", "12"], [1200500, 12]),
        (["1 200,50", "1\u202f300", "5"], [1200.5, 1300, 5]),
        (["CHF 1'200.00", "CHF 5"], [1200, 5]),
        (["1,20,000", "20"], [120000, 20]),
        (["-", "1.5", "n/a", "?", None], [None, 1.5, None, None, None]),
        (["1e5", "2.5E-3", ".5"], [1e5, 2.5e-3, 0.5]),
    ],
)
def test_numbers_are_read_as_they_are_meant(texts, numbers):
    values, unread, _ = read({"a": texts})
    assert (values["a"], unread) == (numbers, {})


@pytest.mark.parametrize(
    ("texts", "keys"),
    [
        (["1", "2"], {}),  # digits that a typed table holds as texts
        (["01234", "12345", "-"], {}),
        (["a", "1"], {}),
        (["-", "-"], {}),
        (["1.5", "2.5"], {"categories": ["a"]}),
        (["$1", "$2"], {"label": "a", "task": "classification"}),
        (["12 kg", "+49 30 1234567"], {}),
        (["192.168.1.1", "10.0.0.1"], {}),
        (["3.8.1", "3.9.12"], {}),
        (["1.10.12", "3.8.10", "2.11.15"], {}),  # versions, not days
        (["5 Mar 17", "6 Decker 18", "7 Octopus 19"], {}),
        (["12345", "90210", "-"], {}),  # codes, whatever is missing
        (["0000-01-01", "0000-05-01"], {}),
    ],
)
def test_names_stay_names(texts, keys):
    assert read({"a": texts}, **keys) == ({"a": texts}, {}, "")


def test_a_mark_that_may_be_either_is_what_other_columns_have():
    either = ["2.100", "1.900"]
    assert read({"a": either, "b": ["0,5", "1,25"]})[0]["a"] == [2100, 1900]
    assert read({"a": either, "b": ["0.5", "1.25"]})[0]["a"] == [2.1, 1.9]
    assert read({"a": either})[0]["a"] == [2.1, 1.9]
    assert read({"a": either}, decimal=",")[0]["a"] == [2100, 1900]
    assert read({"a": ["1,200", "3,400"]})[0]["a"] == [1200, 3400]


def test_points_in_an_english_file_are_decimal_ones(tmp_path):
    path = write(tmp_path / "a.csv", ["kg,note", "12.500,a", "3,b", "7.250,c", "100,-"])
    spec, said = DatasetSpec(name="csv", path=str(path), label="note"), []
    found = parse_text_columns(spec, open_tables("csv", str(path)), said.append)["train"]
    assert found.column("kg").to_pylist() == [12.5, 3, 7.25, 100]
    assert "dataset.decimal" in " ".join(said)


def test_how_columns_are_read_is_said():
    columns = {"a": ["$5", "$1,200"], "b": ["31/12/2017", "01/02/2018"], "c": ["-", "3.5"]}
    said = read(columns)[2]
    for words in ("'$5' is 5", "day/month/year", "'31/12/2017' is 2017-12-31", "'-' in 1"):
        assert words in said


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["45%", "0.12"], ["'%'"]),
        (["5 €", "$6"], ["'$'", "'€'"]),
        (["0,5", "0.5"], ["'0.5'", "'0,5'"]),
        (["1"] * 30 + ["abc"], ["'abc'", "(1 "]),
        (["31/12/2017"] * 30 + ["soon"], ["'soon'"]),
        (["31/12/2017", "12/31/2017"], ["'31/12/2017'", "'12/31/2017'"]),
        (["01/02/2017", "03/04/2017"], ["dataset.dates", "day_first", "month_first"]),
    ],
)
def test_what_cannot_be_told_is_asked(texts, names):
    values, unread, _ = read({"a": texts})
    assert values["a"] == texts
    assert all(name in unread["a"] for name in names)


DAY = datetime.datetime(2017, 2, 1)


@pytest.mark.parametrize(
    ("texts", "dates", "keys"),
    [
        (["01/02/2017", "31/12/2017"], [DAY, datetime.datetime(2017, 12, 31)], {}),
        (["02/01/2017", "12/31/2017"], [DAY, datetime.datetime(2017, 12, 31)], {}),
        (["01.02.2017", "n/a"], [DAY, None], {}),
        (["1-2-17", "31-12-99"], [DAY, datetime.datetime(1999, 12, 31)], {}),
        (["2017/02/01", "2017-2-1"], [DAY, DAY], {}),
        (["2017-02-01", "31/12/2017"], [DAY, datetime.datetime(2017, 12, 31)], {}),
        (["02/01/2017"], [DAY], {"dates": "month_first"}),
        (["01/02/2017"], [DAY], {"dates": "day_first"}),
        (["12/31/2017 3:45 PM"], [datetime.datetime(2017, 12, 31, 15, 45)], {}),
        (["1 Feb 2017", "01-FEB-17", "Feb. 1, 2017", "1. Februar 2017"], [DAY] * 4, {}),
        (["31 März 1999", "31-Mar-99"], [datetime.datetime(1999, 3, 31)] * 2, {}),
        (["31-Dec-69", "31/12/69"], [datetime.datetime(1969, 12, 31)] * 2, {}),
        (["31-Dec-68", "31/12/68"], [datetime.datetime(2068, 12, 31)] * 2, {}),
        (["12/31/2017 12:00 AM"], [datetime.datetime(2017, 12, 31)], {}),
        (["31.12.2017 10:00:05.5"], [datetime.datetime(2017, 12, 31, 10, 0, 5, 500000)], {}),
    ],
)
def test_dates_are_read_in_the_one_order_that_fits(texts, dates, keys):
    assert read({"a": texts}, **keys)[0]["a"] == dates


def test_an_order_that_another_column_has_is_taken():
    found = read({"a": ["01/02/2017"], "b": ["31/12/2017"]})[0]
    assert found["a"] == [DAY]
    assert read({"a": ["30/02/2017"]})[0]["a"] == ["30/02/2017"]


def test_a_german_file_has_the_numbers_of_an_english_one(tmp_path):
    rows = [(number / 8, 300 * number + 100, number % 7) for number in range(80)]
    english = write(tmp_path / "e.csv", ["a,price,b", *(f"{a},{p},{b}" for a, p, b in rows)])
    german = [(f"{a:.3f}".replace(".", ","), f"{p:,}".replace(",", "."), b) for a, p, b in rows]
    mixed = write(tmp_path / "g.csv", ["a;price;b", *(f"{a};{p};{b}" for a, p, b in german)])
    whole = write(tmp_path / "w.csv", ["price;b", *(f"{p};{b}" for _, p, b in german)], end="\r\n")
    one, other = load(english, label="price"), load(mixed, label="price")
    np.testing.assert_array_equal(one.train.array, other.train.array)
    np.testing.assert_array_equal(one.train.labels, other.train.labels)
    assert load(whole, label="price").label_scale == one.label_scale


def test_amounts_are_no_classes(tmp_path):
    lines = ["x,price", *(f'{number / 7},"${1000 * (number % 4 + 1):,}"' for number in range(60))]
    found = load(write(tmp_path / "t.csv", lines), label="price")
    assert (found.task, float(found.label_offset)) == ("regression", pytest.approx(2500, rel=0.05))
    found = load(tmp_path / "t.csv", label="price", task="classification")
    assert found.class_names == ("$1,000", "$2,000", "$3,000", "$4,000")


def test_a_label_that_cannot_be_read_is_named(tmp_path):
    lines = ["x,y", *(f"{number},{number / 4:.2f}" for number in range(60)), "5,abc"]
    with refused(ErrorCode.INVALID_DATA, "62", "'y'", "'abc'"):
        load(write(tmp_path / "t.csv", lines), label="y")
    lines = ["x,y", *(f"{number},{number / 4 if number else 'none'}" for number in range(60))]
    with refused(ErrorCode.INVALID_DATA, "2", "'y'", "dataset.task"):
        load(write(tmp_path / "t.csv", lines), label="y")
    lines = ["x,y", *(f"{number},0{number % 9 + 1}/02/2017" for number in range(60))]
    with refused(ErrorCode.INVALID_DATA, "'y'", "dataset.dates"):
        load(write(tmp_path / "t.csv", lines), label="y")


def test_splits_are_read_alike_or_refused(tmp_path):
    rows = [f"{number / 4},{'ab'[number % 2]}" for number in range(40)]
    write(tmp_path / "s" / "train.csv", ["x,y", *rows, "-,a"])
    write(tmp_path / "s" / "val.csv", ["x,y", *rows])
    found = load(tmp_path / "s", label="y")
    assert found.input_shape == (2,)
    np.testing.assert_allclose(np.sort(found.validation.array[:, 0])[-1], 1.66, atol=0.2)
    for name, prices in (("train", ["2.100", "900"]), ("val", ["700", "800"])):
        write(tmp_path / "s" / f"{name}.csv", ["p;y", *[f"{one};{one}" for one in prices] * 20])
    found = load(tmp_path / "s", label="p", task="regression")
    assert float(found.label_offset) == pytest.approx(1500, rel=0.1)
    write(tmp_path / "s" / "train.csv", ["x,y", *rows, "-,a"])
    commas = [row.replace(",", ";").replace(".", ",") for row in rows]
    write(tmp_path / "s" / "val.csv", ["x;y", *commas])
    with refused(ErrorCode.INVALID_DATA, "val.csv", "'x'"):
        load(tmp_path / "s", label="y")


def test_all_reasons_are_said_where_no_column_is_left(tmp_path):
    lines = [
        "when,same,y",
        *(f"01/0{number % 9 + 1}/2017,7,{'ab'[number % 2]}" for number in range(40)),
    ]
    with refused(ErrorCode.INVALID_DATA, "'when'", "dataset.dates", "'same'", "7"):
        load(write(tmp_path / "t.csv", lines), label="y")


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE])
def test_unicode_with_a_byte_order_mark_is_read(tmp_path, mark):
    name = {2: "utf-16", 4: "utf-32"}[len(mark)] + ("-be" if mark[0] == 0xFE else "-le")
    lines = ["größe;y", *(f"{number / 8};{'äb'[number % 2]}" for number in range(40))]
    path = tmp_path / "t.csv"
    path.write_bytes(mark + "\r\n".join(lines).encode(name))
    found = load(path, label="y")
    assert (found.class_names, found.encoding["columns"][0]["name"]) == (("b", "ä"), "größe")
    assert CsvTable(path).place(1) == f"row 3 of {path}"


def test_utf16_without_a_mark_is_called_so(tmp_path):
    for name in ("utf-16-le", "utf-16-be"):
        path = write(tmp_path / "t.csv", ["a,y", *["1.5,2"] * 40], name)
        with refused(ErrorCode.INVALID_FILE, path, f"iconv -f {name.replace('16-', '16')}"):
            load(path, label="y")
        with refused(ErrorCode.INVALID_FILE, path):
            build_dataset(DatasetSpec(name="text", path=str(path)))


@pytest.mark.parametrize(
    ("first", "delimiter"), [("sep=;", ";"), ('"sep=;"', ";"), ("\ufeffsep=,", ","), ("sep=:", ":")]
)
def test_the_line_that_names_the_delimiter_is_taken(tmp_path, first, delimiter):
    rows = [f"{number}{delimiter}{'ab'[number % 2]}" for number in range(40)]
    path = write(tmp_path / "t.csv", [first, f"x{delimiter}y", *rows], end="\r\n")
    table = open_tables("csv", str(path))["train"]
    assert (table.schema.names, table.num_rows) == (["x", "y"], 40)
    assert table.place(0) == f"row 3 of {path}"


def test_new_rows_are_read_as_the_training_rows_were(tmp_path):
    lines = [
        "when;x;y",
        *(f"{number % 28 + 1}/02/2017;{number},5;{'ab'[number % 2]}" for number in range(60)),
    ]
    found = load(write(tmp_path / "t.csv", lines), label="y")
    columns = found.encoding["columns"]
    one = rows_as_inputs([{"when": "13/02/2017", "x": "1,5"}], columns)
    other = rows_as_inputs([{"when": datetime.datetime(2017, 2, 13), "x": 1.5}], columns)
    np.testing.assert_allclose(one, other)
    with refused(ErrorCode.INVALID_DATA, "'when'", "'02/13/2017'"):
        rows_as_inputs([{"when": "02/13/2017", "x": "1,5"}], columns)
    plain = [{key: value for key, value in one.items() if key != "form"} for one in columns]
    assert encoder_of(plain[1]).form is None, "of a model that was saved before"


def test_what_a_frame_calls_categories_and_folders_stay_names(tmp_path):
    frame = pd.DataFrame({"x": pd.Categorical(["$5", "$6"] * 30), "y": ["a", "b", "b"] * 20})
    frame.to_parquet(tmp_path / "t.parquet")
    found = build_dataset(DatasetSpec(name="parquet", path=str(tmp_path / "t.parquet"), label="y"))
    assert found.encoding["columns"][0]["kind"] == "name"
    for name in ("10 %", "20 %"):
        (tmp_path / "f" / name).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "f" / name / f"{number}.txt").write_text("a text")
    found = build_dataset(DatasetSpec(name="text", path=str(tmp_path / "f")))
    assert found.class_names == ("10 %", "20 %")
