"""What users' data have wrong: one sentence each, which names the culprit."""

import pytest
from PIL import Image

from raybench.data.load import build_dataset
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")
NAMES = "size,colour,kind"
ROWS = [f"{number},{'red' if number % 3 else 'blue'},{'ab'[number % 2]}" for number in range(60)]


def table(folder, rows, names=NAMES, encoding="utf-8", file="t.csv"):
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join([names, *rows, ""]).encode(encoding))
    return {"name": "csv", "path": str(path), "label": "kind"}


def with_row(number, row):
    """Return the rows with another one at line `number + 2` of the file."""
    return [*ROWS[:number], row, *ROWS[number + 1 :]]


def pictures(folder):
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (6, 6), (number, 0, 0)).save(folder / name / f"{number:02}.png")
    return {"name": "image_folder", "path": str(folder)}


def with_split(folder, split, rows):
    table(folder, ROWS, file="s/train.csv")
    return table(folder, rows, file=f"s/{split}.csv") | {"path": str(folder / "s")}


def with_picture(folder, name, content):
    keys = pictures(folder / "p")
    (folder / "p" / name).write_bytes(content)
    return keys


def one_file(folder, kind, name, content):
    (folder / name).write_bytes(content)
    return {"name": kind, "path": str(folder / name), "label": "kind"}


BROKEN = {
    "unequal lengths": (
        lambda folder: table(folder, with_row(7, "7,red")),
        ("INVALID_FILE", "t.csv", "9", "2", "3"),
    ),
    "nan": (
        lambda folder: table(folder, with_row(9, "9,red,")),
        ("INVALID_DATA", "11", "t.csv", "'kind'"),
    ),
    "text among numbers": (
        lambda folder: table(folder, with_row(9, "large,red,a")),
        ("INVALID_DATA", "11", "'size'", "'large'"),
    ),
    "empty split": (
        lambda folder: with_split(folder, "val", []),
        ("INVALID_DATA", "s/val.csv"),
    ),
    "wrong encoding": (
        lambda folder: table(folder, with_row(20, "20,grün,a"), encoding="latin-1"),
        ("INVALID_FILE", "t.csv", "22", "'20,grün,a'", "Latin-1"),
    ),
    "zero bytes": (
        lambda folder: one_file(folder, "csv", "t.csv", b""),
        ("INVALID_DATA", "t.csv"),
    ),
    "nested folders": (
        lambda folder: with_picture(folder, "stray.png", b""),
        ("CONFLICT", "p/stray.png"),
    ),
    "no names": (
        lambda folder: table(folder, ["1,2,3"] * 9, names="1,2,3"),
        ("INVALID_FILE", "t.csv", "1"),
    ),
    "the same name twice": (
        lambda folder: table(folder, ROWS, names="kind, size ,size"),
        ("INVALID_FILE", "'size'", "2", "3"),
    ),
    "cut off parquet": (
        lambda folder: one_file(folder, "parquet", "t.parquet", b"PAR1 and no more"),
        ("INVALID_FILE", "t.parquet"),
    ),
    "class of no training row": (
        lambda folder: with_split(folder, "test", [*ROWS[:5], "5,red,aa"]),
        ("INVALID_DATA", "7", "test.csv", "'aa'", "'a'?"),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_one_sentence_names_the_culprit(tmp_path, what):
    break_it, (code, *names) = BROKEN[what]
    keys = break_it(tmp_path)
    with refused(ErrorCode[code], *names):
        build_dataset(DatasetSpec(**keys))
