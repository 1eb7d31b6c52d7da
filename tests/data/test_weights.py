"""Weights of samples and classes: scaled to mean 1, and named where they are wrong."""

import numpy as np
import pytest

from raybench.data.dataset import Dataset, Split
from raybench.data.load import limit_and_repeat
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

LABELS = np.array([0, 0, 0, 1, 2, 2], np.int64)


def dataset(weights=None, task="classification", names=("cat", "dog", "cow")):
    inputs = np.zeros((len(LABELS), 2), np.float32)
    labels = LABELS.astype(np.float32) if task == "regression" else LABELS
    train = Split(inputs, labels, weights)
    other = Split(inputs, labels)
    return Dataset("animals", 3, train, other, other, task=task, class_names=names)


def weights(spec, **more):
    found = limit_and_repeat(dataset(**more), DatasetSpec(name="workload", **spec)).train.weights
    return None if found is None else found.tolist()


def test_none_are_none():
    assert weights({}) is None


def test_balanced_classes_weigh_the_same():
    found = np.array(weights({"class_weights": "balanced"}))
    sums = [found[label == LABELS].sum() for label in range(3)]
    assert sums == pytest.approx([2.0, 2.0, 2.0])
    limited = weights({"class_weights": "balanced", "limit": 4})
    assert limited == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0]), "of the samples that are left"


def test_classes_by_name_times_the_samples_own():
    found = weights({"class_weights": {"dog": 4.0}}, weights=np.array([1, 1, 1, 1, 3, 0], "f"))
    expected = np.array([1, 1, 1, 4, 3, 0]) / (10 / 6)
    assert found == pytest.approx(expected.tolist())
    by_number = weights({"class_weights": {1: 4.0}}, names=())
    assert by_number == pytest.approx((np.array([1, 1, 1, 4, 1, 1]) / 1.5).tolist())


@pytest.mark.parametrize(
    ("spec", "more", "message"),
    [
        ({"class_weights": {"dgo": 2.0}}, {}, "animals has no class 'dgo'; did you mean 'dog'"),
        ({"class_weights": {"zzz": 2.0}}, {}, "there are cat, dog, cow."),
        ({"class_weights": "balanced"}, {"task": "regression"}, "of classes, and animals is of"),
        ({}, {"weights": np.zeros(6, np.float32)}, "training samples of animals are 0"),
    ],
)
def test_what_is_wrong_is_named(spec, more, message):
    with pytest.raises(UserError, match=message) as caught:
        weights(spec, **more)
    assert "\n" not in str(caught.value)
