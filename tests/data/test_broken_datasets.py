"""What users' data have wrong: one sentence each, which names the culprit."""

import pytest
from PIL import Image

from raybench.data.load import build_dataset
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

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
        r"t\.csv: line 9 has 2 values, the line of names has 3",
    ),
    "nan": (
        lambda folder: table(folder, with_row(9, "9,red,")),
        r"line 11 of .*t\.csv: label column 'kind' is empty there .one row",
    ),
    "text among numbers": (
        lambda folder: table(folder, with_row(9, "large,red,a")),
        r"line 11 of .*: column 'size' holds numbers, and 'large' there",
    ),
    "empty split": (
        lambda folder: with_split(folder, "val", []),
        r"s/val\.csv has a line of names and no rows",
    ),
    "wrong encoding": (
        lambda folder: table(folder, with_row(20, "20,grün,a"), encoding="latin-1"),
        r"t\.csv: line 22 is not UTF-8 .'20,grün,a' if .* Latin-1",
    ),
    "zero bytes": (lambda folder: one_file(folder, "csv", "t.csv", b""), r"t\.csv is empty"),
    "nested folders": (
        lambda folder: with_picture(folder, "stray.png", b""),
        r"p/stray\.png is in no folder of a class",
    ),
    "no names": (
        lambda folder: table(folder, ["1,2,3"] * 9, names="1,2,3"),
        r"t\.csv: line 1 must name the columns",
    ),
    "the same name twice": (
        lambda folder: table(folder, ROWS, names="kind, size ,size"),
        r"two columns have the name 'size' .columns 2 and 3.",
    ),
    "cut off parquet": (
        lambda folder: one_file(folder, "parquet", "t.parquet", b"PAR1 and no more"),
        r"t\.parquet is not a whole Parquet file",
    ),
    "class of no training row": (
        lambda folder: with_split(folder, "test", [*ROWS[:5], "5,red,aa"]),
        r"line 7 of .*test\.csv: the class 'aa' .1 row. is not in .*'a'\?",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_one_sentence_names_the_culprit(tmp_path, what):
    break_it, sentence = BROKEN[what]
    keys = break_it(tmp_path)
    with pytest.raises(UserError, match=sentence) as raised:
        build_dataset(DatasetSpec(**keys))
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
