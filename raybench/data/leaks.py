"""Warnings on duplicates between splits, and on columns and classes that mislead.

`init` and every search print them. They look at MAX_ROWS samples of a split, and at a part of large
samples, so large data take seconds.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.inputs import parts
from raybench.data.sources.encode import encoder_of

MAX_ROWS = 20_000  # samples by which a column is judged
MAX_ROWS_HASHED = 1_000_000  # samples of a split that are compared with other splits
KEY_BYTES = 512  # bytes from the middle of a large sample that are compared first
BINS = 256
MAX_FEATURES = 2_000
LEAK_SHARE = 0.998
"""Share of the validation labels, or of their variance, that one column must predict to be reported
as a leak."""
REPEATED = 50
"""Training samples per different one from which on equal rows are no duplicates: values are few."""
Codes = npt.NDArray[np.int64]


def leak_lines(dataset: Dataset) -> list[str]:
    """Return one warning for each leak, useless column or lone class."""
    lines = [*_all_equal(dataset.train), *_duplicates(dataset), *_lone_classes(dataset)]
    shape = dataset.input_shape
    is_table = isinstance(shape, tuple) and len(shape) == 1 and not dataset.train.is_on_demand
    if is_table and dataset.task != "language_modelling" and dataset.train.dtype == np.float32:
        lines += _of_columns(dataset)
    return lines


def _all_equal(train: Split) -> Iterator[str]:
    if train.is_on_demand or len(train) < 2:
        return
    number = min(len(train), MAX_ROWS)
    if len(np.unique(_keys(train.take(slice(number))))) == 1:
        yield (
            f"{number:,} of {len(train):,} training samples have the same inputs: nothing can be "
            "learned from them; look at how they are read."
        )


def _duplicates(dataset: Dataset) -> Iterator[str]:
    splits = dataset.splits.items()
    kept = {name: one for name, one in splits if len(one) and not one.is_on_demand}
    keys = {name: _keys(one, most=KEY_BYTES) for name, one in kept.items()}
    if "train" in keys and len(np.unique(keys["train"])) * REPEATED < len(keys["train"]):
        return
    for other, name in itertools.combinations(kept, 2):
        here = np.flatnonzero(np.isin(keys[name], keys[other]))
        there = np.flatnonzero(np.isin(keys[other], keys[name]))
        if not len(here):
            continue
        # Samples with equal parts are compared as a whole.
        own = _keys(kept[name].take(here[:MAX_ROWS]))
        known = _keys(kept[other].take(there[:MAX_ROWS]))
        same = np.flatnonzero(np.isin(own, known))
        if len(same):
            first = int(here[same[0]])
            at = int(there[np.flatnonzero(known == own[same[0]])[0]])
            called, harm = other, "the test then repeats what validation has chosen"
            if other == "train":
                called, harm = "training", "what is memorized looks like skill"
            yield (
                f"{len(same):,} of {len(keys[name]):,} {name} samples stand in the {called} split "
                f"too, with the same inputs (the first: {name} sample {first:,}, {called} sample "
                f"{at:,}): {harm}; leave duplicates out."
            )


def _keys(split: Split, *, most: int | None = None) -> Codes:
    """Return a hash of the inputs of each sample, or of `most` bytes in their middle."""
    found = np.zeros(min(len(split), MAX_ROWS_HASHED), np.int64)
    for array in parts(split.arrays):
        rows = array[: len(found)].reshape(len(found), -1)
        width = rows.shape[1]
        kept = min(width, max(1, (most or rows.nbytes) // array.dtype.itemsize))
        part = rows[:, (width - kept) // 2 : (width + kept) // 2]
        found ^= np.array([hash(row.tobytes()) for row in part], np.int64)
    return found


def _lone_classes(dataset: Dataset) -> Iterator[str]:
    labels = [split.labels for split in dataset.splits.values()]
    if dataset.task != "classification" or labels[0].ndim > 1 or dataset.num_classes is None:
        return
    names = dataset.names_of_classes
    counts = np.array([np.bincount(one, minlength=dataset.num_classes) for one in labels])
    for split, own in zip(SPLITS[1:], counts[1:], strict=True):
        if own.sum() > 1 and own.max() == own.sum():
            yield (
                f"all {own.sum():,} {split} samples are of one class, '{names[own.argmax()]}': "
                "they do not show whether the model distinguishes classes."
            )
    total = counts.sum(axis=0)
    if len(unknown := np.flatnonzero((counts[0] == 0) & (total > 1))):
        yield (
            f"no training sample is of the class{'es' if len(unknown) > 1 else ''} "
            f"{_some(names, unknown)}, and {counts[1:, unknown].sum():,} samples to judge by are."
        )
    if len(alone := np.flatnonzero(total == 1)):
        yield (
            f"the class{'es' if len(alone) > 1 else ''} {_some(names, alone)} of the label "
            f"ha{'ve' if len(alone) > 1 else 's'} one sample: it can be learnt or judged, not "
            "both; add samples, or leave it out."
        )


def _some(names: Sequence[str], chosen: Codes) -> str:
    """Return the names of some classes, for a sentence."""
    shown = ", ".join(f"'{names[number]}'" for number in chosen[:5])
    return shown + (f" and {len(chosen) - 5:,} more" if len(chosen) > 5 else "")


def _of_columns(dataset: Dataset) -> Iterator[str]:
    rng = np.random.default_rng(0)
    train, other = (
        split.take(np.sort(rng.permutation(len(split))[:MAX_ROWS]))
        for split in (dataset.train, dataset.validation)
    )
    width = min(train.array.shape[1], MAX_FEATURES)
    for name, place, document in _columns(dataset.encoding, width):
        values, judged = train.array[:, place], other.array[:, place]
        is_number = document.get("kind") != "name"
        if is_number:  # a bin of each sample
            edges = np.unique(np.quantile(values[:, 0], np.linspace(0, 1, BINS + 1)[1:-1]))
            codes = [np.searchsorted(edges, one[:, 0], side="right") for one in (values, judged)]
        else:
            numbers = np.arange(1, values.shape[1] + 1)
            codes = [((one == 1) * numbers).max(axis=1) for one in (values, judged)]
        share = _explained(codes[0], codes[1], train.labels, other.labels, dataset.task)
        if share >= LEAK_SHARE:
            is_class = dataset.task == "classification"
            what = "of the labels" if is_class else "of the label's variance"
            yield (
                f"column '{name}' alone tells {100 * share:.4g} % {what} in validation: if it is "
                "known only after them, or made of them, leave it out (dataset.columns)."
            )


def _columns(
    encoding: Mapping[str, Any] | None, width: int
) -> Iterator[tuple[str, slice, Mapping[str, Any]]]:
    """Yield the name of each column, its features, and its encoder as plain data."""
    if not encoding or "columns" not in encoding:
        yield from ((f"feature {number}", slice(number, number + 1), {}) for number in range(width))
        return
    begin = 0
    for document in encoding["columns"]:
        end = begin + len(encoder_of(document).features)
        if end <= width:
            yield document["name"], slice(begin, end), document
        begin = end


def _explained(codes: Codes, judged: Codes, labels: Array, wanted: Array, task: str) -> float:
    """Return the share of labels, or of their variance, that the training bins predict."""
    bins = int(max(codes.max(), judged.max())) + 1
    if labels.ndim > 1 or len(wanted) < 20:
        return 0.0
    if task == "regression":
        count = np.maximum(np.bincount(codes, minlength=bins), 1)
        means = np.bincount(codes, labels, minlength=bins) / count
        spread = float(np.var(wanted))
        return 1.0 - float(np.mean((wanted - means[judged]) ** 2)) / spread if spread else 0.0
    classes = int(max(labels.max(), wanted.max())) + 1
    majority = np.bincount(labels, minlength=classes).max() / len(labels)
    if majority > 1 - 2 * (1 - LEAK_SHARE) or bins * classes > 10 * MAX_ROWS * BINS:
        return 0.0
    table = np.zeros((bins, classes), np.int64)
    np.add.at(table, (codes, labels), 1)
    return float(np.mean(table.argmax(axis=1)[judged] == wanted))
