"""One copy of a dataset on a node: built once, mapped by all, whole or not there."""

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np

from raybench.data import shared
from raybench.data.dataset import Dataset, Split, all_arrays
from raybench.data.memory import is_mapped
from raybench.data.shared import open_shared, share, shared_key
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.refusals import refused


def dataset(size=64):
    rng = np.random.default_rng(0)

    def one():
        inputs = rng.integers(0, 256, (size, 8, 8, 1), dtype=np.uint8)
        return Split(inputs, rng.integers(0, 10, size))

    return Dataset("own", 10, train=one(), validation=one(), test=one(), repeat=3)


def assert_equal(found, wanted):
    assert (found.name, found.num_classes, found.repeat) == ("own", 10, 3)
    for name, array in all_arrays(wanted).items():
        np.testing.assert_array_equal(all_arrays(found)[name], array)


def never():
    raise AssertionError("was there already")


def test_what_is_shared_is_what_was_built(tmp_path):
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


class Read:
    """Samples on demand that cannot be copied into another process: there is a file open."""

    shape, dtype = (64, 8, 8, 1), np.uint8

    def __init__(self, file):
        self._file = file.open("rb")

    def __getitem__(self, rows):
        found = np.empty((len(rows), 8, 8, 1), np.uint8)
        for place, row in enumerate(rows):
            self._file.seek(64 * int(row))
            found[place] = np.frombuffer(self._file.read(64), np.uint8).reshape(8, 8, 1)
        return found


def test_of_a_split_on_demand_the_labels_are_shared_and_must_agree(tmp_path):
    wanted, built = dataset(), []
    (tmp_path / "raw").write_bytes(wanted.train.inputs.tobytes())

    def build(labels=wanted.train.labels):
        built.append(Split(Read(tmp_path / "raw"), labels))
        return replace(wanted, train=built[-1])

    first = open_shared(tmp_path / "x", build)
    assert len(built) == 1, "who builds the arrays builds once"
    second = open_shared(tmp_path / "x", build)
    assert len(built) == 2, "each process has an object of its own"
    rows = np.array([63, 0, 5])
    for found, own in zip((first, second), built, strict=True):
        assert found.train.inputs is own.inputs
        np.testing.assert_array_equal(found.train.read(rows), wanted.train.inputs[rows])
        assert isinstance(found.train.labels.base, np.memmap)
        assert isinstance(found.test.inputs.base, np.memmap)
    assert not (tmp_path / "x" / "train-inputs.npy").exists()
    share(replace(wanted, train=built[0]), tmp_path / "y")
    assert open_shared(tmp_path / "y", build).train.inputs is built[2].inputs
    others = (wanted.train.labels + (np.arange(64) == 7)).astype(np.int64)
    with refused(ErrorCode.USER_CODE, "own", "train", "spec.split_seed"):
        open_shared(tmp_path / "x", lambda: build(others))


def test_the_key_is_of_the_data_alone():
    digits, own = DatasetSpec(name="digits", limit=100), DatasetSpec(name="workload")
    assert shared_key("cnn7", digits) == shared_key("mnist_small", digits)
    keys = {
        shared_key("a:Net", own),
        shared_key("b:Net", own),
        shared_key("a:Net", digits),
        shared_key("a:Net", own.model_copy(update={"limit": 5})),
    }
    assert len(keys) == 4
    assert all(Path(key).name == key for key in keys)
