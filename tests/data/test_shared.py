"""One copy of a dataset per node: built once, mapped by all workers, written atomically."""

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np

from raybench.data import store
from raybench.data.dataset import Dataset, Split, about_dataset, all_arrays
from raybench.data.memory import is_mapped
from raybench.data.store import open_shared, share, shared_key
from raybench.spec.run import DatasetSpec


def dataset(size=64):
    rng = np.random.default_rng(0)

    def random_split():
        inputs = rng.integers(0, 256, (size, 8, 8, 1), dtype=np.uint8)
        return Split(inputs, rng.integers(0, 10, size))

    return Dataset("own", 10, random_split(), random_split(), random_split(), repeat=3)


def named(size=5):
    inputs = {"ids": np.arange(3 * size, dtype=np.int32).reshape(size, 3)}
    inputs["image"] = np.ones((size, 2, 2, 1), np.uint8)
    numbers = np.arange(size, dtype=np.float32)
    split = Split(inputs, numbers, np.ones(size, np.float32))
    scale = {"label_scale": np.float32(2), "label_offset": np.asarray([1.5], np.float32)}
    other = Split(np.ones((size, 2), np.float32), numbers)
    fields = {"task": "regression", "vocabulary": ("a", "b")}
    return Dataset("own", None, split, split, other, **fields, **scale)


def assert_equal(dataset, expected):
    assert about_dataset(dataset) == about_dataset(expected)
    assert all_arrays(dataset).keys() == all_arrays(expected).keys()
    for name, array in all_arrays(expected).items():
        np.testing.assert_array_equal(all_arrays(dataset)[name], array)


def never():
    raise AssertionError("exists already")


def test_a_shared_dataset_equals_the_built_one(tmp_path):
    assert_equal(open_shared(tmp_path / "named", named), named())
    expected = dataset()
    mirrored = Split(np.asfortranarray(expected.train.inputs)[::-1], expected.train.labels[::-1])
    expected = replace(expected, train=mirrored, test=expected.test.take(slice(0)))
    assert_equal(open_shared(tmp_path / "a", lambda: expected), expected)
    opened = open_shared(tmp_path / "a", never)
    assert_equal(opened, expected)
    assert opened.train.array.flags.c_contiguous
    share(expected, tmp_path / "b")
    share(dataset(3), tmp_path / "b")  # exists already
    opened = open_shared(tmp_path / "b", never)
    assert_equal(opened, expected)
    assert is_mapped(opened.train.array), "processes share its pages"


def test_with_a_full_disk_the_data_stay_private(tmp_path, monkeypatch):
    def full(file, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.np, "save", full)
    assert_equal(open_shared(tmp_path / "x", dataset), dataset())
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]


def test_a_dataset_on_demand_is_built_by_each_process(tmp_path):
    class OnDemand:
        shape, dtype = (64, 8, 8, 1), np.uint8

        def __getitem__(self, rows):
            return expected.train.array[rows]

    expected, built = dataset(), []

    def build():
        built.append(replace(expected, train=Split(OnDemand(), expected.train.labels)))
        return built[-1]

    assert [open_shared(tmp_path / "x", build) is built[-1] for _ in range(2)] == [True, True]
    assert len(built) == 2, "each process builds it once"
    share(built[0], tmp_path / "y")
    assert open_shared(tmp_path / "y", build) is built[2]
    assert not list(tmp_path.glob("*/*.npy"))


def test_the_shared_key_depends_only_on_the_data():
    digits, of_workload = DatasetSpec(name="digits", limit=100), DatasetSpec(name="workload")
    assert shared_key("cnn7", digits) == shared_key("mnist_small", digits)
    limited = of_workload.model_copy(update={"limit": 5})
    keys = {shared_key("a:Net", spec) for spec in (of_workload, digits, limited)}
    assert len(keys | {shared_key("b:Net", of_workload)}) == 4
    assert all(Path(key).name == key for key in keys)
