"""A whole dataset in the store, with all that it has; and the files that it is made of."""

import numpy as np
import pytest

from raybench.data.dataset import Dataset, Split
from raybench.data.store.build import Source, list_files, read_dataset, stored, write_dataset
from raybench.spec.errors import UserError


def test_a_whole_dataset_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_CACHE", str(tmp_path))

    def split(number):
        inputs = {"ids": np.arange(number * 3, dtype=np.int32).reshape(number, 3)}
        inputs["image"] = np.ones((number, 2, 2, 1), np.uint8)
        weights = np.ones(number, np.float32)
        return Split(inputs, np.arange(number, dtype=np.float32), weights)

    wanted = Dataset(
        "own",
        None,
        split(5),
        split(2),
        Split(np.ones((3, 2), np.float32), np.zeros(3, np.int64)),
        task="regression",
        vocabulary=("a", "b"),
        label_scale=np.float32(2),
        label_offset=np.asarray([1.5], np.float32),
    )
    source = Source(name="own", path=tmp_path, files=[], options={})
    stored(source, lambda writer: write_dataset(writer, wanted))
    found = read_dataset(stored(source, lambda writer: {}))
    assert (found.name, found.task, found.vocabulary) == ("own", "regression", ("a", "b"))
    assert (float(found.label_scale), found.label_offset.tolist()) == (2.0, [1.5])
    for name in ("ids", "image"):
        np.testing.assert_array_equal(found.train.inputs[name], wanted.train.inputs[name])
    np.testing.assert_array_equal(found.train.weights, wanted.train.weights)
    assert found.test.weights is None
    assert found.test.inputs.dtype == np.float32


def test_folders_are_listed_by_name_without_hidden_files(tmp_path):
    for name in ("b/2.png", "a/1.png", "a/.hidden", ".git/x", "b/deep/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [file.name for file in list_files(tmp_path)] == ["a/1.png", "b/2.png", "b/deep/3.png"]
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"b/up is a link to a folder that it lies in"):
        list_files(tmp_path)
