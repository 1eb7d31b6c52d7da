"""What users' data have wrong: an error with a code, which names the culprit."""

import numpy as np
import pytest

from raybench.spec.errors import ErrorCode
from tests.data.making import load, write
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")
ROWS = [f"{number},{'red' if number % 3 else 'blue'},{'ab'[number % 2]}" for number in range(60)]
TABLE = ["size,colour,kind", *ROWS]


def with_row(number, row):
    """Return the lines of the table with another row `number` (the names are row 1)."""
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
def test_what_is_wrong_in_a_table_is_named(tmp_path, files, code, names):
    for name, lines in files.items():
        write(tmp_path / name, lines)
    with refused(ErrorCode[code], *names):
        load(tmp_path, label="kind")


def test_files_that_cannot_be_read_are_named(tmp_path):
    write(tmp_path / "t.csv", with_row(22, "20,grün,a"), encoding="latin-1")
    with refused(ErrorCode.INVALID_FILE, "t.csv", "22", "'20,grün,a'", "Latin-1"):
        load(tmp_path / "t.csv", label="kind")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with refused(ErrorCode.INVALID_FILE, "t.parquet"):
        load(tmp_path / "t.parquet", "parquet", label="kind")
    for name in ("p/cat/1.png", "p/stray.png"):
        write(tmp_path / name, [])
    with refused(ErrorCode.CONFLICT, "p/stray.png"):
        load(tmp_path / "p", "image_folder")


def test_weights_that_are_none_are_named(tmp_path):
    weights = np.where(np.arange(50) == 5, np.nan, 1.0)
    np.savez(tmp_path / "w.npz", x=np.ones((50, 3)), y=np.arange(50) % 2, w=weights)
    with refused(ErrorCode.INVALID_DATA, "sample 5", "'w'", "nan"):
        load(tmp_path / "w.npz", "npz", weight="w")


@pytest.mark.parametrize(
    ("name", "key"), [("image_folder", "label"), ("text", "label"), ("npz", "text")]
)
def test_a_key_that_would_do_nothing_is_refused(tmp_path, name, key):
    with refused(ErrorCode.UNSUPPORTED, f"dataset.{key}", name):
        load(tmp_path, name, **{key: "column"})
