"""Checks of datasets before training: invalid data are refused; duplicates between splits, missing
classes and identical samples are reported."""

import dataclasses

import numpy as np
import pytest

from raybench.data import check
from raybench.data.check import check_dataset, dataset_warnings
from raybench.data.dataset import Dataset, Split
from raybench.data.load import load_dataset
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import dataset_of, split_of
from tests.refusals import refused

THIRDS = [0, 1, 2] * 3
GOOD = dataset_of(np.ones((9, 4), np.float32), THIRDS, 3)


def numbers(inputs, labels, weights=None):
    return dataset_of(inputs, labels, None, weights, task="regression")


def prose(inputs, labels, num_tokens=8):
    return dataset_of(inputs, labels, num_tokens, task="language_modelling")


WITH_NAN = np.where(np.arange(9) == 7, np.nan, 1).astype(np.float32).repeat(4).reshape(9, 4)
NUMBERS = np.array([0.5, np.nan, 2.0, np.inf], np.float32)
FOUR = np.ones((4, 2), np.float32)
ONE_CLASS = dataset_of(FOUR, [0] * 4, num_classes=1)
PAIRS = np.arange(8, dtype=np.float32).reshape(4, 2)
TOKENS = np.arange(8).reshape(4, 2)
BY_NAME = {"image": np.ones((4, 2), np.uint8), "codes": np.array([0, 3, -2, 1])}


WEIGHTS = np.array([1, 1, -1, np.nan], np.float32)
NAMED = numbers(BY_NAME | {"codes": TOKENS}, PAIRS)


def changed(dataset=GOOD, **fields):
    return dataclasses.replace(dataset, **fields)


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (changed(num_classes=None), ["num_classes", "None"]),
        (changed(train=split_of([])), ["train"]),
        (changed(train=split_of([0, 3])), ["train", "3", "sample 1", "0 to 2"]),
        (changed(train=split_of([0, -1, -1])), ["-1", "sample 1", "(2 "]),
        (changed(test=split_of([0, 5])), ["test", "5"]),
        (changed(train=Split(WITH_NAN, GOOD.train.labels)), ["train", "NaN", "sample 7"]),
        (changed(validation=split_of(THIRDS, (5,))), ["validation", "float32 (5,)"]),
        (changed(train=split_of(THIRDS, (0,))), ["train", "(9, 0)"]),
        (numbers(FOUR, NUMBERS), ["NaN", "sample 1", "(2 "]),
        (numbers(FOUR, np.ones(4, "f")), ["4", "1.0"]),
        (ONE_CLASS, ["4", "0"]),
        (dataset_of(FOUR, [1] * 4), ["1"]),
        (dataset_of(FOUR, NUMBERS), ["float32 (4,)"]),
        (dataset_of(FOUR, TOKENS), ["int64", "(4, 2)"]),
        (prose(TOKENS, TOKENS, 7), ["7", "sample 3"]),
        (prose(TOKENS + 1, TOKENS % 8), ["train", "8", "sample 3"]),
        (prose(TOKENS, [[0, 1], [2, -100], [-100, -100], [3, 4]]), ["sample 2", "(1 ", "-100"]),
        (numbers(BY_NAME, FOUR), ["train", "codes", "-2"]),
        (changed(NAMED, test=Split(FOUR, PAIRS)), ["test", "uint8 (2,) as input image"]),
        (changed(numbers(FOUR, PAIRS), test=Split(FOUR, PAIRS[:, :1])), ["(1,)", "(2,)"]),
        (numbers(FOUR, PAIRS, WEIGHTS), ["-1.0", "sample 2", "(2 "]),
    ],
)
def test_invalid_datasets_are_refused(dataset, names, monkeypatch):
    # Two rows are checked at a time, so errors fall on chunk boundaries.
    monkeypatch.setattr(check, "VALUES_AT_ONCE", 8)
    with refused(ErrorCode.INVALID_DATA, "x: ", *names):
        check_dataset(dataset, "x")


@pytest.mark.parametrize(
    "dataset",
    [
        NAMED,
        prose(TOKENS, TOKENS[:, ::-1].copy()),
        changed(num_classes=np.int64(3)),
    ],
)
def test_valid_datasets_pass(dataset):
    check_dataset(dataset, "x")


def test_labels_of_one_class_are_accepted_from_a_user_workload():
    """They may come from an autoencoder; from other sources, ONE_CLASS is refused above."""
    check_dataset(ONE_CLASS, "load_dataset of own:Net", is_own=True)


RNG = np.random.default_rng(0)


def test_sound_data_give_no_warnings():
    assert dataset_warnings(load_dataset(DatasetSpec(name="digits"))) == []


def of_classes(train, validation, test):
    splits = [np.array(labels) for labels in (train, validation, test)]
    parts = [
        Split(RNG.normal(size=(len(labels), 4)).astype(np.float32), labels) for labels in splits
    ]
    return Dataset("made up", 3, *parts, class_names=("a", "b", "c"))


@pytest.mark.parametrize(
    ("splits", "names"),
    [
        (([0, 1, 2] * 9, [1] * 5, [0, 1, 2]), ["5 validation", "'b'"]),
        (([0, 1, 2] * 9, [0, 1, 2], [2] * 4), ["4 test", "'c'"]),
        (([0, 1] * 9, [0, 2, 1], [2, 1]), ["train", "'c'", "2 "]),
    ],
)
def test_classes_missing_from_a_split_are_reported(splits, names):
    (line,) = dataset_warnings(of_classes(*splits))
    assert all(name in line for name in names)


def test_identical_training_samples_are_reported():
    (line, *_) = dataset_warnings(dataset_of(np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2))
    assert "40 training samples" in line


def test_duplicates_between_splits_are_counted_per_pair():
    inputs, labels = RNG.integers(0, 256, (300, 8, 8, 3), np.uint8), RNG.integers(0, 2, 300)
    parts = {"train": (0, 200), "validation": (190, 250), "test": (245, 300)}
    splits = {name: Split(inputs[a:b], labels[a:b]) for name, (a, b) in parts.items()}
    first, second = dataset_warnings(Dataset("made up", 2, **splits))
    for part in ("10 of 60 validation", "validation sample 0", "training sample 190"):
        assert part in first
    for part in ("5 of 55 test", "test sample 0", "validation sample 55"):
        assert part in second
