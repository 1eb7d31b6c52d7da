"""Inputs on demand: what a split takes in place of an array, and what it refuses."""

import dataclasses

import numpy as np
import pytest

from raybench.data import check, memory
from raybench.data.check import check_dataset
from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import Selected
from raybench.data.load import limit_and_repeat
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.refusals import refused


class Squares:
    """Sample i holds i * i, four times; `shape`, `dtype` and [rows], and nothing else."""

    def __init__(self, size, *, kind=np.float32, spoil=None):
        self.shape, self.dtype = (size, 2, 2, 1), kind
        self.asked, self.spoil = [], spoil

    def __getitem__(self, rows):
        assert isinstance(rows, np.ndarray)
        assert rows.dtype == np.int64
        self.asked.append(rows.tolist())
        found = np.repeat(rows * rows, 4).reshape(-1, 2, 2, 1).astype(self.dtype)
        return self.spoil(found) if self.spoil else found


def split(size=20, **options):
    return Split(Squares(size, **options), np.arange(size, dtype=np.int64) % 3)


def values(split, rows):
    return split.read(np.array(rows))[:, 0, 0, 0].tolist()


def test_taking_samples_reads_none_and_keeps_their_order():
    whole = split()
    assert whole.is_on_demand
    assert values(whole, [3, 1, 1]) == [9, 1, 1]
    some = whole.take(np.array([7, 5, 3, 1])).take(slice(1, None)).take(np.array([2, 0]))
    assert whole.inputs.asked == [[3, 1, 1]]
    assert some.labels.tolist() == [1, 5 % 3]
    assert some.inputs.shape == (2, 2, 2, 1)
    assert isinstance(some.inputs, Selected)
    assert some.inputs.inputs is whole.inputs, "a view of the samples, not of a view"
    assert values(some, [0, 1, 1]) == [1, 25, 25]


def test_a_split_is_limited_and_repeated_as_arrays_are():
    dataset = Dataset("own", 3, train=split(), validation=split(5), test=split(5))
    limited = limit_and_repeat(dataset, DatasetSpec(name="workload", limit=4, repeat=3))
    assert (limited.num_train_samples, limited.input_shape) == (12, (2, 2, 1))
    assert values(limited.train, np.arange(4)) == [0, 1, 4, 9]


def test_of_a_file_larger_than_memory_no_rows_are_copied(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32).reshape(20, 2))
    rows, labels = np.array([9, 0, 3]), np.arange(20, dtype=np.int64)
    small = Split(memory.map_array(tmp_path / "x.npy"), labels).take(rows)
    assert isinstance(small.inputs, np.ndarray)
    monkeypatch.setattr(memory, "MAX_MAPPED_SHARE", 0.0)
    whole = Split(memory.map_array(tmp_path / "x.npy"), labels)
    assert not whole.array.flags.writeable
    large = whole.take(rows)
    assert isinstance(large.inputs, Selected)
    np.testing.assert_array_equal(large.read(np.array([2, 0])), small.array[[2, 0]])
    assert not whole.take(slice(5)).is_on_demand, "a part of the file is one too"
    assert not Split(np.zeros((20, 2), np.uint8), labels).take(rows).is_on_demand


def test_what_is_read_can_be_written_to():
    def read_only(found):
        found.flags.writeable = False
        return found

    found = split(spoil=read_only).read(np.arange(3))
    found[:] = 0
    columns = split(spoil=np.asfortranarray).read(np.arange(3))
    assert columns.flags.c_contiguous


@pytest.mark.parametrize(
    ("spoil", "code", "value"),
    [
        (lambda found: found[:-1], "USER_CODE", "float32 (2, 2, 2, 1)"),
        (lambda found: found.astype(np.float64), "USER_CODE", "float32 (3, 2, 2, 1)"),
        (lambda found: found / np.float32(found[..., :1] != 25), "INVALID_DATA", "sample 5"),
        (lambda found: np.sqrt(found - 16), "INVALID_DATA", "sample 2"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_batch_is_checked(spoil, code, value):
    with refused(ErrorCode[code], "Squares[rows]", value):
        split(spoil=spoil).read(np.array([7, 5, 2]))


class OfTorch:
    """Its type is another library's."""

    shape, dtype, __getitem__ = (20, 4), "torch.uint8", None


CLASSES = np.zeros(20, np.int64)


@pytest.mark.parametrize(
    ("inputs", "labels", "names"),
    [
        ([1, 2], CLASSES, ["list"]),
        (OfTorch(), CLASSES, ["torch.uint8"]),
        (Squares(20, kind=np.float64), CLASSES, ["float64"]),
        (Squares(19), CLASSES, ["19", "20"]),
        (np.zeros((20, 2)), CLASSES, ["float64"]),
        (Squares(20), CLASSES[:, None, None], ["int64"]),
    ],
)
def test_what_can_be_no_split_is_refused(inputs, labels, names):
    with refused(ErrorCode.INVALID_DATA, *names):
        Split(inputs, labels)


def test_a_few_samples_are_tried_before_training():
    whole = Dataset("own", 3, train=split(20), validation=split(9), test=split(3))
    check_dataset(whole, "x")
    for name, first in (("train", 19), ("validation", 8), ("test", 2)):
        (asked,) = getattr(whole, name).inputs.asked
        assert len(asked) == check.SAMPLES_TRIED
        assert (asked[0], asked[-1]) == (first, 0), "begin and end, and not in rising order"
    short = dataclasses.replace(whole, train=split(spoil=lambda found: found[1:]))
    with refused(ErrorCode.USER_CODE, "my:Net", "train", "Squares"):
        check_dataset(short, "my:Net")
