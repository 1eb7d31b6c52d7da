"""Datasets by their spec: splits, sizes, weights of samples and classes, and epoch order."""

import numpy as np
import pytest

from raybench.data import load
from raybench.data.dataset import all_arrays, batches, epoch_order
from raybench.data.load import limit_and_repeat, load_dataset
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import dataset_of, sizes
from tests.refusals import refused

SPECS = {
    "digits": DatasetSpec(name="digits", image_size=28),
    "synthetic": DatasetSpec(name="synthetic", shape=[6, 5, 3], num_classes=4, num_samples=40),
}


def _rows(split):
    return {image.tobytes() for image in split.inputs}


def test_digits_splits_are_disjoint_and_pinned():
    dataset = load_dataset(DatasetSpec(name="digits"))
    assert dataset.train.labels[:8].tolist() == [6, 9, 0, 6, 3, 6, 1, 3]
    assert dataset.test.labels[:8].tolist() == [6, 6, 6, 2, 5, 6, 6, 2]
    train, validation, test = (_rows(s) for s in dataset.splits.values())
    # All 1,797 8x8 digits differ, so equal pixels would mean the same sample.
    assert len(train | validation | test) == 1797
    assert not train & validation
    assert not (train | validation) & test


@pytest.mark.parametrize("name", SPECS)
def test_splits_depend_on_the_split_seed(name):
    spec = SPECS[name]
    first = load_dataset(spec)
    load._load.cache_clear()
    second = load_dataset(spec)
    other = load_dataset(spec.model_copy(update={"split_seed": 1}))
    assert first is not second
    for part, array in all_arrays(first).items():
        np.testing.assert_array_equal(array, all_arrays(second)[part])
        assert (array != all_arrays(other)[part]).any()
    if name == "synthetic":
        assert (first.input_shape, sizes(first)) == ((6, 5, 3), [40, 10, 10])
        assert set(first.train.labels) == set(range(4))


def test_limit_keeps_the_first_samples_and_repeat_copies_nothing():
    unlimited = load_dataset(DatasetSpec(name="digits"))
    dataset = load_dataset(DatasetSpec(name="digits", limit=100, repeat=4))
    np.testing.assert_array_equal(dataset.train.inputs, unlimited.train.inputs[:100])
    assert len(dataset.train) == 100
    assert dataset.num_train_samples == 400
    assert len(dataset.validation) == 360


@pytest.mark.parametrize(
    ("spec", "code", "names"),
    [
        ({"name": "digits", "limit": 1258}, "TOO_FEW", ["dataset.limit 1258", "1257"]),
        ({"name": "digits", "validation_size": 1617}, "TOO_FEW", ["validation_size 1617"]),
        ({"name": "synthetic", "image_size": 32}, "CONFLICT", ["image_size 32", "dataset.shape"]),
    ],
)
def test_impossible_sizes_are_refused(spec, code, names):
    with refused(ErrorCode[code], *names):
        load_dataset(DatasetSpec(**spec))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("image_folder", "label", "x"),
        ("text", "label", "x"),
        ("npz", "text", "x"),
        ("digits", "test_size", "none"),
    ],
)
def test_a_key_without_effect_is_refused(name, key, value):
    with refused(ErrorCode.UNSUPPORTED, f"dataset.{key}", name):
        load_dataset(DatasetSpec(name=name, path="x", **{key: value}))


LABELS = np.array([0, 0, 0, 1, 2, 2], np.int64)
NUMBERS = {"labels": LABELS.astype(np.float32), "task": "regression"}


def weights(spec, weights=None, names=("cat", "dog", "cow"), labels=LABELS, **fields):
    inputs = np.zeros((len(LABELS), 2), np.float32)
    animals = dataset_of(inputs, labels, 3, weights, class_names=names, **fields)
    out = limit_and_repeat(animals, DatasetSpec(name="workload", **spec)).train.weights
    return None if out is None else out.tolist()


def test_balanced_class_weights_have_equal_sums():
    assert weights({}) is None
    balanced = np.array(weights({"class_weights": "balanced"}))
    sums = [balanced[label == LABELS].sum() for label in range(3)]
    assert sums == pytest.approx([2.0, 2.0, 2.0])
    limited = weights({"class_weights": "balanced", "limit": 4})
    assert limited == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0]), "from the samples that are left"


def test_class_weights_by_name_multiply_sample_weights():
    by_name = weights({"class_weights": {"dog": 4.0}}, weights=np.array([1, 1, 1, 1, 3, 0], "f"))
    expected = np.array([1, 1, 1, 4, 3, 0]) / (10 / 6)
    assert by_name == pytest.approx(expected.tolist())
    by_number = weights({"class_weights": {1: 4.0}}, names=())
    assert by_number == pytest.approx((np.array([1, 1, 1, 4, 1, 1]) / 1.5).tolist())


@pytest.mark.parametrize(
    ("spec", "more", "code", "names"),
    [
        ({"class_weights": {"dgo": 2.0}}, {}, "UNKNOWN_NAME", ["'dgo'", "'dog'"]),
        ({"class_weights": "balanced"}, NUMBERS, "UNSUPPORTED", ["class_weights"]),
        ({}, {"weights": np.zeros(6, np.float32)}, "INVALID_DATA", ["dataset.weight"]),
    ],
)
def test_invalid_weights_are_refused(spec, more, code, names):
    with refused(ErrorCode[code], "own", *names):
        weights(spec, **more)


def test_epoch_order_is_a_permutation_determined_by_seed_and_epoch():
    # Another numpy or platform must give the same order, or records cannot be compared.
    assert epoch_order(8, seed=0, epoch=0).tolist() == [5, 0, 1, 4, 2, 6, 3, 7]
    pairs = [(3, 2), (4, 2), (3, 3), (1, 2), (2, 1)]
    orders = [epoch_order(100, seed=seed, epoch=epoch) for seed, epoch in pairs]
    assert orders[0].dtype == np.int64
    np.testing.assert_array_equal(np.sort(orders[0]), np.arange(100))
    np.testing.assert_array_equal(orders[0], epoch_order(100, seed=3, epoch=2))
    assert len({order.tobytes() for order in orders}) == 5


@pytest.mark.parametrize(
    ("num_samples", "least", "ends"),
    [(24, 4, [8, 16, 24]), (28, 4, [8, 16, 24, 28]), (27, 4, [8, 16, 27]), (3, 4, [3])],
)
def test_a_small_remainder_joins_the_previous_batch(num_samples, least, ends):
    slices = list(batches(num_samples, size=8, least=least))
    assert [batch.stop for batch in slices] == ends
    assert [batch.start for batch in slices] == [0, *ends[:-1]]
    later = batches(num_samples, size=8, least=least, first=ends[0])
    assert list(later) == slices[1:], "a resumed run has the same batches"
