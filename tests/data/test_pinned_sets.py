"""Splits and encodings stay equal in every version, so that records remain comparable."""

import numpy as np
import pytest

from tests.data.making import load, write, write_grey

pytestmark = pytest.mark.usefixtures("own_store")


def row(number):
    size = "" if number % 7 == 3 else number * 1.5
    return f"{size},{'abc'[number * number % 3]},2020-{number % 12 + 1:02}-05,{number % 5},{number}"


TABLE = ["size,town,day,floor,price", *map(row, range(60))]


def test_a_table_is_pinned(tmp_path):
    dataset = load(write(tmp_path / "t.csv", TABLE), label="price", categories=["floor"])
    prices = dataset.original_labels(dataset.test.labels).round().astype(int).tolist()
    assert prices == [16, 27, 20, 8, 42, 34]
    names = [column["name"] for column in dataset.encoding["columns"]]
    assert names == ["size", "town", "day", "floor"]
    expected = [0.8366, 0.0, 1.0, 0.0, 0.7303, 0.0, 0.0, 0.0, 1.0, 0.0]
    np.testing.assert_allclose(dataset.train.array[0], expected, atol=1e-4)


def test_splits_by_class_time_and_group_are_pinned(tmp_path):
    path = write(tmp_path / "t.csv", TABLE)
    keys = [{"label": "town"}, {"label": "price", "split_by": "day"}]
    keys.append({"label": "price", "split_by": {"group": "floor"}})
    splits = [load(path, columns=["size"], **options).test for options in keys]
    assert [len(split) for split in splits] == [6, 5, 12]
    lowest = [np.sort(split.array[:, 0])[:2] for split in splits]
    expected = [[-1.315, -0.837], [-0.989, -0.301], [-1.152, -0.865]]
    np.testing.assert_allclose(lowest, expected, atol=1e-3)


def test_a_text_is_pinned(tmp_path):
    (tmp_path / "t.txt").write_text("the cat and the dog, the end of it. " * 40)
    dataset = load(tmp_path / "t.txt", "text", sequence_length=6)
    assert dataset.vocabulary[2:8] == ("the", "cat", ",", ".", "and", "dog")
    assert dataset.train.array[0].tolist() == [2, 3, 6, 2, 7, 4]


def test_images_are_pinned(tmp_path):
    for number in range(30):
        write_grey(tmp_path / "f" / "ab"[number % 2] / f"{number}.png", number)
    dataset = load(tmp_path / "f", "image_folder")
    assert dataset.train.array[:6, 0, 0, 0].tolist() == [16, 11, 25, 2, 15, 14]
    assert dataset.test.array[:, 0, 0, 0].tolist() == [12, 3, 28]
