"""Data that no model could be trained on or judged by is found before anything starts."""

import dataclasses

import numpy as np
import pytest

from raybench.data import check
from raybench.data.check import check_dataset
from raybench.data.dataset import Dataset, Split
from raybench.data.load import load_dataset
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.refusals import refused


def split(size=6, *, shape=(4,), kind=np.float32, labels=None):
    inputs = np.ones((size, *shape), kind)
    return Split(inputs, np.arange(size, dtype=np.int64) % 3 if labels is None else labels)


def on_demand(shape):
    class Ones:
        dtype = np.float32

        def __getitem__(self, rows):
            return np.ones((len(rows), *shape[1:]), np.float32)

    Ones.shape = shape
    return Split(Ones(), labels(*range(3), *range(3)))


GOOD = Dataset("own", 3, train=split(9), validation=split(), test=split())


def labels(*values):
    return np.array(values, np.int64)


def with_value(value, row):
    changed = split(9)
    changed.inputs[row, 1] = value
    return changed


def test_labels_of_one_class_that_the_user_states_are_let_through():
    """An autoencoder's loss looks at none; of a table they are a mistake."""
    one = Split(np.ones((4, 4), np.float32), labels(0, 0, 0, 0))
    data = Dataset("own", 1, one, one, one)
    check_dataset(data, "load_dataset of own:Net", is_own=True)
    with refused(ErrorCode.INVALID_DATA, "dataset csv", 0):
        check_dataset(data, "dataset csv")


def whole(inputs, labels, *, task="regression", num_classes=None, weights=None, **more):
    one = Split(inputs, np.asarray(labels), weights)
    return Dataset("own", num_classes, one, one, one, task=task, **more)


def classes(inputs, labels, **more):
    return whole(inputs, labels, **{"task": "classification", "num_classes": 2} | more)


def prose(inputs, labels, num_tokens=8):
    return whole(inputs, labels, task="language_modelling", num_classes=num_tokens)


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
        (whole(FOUR, NUMBERS), ["NaN", "sample 1", "(2 "]),
        (whole(FOUR, np.ones(4, "f")), ["4", "1.0"]),
        (classes(FOUR, [1] * 4), ["1"]),
        (classes(FOUR, NUMBERS), ["float32 (4,)"]),
        (classes(FOUR, TOKENS), ["int64", "(4, 2)"]),
        (prose(TOKENS, TOKENS, 7), ["7", "sample 3"]),
        (prose(TOKENS + 1, TOKENS % 8), ["train", "8", "sample 3"]),
        (prose(TOKENS, [[0, 1], [2, -100], [-100, -100], [3, 4]]), ["sample 2", "(1 ", "-100"]),
        (whole(BY_NAME, FOUR), ["train", "codes", "-2"]),
        (
            dataclasses.replace(whole(BY_NAME | {"codes": TOKENS}, PAIRS), test=Split(FOUR, PAIRS)),
            ["test", "uint8 (2,) as input image"],
        ),
        (
            dataclasses.replace(whole(FOUR, PAIRS), test=Split(FOUR, PAIRS[:, :1])),
            ["float32 (1,)", "float32 (2,)"],
        ),
        (
            whole(FOUR, np.arange(4, dtype="f"), weights=np.array([1, 1, -1, np.nan], np.float32)),
            ["-1.0", "sample 2", "(2 "],
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused(dataset, names, monkeypatch):
    monkeypatch.setattr(check, "VALUES_AT_ONCE", 8)  # two rows at a time: first rows of chunks too
    with refused(ErrorCode.INVALID_DATA, "x: ", *names):
        check_dataset(dataset, "x")


@pytest.mark.parametrize(
    "dataset",
    [
        GOOD,
        whole(BY_NAME | {"codes": np.arange(4)}, np.arange(8, dtype="f").reshape(4, 2)),
        prose(TOKENS, TOKENS[:, ::-1].copy()),
        dataclasses.replace(GOOD, num_classes=np.int64(3)),
        dataclasses.replace(GOOD, test=on_demand((6, np.int64(4)))),
        load_dataset(DatasetSpec(name="digits", limit=100)),
        load_dataset(DatasetSpec(name="synthetic", num_samples=8)),
    ],
)
def test_what_is_whole_passes(dataset):
    check_dataset(dataset, "x")
