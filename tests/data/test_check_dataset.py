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
from tests.refusals import refused


def split(size=6, *, shape=(4,), kind=np.float32, labels=None):
    inputs = np.ones((size, *shape), kind)
    return Split(inputs, np.arange(size, dtype=np.int64) % 3 if labels is None else labels)


GOOD = Dataset("own", 3, train=split(9), validation=split(), test=split())


def labels(*values):
    return np.array(values, np.int64)


def with_value(value, row):
    changed = split(9)
    changed.inputs[row, 1] = value
    return changed


def test_labels_of_one_class_are_accepted_from_a_user_workload():
    """An autoencoder needs no labels, whereas constant labels of a table are an error."""
    split_of_one_class = Split(np.ones((4, 4), np.float32), labels(0, 0, 0, 0))
    data = Dataset("own", 1, split_of_one_class, split_of_one_class, split_of_one_class)
    check_dataset(data, "load_dataset of own:Net", is_own=True)
    with refused(ErrorCode.INVALID_DATA, "dataset csv", 0):
        check_dataset(data, "dataset csv")


def dataset_of(inputs, labels, *, task="regression", num_classes=None, weights=None, **fields):
    every_split = Split(inputs, np.asarray(labels), weights)
    return Dataset("own", num_classes, every_split, every_split, every_split, task=task, **fields)


def classes(inputs, labels, **fields):
    return dataset_of(inputs, labels, **{"task": "classification", "num_classes": 2} | fields)


def prose(inputs, labels, num_tokens=8):
    return dataset_of(inputs, labels, task="language_modelling", num_classes=num_tokens)


NUMBERS = np.array([0.5, np.nan, 2.0, np.inf], np.float32)
FOUR = np.ones((4, 2), np.float32)
PAIRS = np.arange(8, dtype=np.float32).reshape(4, 2)
TOKENS = np.arange(8).reshape(4, 2)
BY_NAME = {"image": np.ones((4, 2), np.uint8), "codes": np.array([0, 3, -2, 1])}


def changed(**splits):
    return dataclasses.replace(GOOD, **splits)


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (changed(train=split(0)), ["train"]),
        (changed(train=split(2, labels=labels(0, 3))), ["train", "3", "sample 1", "0 to 2"]),
        (changed(train=split(3, labels=labels(0, -1, -1))), ["-1", "sample 1", "(2 "]),
        (changed(test=split(2, labels=labels(0, 5))), ["test", "5"]),
        (changed(train=with_value(np.nan, 7)), ["train", "NaN", "sample 7"]),
        (changed(validation=split(shape=(5,))), ["validation", "float32 (5,)"]),
        (changed(train=split(shape=(0,))), ["train", "(6, 0)"]),
        (dataset_of(FOUR, NUMBERS), ["NaN", "sample 1", "(2 "]),
        (dataset_of(FOUR, np.ones(4, "f")), ["4", "1.0"]),
        (classes(FOUR, [1] * 4), ["1"]),
        (classes(FOUR, NUMBERS), ["float32 (4,)"]),
        (classes(FOUR, TOKENS), ["int64", "(4, 2)"]),
        (prose(TOKENS, TOKENS, 7), ["7", "sample 3"]),
        (prose(TOKENS + 1, TOKENS % 8), ["train", "8", "sample 3"]),
        (prose(TOKENS, [[0, 1], [2, -100], [-100, -100], [3, 4]]), ["sample 2", "(1 ", "-100"]),
        (dataset_of(BY_NAME, FOUR), ["train", "codes", "-2"]),
        (
            dataclasses.replace(
                dataset_of(BY_NAME | {"codes": TOKENS}, PAIRS), test=Split(FOUR, PAIRS)
            ),
            ["test", "uint8 (2,) as input image"],
        ),
        (
            dataclasses.replace(dataset_of(FOUR, PAIRS), test=Split(FOUR, PAIRS[:, :1])),
            ["float32 (1,)", "float32 (2,)"],
        ),
        (
            dataset_of(
                FOUR, np.arange(4, dtype="f"), weights=np.array([1, 1, -1, np.nan], np.float32)
            ),
            ["-1.0", "sample 2", "(2 "],
        ),
    ],
)
def test_invalid_datasets_are_refused(dataset, names, monkeypatch):
    monkeypatch.setattr(
        check, "VALUES_AT_ONCE", 8
    )  # checks two rows at a time, so errors fall on chunk boundaries
    with refused(ErrorCode.INVALID_DATA, "x: ", *names):
        check_dataset(dataset, "x")


@pytest.mark.parametrize(
    "dataset",
    [
        GOOD,
        dataset_of(BY_NAME | {"codes": np.arange(4)}, np.arange(8, dtype="f").reshape(4, 2)),
        prose(TOKENS, TOKENS[:, ::-1].copy()),
        dataclasses.replace(GOOD, num_classes=np.int64(3)),
        load_dataset(DatasetSpec(name="digits", limit=100)),
        load_dataset(DatasetSpec(name="synthetic", num_samples=8)),
    ],
)
def test_valid_datasets_pass(dataset):
    check_dataset(dataset, "x")


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
    (line, *_) = dataset_warnings(classes(np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2))
    assert "40 training samples" in line


@pytest.mark.parametrize("kind", ["numbers", "pictures"])
def test_duplicates_between_splits_are_counted_per_pair(kind):
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
