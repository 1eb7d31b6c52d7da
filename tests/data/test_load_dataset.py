import numpy as np
import pytest

from raybench.data import load
from raybench.data.dataset import Split
from raybench.data.load import load_dataset
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

SPECS = {
    "digits": DatasetSpec(name="digits", image_size=28),
    "synthetic": DatasetSpec(name="synthetic", num_samples=64),
}


def _rows(split: Split) -> set[bytes]:
    return {image.tobytes() for image in split.inputs}


def test_digits_at_28_pixels():
    dataset = load_dataset(SPECS["digits"])
    assert [len(s) for s in (dataset.train, dataset.validation, dataset.test)] == [1257, 360, 180]
    assert dataset.input_shape == (28, 28, 1)
    assert dataset.train.inputs.dtype == np.uint8
    assert dataset.train.inputs.max() > 240
    assert set(dataset.train.labels) == set(range(10))


def test_digits_splits_are_disjoint():
    dataset = load_dataset(DatasetSpec(name="digits"))
    train, validation, test = (_rows(s) for s in (dataset.train, dataset.validation, dataset.test))
    # All 1,797 8x8 digits differ, so equal pixels would mean the same sample.
    assert len(train | validation | test) == 1797
    assert not train & validation
    assert not (train | validation) & test


@pytest.mark.parametrize("name", SPECS)
def test_splits_are_a_function_of_the_split_seed(name):
    spec = SPECS[name]
    first = load_dataset(spec)
    load._load.cache_clear()
    second = load_dataset(spec)
    other = load_dataset(spec.model_copy(update={"split_seed": 1}))
    assert first is not second
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(first, part).inputs, getattr(second, part).inputs)
        np.testing.assert_array_equal(getattr(first, part).labels, getattr(second, part).labels)
        assert (getattr(first, part).inputs != getattr(other, part).inputs).any()


def test_splits_are_pinned():
    dataset = load_dataset(DatasetSpec(name="digits"))
    assert dataset.train.labels[:8].tolist() == [6, 9, 0, 6, 3, 6, 1, 3]
    assert dataset.test.labels[:8].tolist() == [6, 6, 6, 2, 5, 6, 6, 2]


def test_validation_size_moves_neither_test_nor_order():
    small = load_dataset(DatasetSpec(name="digits", validation_size=100))
    large = load_dataset(DatasetSpec(name="digits", validation_size=200))
    assert len(small.validation) == 100
    assert len(small.train) == 1517
    np.testing.assert_array_equal(small.test.inputs, large.test.inputs)
    np.testing.assert_array_equal(small.train.inputs[100:], large.train.inputs)


def test_limit_keeps_the_first_and_repeat_copies_nothing():
    whole = load_dataset(DatasetSpec(name="digits"))
    dataset = load_dataset(DatasetSpec(name="digits", limit=100, repeat=4))
    np.testing.assert_array_equal(dataset.train.inputs, whole.train.inputs[:100])
    assert len(dataset.train) == 100
    assert dataset.num_train_samples == 400
    assert len(dataset.validation) == 360


def test_synthetic_has_the_shape_and_sizes_asked_for():
    dataset = load_dataset(
        DatasetSpec(name="synthetic", shape=[6, 5, 3], num_classes=4, num_samples=40)
    )
    assert dataset.input_shape == (6, 5, 3)
    assert [len(s) for s in (dataset.train, dataset.validation, dataset.test)] == [40, 10, 10]
    assert dataset.train.inputs.dtype == np.uint8
    assert set(dataset.train.labels) == set(range(4))
    assert dataset.num_classes == 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "digits", "limit": 1258}, "limit 1258 is more than the 1257 training samples"),
        ({"name": "digits", "validation_size": 1617}, "validation_size 1617 leaves nothing"),
        ({"name": "synthetic", "image_size": 32}, "image_size 32 and dataset.shape .* disagree"),
    ],
)
def test_impossible_sizes_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        load_dataset(DatasetSpec(**spec))


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.zeros((3, 2), np.uint8), np.zeros(2, np.int64), "one label per input"),
        (np.zeros((2, 2)), np.zeros(2, np.int64), "float32 .numbers., .* found float64"),
        (np.zeros((2, 2), np.uint8), np.zeros(2), "int64"),
        (np.zeros((2, 2), np.uint8), np.zeros((2, 1, 1), np.int64), "int64"),
    ],
)
def test_a_split_of_the_wrong_kind_is_refused(inputs, labels, message):
    with pytest.raises(UserError, match=message):
        Split(inputs, labels)
