"""Inputs on demand: objects that a split accepts in place of an array, and those it refuses."""

import dataclasses

import numpy as np
import pytest

from raybench.data import check, memory
from raybench.data.check import check_dataset
from raybench.data.dataset import Dataset, Selected, Split
from raybench.data.load import limit_and_repeat
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.refusals import refused


class Squares:
    """Inputs whose sample i is i * i, four times; they have only `shape`, `dtype` and `[rows]`."""

    def __init__(self, size, *, kind=np.float32, spoil=None):
        self.shape, self.dtype = (size, 2, 2, 1), kind
        self.asked, self.spoil = [], spoil

    def __getitem__(self, rows):
        assert isinstance(rows, np.ndarray)
        assert rows.dtype == np.int64
        self.asked.append(rows.tolist())
        samples = np.repeat(rows * rows, 4).reshape(-1, 2, 2, 1).astype(self.dtype)
        return self.spoil(samples) if self.spoil else samples


def split(size=20, **options):
    return Split(Squares(size, **options), np.arange(size, dtype=np.int64) % 3)


def values(split, rows):
    return split.read(np.array(rows))[:, 0, 0, 0].tolist()


def test_taking_samples_reads_nothing_and_keeps_their_order():
    complete = split()
    assert complete.is_on_demand
    assert values(complete, [3, 1, 1]) == [9, 1, 1]
    taken = complete.take(np.array([7, 5, 3, 1])).take(slice(1, None)).take(np.array([2, 0]))
    assert complete.inputs.asked == [[3, 1, 1]]
    assert taken.labels.tolist() == [1, 5 % 3]
    assert taken.inputs.shape == (2, 2, 2, 1)
    assert isinstance(taken.inputs, Selected)
    assert taken.inputs.inputs is complete.inputs, "a view of the samples, not of another view"
    assert values(taken, [0, 1, 1]) == [1, 25, 25]


def test_an_on_demand_split_is_limited_and_repeated_like_arrays():
    dataset = Dataset("own", 3, train=split(), validation=split(5), test=split(5))
    limited = limit_and_repeat(dataset, DatasetSpec(name="workload", limit=4, repeat=3))
    assert (limited.num_train_samples, limited.input_shape) == (12, (2, 2, 1))
    assert values(limited.train, np.arange(4)) == [0, 1, 4, 9]


def test_files_larger_than_memory_are_not_copied(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32).reshape(20, 2))
    rows, labels = np.array([9, 0, 3]), np.arange(20, dtype=np.int64)
    small = Split(memory.map_array(tmp_path / "x.npy"), labels).take(rows)
    assert isinstance(small.inputs, np.ndarray)
    monkeypatch.setattr(memory, "MAX_MAPPED_SHARE", 0.0)
    mapped = Split(memory.map_array(tmp_path / "x.npy"), labels)
    assert not mapped.array.flags.writeable
    large = mapped.take(rows)
    assert isinstance(large.inputs, Selected)
    np.testing.assert_array_equal(large.read(np.array([2, 0])), small.array[[2, 0]])
    assert not mapped.take(slice(5)).is_on_demand, "a slice of a mapped file is mapped"
    assert not Split(np.zeros((20, 2), np.uint8), labels).take(rows).is_on_demand


def test_batches_are_writable():
    def read_only(batch):
        batch.flags.writeable = False
        return batch

    batch = split(spoil=read_only).read(np.arange(3))
    batch[:] = 0
    columns = split(spoil=np.asfortranarray).read(np.arange(3))
    assert columns.flags.c_contiguous


@pytest.mark.parametrize(
    ("spoil", "code", "value"),
    [
        (lambda batch: batch[:-1], "USER_CODE", "float32 (2, 2, 2, 1)"),
        (lambda batch: batch.astype(np.float64), "USER_CODE", "float32 (3, 2, 2, 1)"),
        (lambda batch: batch / np.float32(batch[..., :1] != 25), "INVALID_DATA", "sample 5"),
        (lambda batch: np.sqrt(batch - 16), "INVALID_DATA", "sample 2"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_batch_is_checked(spoil, code, value):
    with refused(ErrorCode[code], "Squares[rows]", value):
        split(spoil=spoil).read(np.array([7, 5, 2]))


class OfTorch:
    """Inputs with the dtype of another library."""

    shape, dtype, __getitem__ = (20, 4), "torch.uint8", None


CLASSES, NUMBERS = np.zeros(20, np.int64), np.zeros((20, 2), np.float32)


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        (([1, 2], CLASSES), ["list"]),
        ((OfTorch(), CLASSES), ["torch.uint8"]),
        ((Squares(20, kind=np.float64), CLASSES), ["float64"]),
        ((Squares(19), CLASSES), ["19", "20"]),
        ((np.zeros((20, 2)), CLASSES), ["float64"]),
        ((NUMBERS, CLASSES[:, None, None]), ["int64"]),
        ((NUMBERS, CLASSES.tolist()), ["list"]),
        ((NUMBERS, CLASSES, [1.0] * 20), ["(20,)", "list"]),
        ((NUMBERS, CLASSES, NUMBERS), ["(20,)", "(20, 2)"]),
    ],
)
def test_invalid_splits_are_refused(arrays, names):
    with refused(ErrorCode.INVALID_DATA, *names):
        Split(*arrays)


def test_a_few_samples_are_read_before_training():
    dataset = Dataset("own", 3, train=split(20), validation=split(9), test=split(3))
    check_dataset(dataset, "x")
    for name, first in (("train", 19), ("validation", 8), ("test", 2)):
        (rows,) = getattr(dataset, name).inputs.asked
        assert len(rows) == check.SAMPLES_TRIED
        assert (rows[0], rows[-1]) == (first, 0), "first and last sample, in descending order"
    short = dataclasses.replace(dataset, train=split(spoil=lambda batch: batch[1:]))
    with refused(ErrorCode.USER_CODE, "my:Net", "train", "Squares"):
        check_dataset(short, "my:Net")
