"""One copy of a dataset on a node: built once, mapped by all, whole or not there."""

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np

from raybench.data import shared
from raybench.data.dataset import Dataset, Split, about_dataset, all_arrays
from raybench.data.memory import is_mapped
from raybench.data.shared import open_shared, share, shared_key
from raybench.spec.run import DatasetSpec


def dataset(size=64):
    rng = np.random.default_rng(0)

    def one():
        inputs = rng.integers(0, 256, (size, 8, 8, 1), dtype=np.uint8)
        return Split(inputs, rng.integers(0, 10, size))

    return Dataset("own", 10, train=one(), validation=one(), test=one(), repeat=3)


def named(size=5):
    inputs = {"ids": np.arange(3 * size, dtype=np.int32).reshape(size, 3)}
    inputs["image"] = np.ones((size, 2, 2, 1), np.uint8)
    numbers = np.arange(size, dtype=np.float32)
    one = Split(inputs, numbers, np.ones(size, np.float32))
    scale = {"label_scale": np.float32(2), "label_offset": np.asarray([1.5], np.float32)}
    other = Split(np.ones((size, 2), np.float32), numbers)
    known = {"task": "regression", "vocabulary": ("a", "b")}
    return Dataset("own", None, one, one, other, **known, **scale)


def assert_equal(found, wanted):
    assert about_dataset(found) == about_dataset(wanted)
    assert all_arrays(found).keys() == all_arrays(wanted).keys()
    for name, array in all_arrays(wanted).items():
        np.testing.assert_array_equal(all_arrays(found)[name], array)


def never():
    raise AssertionError("was there already")


def test_what_is_shared_is_what_was_built(tmp_path):
    assert_equal(open_shared(tmp_path / "named", named), named())
    wanted = dataset()
    mirrored = Split(np.asfortranarray(wanted.train.inputs)[::-1], wanted.train.labels[::-1])
    wanted = replace(wanted, train=mirrored, test=wanted.test.take(slice(0)))
    assert_equal(open_shared(tmp_path / "a", lambda: wanted), wanted)
    found = open_shared(tmp_path / "a", never)
    assert_equal(found, wanted)
    assert found.train.array.flags.c_contiguous
    share(wanted, tmp_path / "b")
    share(dataset(3), tmp_path / "b")  # is there already
    found = open_shared(tmp_path / "b", never)
    assert_equal(found, wanted)
    assert is_mapped(found.train.array), "processes have the pages in common"


def test_a_full_disk_leaves_the_data_private(tmp_path, monkeypatch):
    def full(file, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shared.np, "save", full)
    assert_equal(open_shared(tmp_path / "x", dataset), dataset())
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]


def test_a_dataset_on_demand_is_built_by_each_process(tmp_path):
    class OnDemand:
        shape, dtype = (64, 8, 8, 1), np.uint8

        def __getitem__(self, rows):
            return wanted.train.array[rows]

    wanted, built = dataset(), []

    def build():
        built.append(replace(wanted, train=Split(OnDemand(), wanted.train.labels)))
        return built[-1]

    assert [open_shared(tmp_path / "x", build) is built[-1] for _ in range(2)] == [True, True]
    assert len(built) == 2, "who builds the arrays builds once"
    share(built[0], tmp_path / "y")
    assert open_shared(tmp_path / "y", build) is built[2]
    assert not list(tmp_path.glob("*/*.npy"))


def test_the_key_is_of_the_data_alone():
    digits, own = DatasetSpec(name="digits", limit=100), DatasetSpec(name="workload")
    assert shared_key("cnn7", digits) == shared_key("mnist_small", digits)
    limited = own.model_copy(update={"limit": 5})
    asked = [("a:Net", own), ("b:Net", own), ("a:Net", digits), ("a:Net", limited)]
    keys = {shared_key(*one) for one in asked}
    assert len(keys) == 4
    assert all(Path(key).name == key for key in keys)
