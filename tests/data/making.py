"""Helpers that write small data files and load them as datasets."""

import io

import numpy as np
from PIL import Image

from raybench.data.dataset import Dataset, Split
from raybench.data.load import build_dataset
from raybench.spec.run import DatasetSpec


def load(path, name="csv", **keys):
    """Return the dataset of a file or folder, built without a cache."""
    return build_dataset(DatasetSpec(name=name, path=str(path), **keys))


def dataset_of(inputs, labels, num_classes=2, weights=None, **fields):
    """Return a dataset with the same samples in all splits."""
    split = Split(inputs, np.asarray(labels), weights)
    return Dataset("own", num_classes, split, split, split, **fields)


def split_of(labels, shape=(4,)):
    """Return a split with these classes (integers) or numbers as labels, whose inputs are all 1."""
    labels = np.asarray(labels)
    labels = labels.astype(np.int64 if labels.dtype.kind == "i" else np.float32)
    return Split(np.ones((len(labels), *shape), np.float32), labels)


def sizes(dataset):
    """Return the numbers of samples of train, validation and test."""
    return [len(split) for split in dataset.splits.values()]


def write(path, lines, encoding="utf-8", end="\n"):
    """Write lines to a file and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((end.join(lines) + end).encode(encoding))
    return path


def of_two_classes(values, mark=","):
    """Return rows of a CSV file: each value, followed by the class a or b in turn."""
    return [f"{value}{mark}{'ab'[number % 2]}" for number, value in enumerate(values)]


def content(image, kind="PNG", **options):
    """Return an encoded image file as bytes."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey(value, size=(6, 4)):
    """Return a uniform gray image."""
    return Image.new("L", size, value)


def write_grey(path, value=0, size=(6, 4)):
    """Write a uniform gray image and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content(grey(value, size)))
