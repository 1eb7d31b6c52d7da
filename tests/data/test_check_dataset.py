"""Data that no model could be trained on or judged by is found before anything starts."""

import dataclasses

import numpy as np
import pytest

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data import check
from raybench.data.check import check_dataset
from raybench.data.dataset import Dataset, Split
from raybench.data.load import load_dataset


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": split(0)}, "the train split is empty"),
        ({"validation": split(0)}, "the validation split is empty"),
        ({"test": split(0)}, "the test split is empty"),
        ({"train": split(2, labels=labels(0, 3))}, "label 3 at sample 1 .* from 0 to 2"),
        ({"train": split(3, labels=labels(0, -1, -1))}, r"label -1 at sample 1 \(2 such labels\)"),
        ({"validation": split(2, labels=labels(9, 9))}, "the validation split has the label 9"),
        ({"test": split(2, labels=labels(0, 5))}, "the test split has the label 5"),
        ({"train": with_value(np.nan, 7)}, "the train split has NaN or infinite .* sample 7"),
        ({"train": with_value(-np.inf, 0)}, "first in sample 0"),
        ({"validation": with_value(np.inf, 3)}, "the validation split has NaN or infinite"),
        ({"validation": split(shape=(5,))}, r"validation split has samples of float32 \(5,\)"),
        ({"validation": split(kind=np.uint8)}, "validation split has samples of uint8"),
        ({"train": split(shape=(0,))}, "has inputs of shape"),
        ({"train": split(shape=())}, "has inputs of shape"),
        ({"num_classes": "ten"}, "num_classes must be a whole number from 1 .found 'ten'"),
        ({"num_classes": 0}, "num_classes must be"),
        ({"num_classes": True}, "num_classes must be"),
        ({"repeat": 0}, "repeat must be"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(changes, message, monkeypatch):
    monkeypatch.setattr(check, "_CHUNK", 8)  # two rows at a time: first rows of chunks too
    with pytest.raises(UserError, match=f"^load_dataset of own:Net: .*{message}") as caught:
        check_dataset(dataclasses.replace(GOOD, **changes), "load_dataset of own:Net")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "dataset",
    [
        GOOD,
        dataclasses.replace(GOOD, num_classes=np.int64(3)),
        load_dataset(DatasetSpec(name="digits", limit=100)),
        load_dataset(DatasetSpec(name="synthetic", num_samples=8)),
    ],
)
def test_what_is_whole_passes(dataset):
    check_dataset(dataset, "x")
