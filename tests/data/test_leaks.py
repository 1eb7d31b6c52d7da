"""What leaks or is alone in data is said in a sentence each."""

import numpy as np
import pytest

from raybench.data.check import dataset_warnings
from raybench.data.dataset import Dataset, Split
from raybench.data.digits import load_digits
from raybench.spec.dataset_spec import DatasetSpec

RNG = np.random.default_rng(0)


def test_nothing_is_said_of_what_is_sound():
    assert dataset_warnings(load_digits(DatasetSpec(name="digits"))) == []


def of_classes(train, validation, test):
    splits = [np.array(one) for one in (train, validation, test)]
    made = [Split(RNG.normal(size=(len(one), 4)).astype(np.float32), one) for one in splits]
    return Dataset("made up", 3, *made, class_names=("a", "b", "c"))


@pytest.mark.parametrize(
    ("splits", "names"),
    [
        (([0, 1, 2] * 9, [1] * 5, [0, 1, 2]), ["5 validation", "'b'"]),
        (([0, 1, 2] * 9, [0, 1, 2], [2] * 4), ["4 test", "'c'"]),
        (([0, 1] * 9, [0, 2, 1], [2, 1]), ["train", "'c'", "2 "]),
    ],
)
def test_classes_that_a_split_lacks_are_said(splits, names):
    (line,) = dataset_warnings(of_classes(*splits))
    assert all(name in line for name in names)


def test_training_samples_that_are_all_the_same_are_said():
    inputs, labels = np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2
    one = Split(inputs, labels)
    found = dataset_warnings(Dataset("made up", 2, one, one, one))
    assert "40 training samples" in found[0]


@pytest.mark.parametrize("kind", ["numbers", "pictures"])
def test_rows_that_stand_in_two_splits_are_counted_for_each_pair(kind):
    shape = (3,) if kind == "numbers" else (40, 40, 3)
    inputs = RNG.integers(0, 255, (300, *shape))
    inputs = inputs.astype(np.float32 if kind == "numbers" else np.uint8)
    labels = RNG.integers(0, 2, 300)
    parts = {"train": (0, 200), "validation": (190, 250), "test": (245, 300)}
    splits = {name: Split(inputs[a:b], labels[a:b]) for name, (a, b) in parts.items()}
    first, second = dataset_warnings(Dataset("made up", 2, **splits))
    for part in ("10 of 60 validation", "validation sample 0", "training sample 190"):
        assert part in first
    for part in ("5 of 55 test", "test sample 0", "validation sample 55"):
        assert part in second
