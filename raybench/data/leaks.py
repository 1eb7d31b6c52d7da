"""Warnings on samples that stand in two splits, and on classes that a split lacks.

Every search prints them. Samples are compared by hashes of a part, so large data take seconds.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import SPLITS, Dataset, Split
from raybench.data.inputs import parts

MAX_ROWS = 20_000  # samples that are compared as a whole
MAX_ROWS_HASHED = 1_000_000  # samples of a split that are compared with other splits
KEY_BYTES = 512  # bytes from the middle of a large sample that are compared first
REPEATED = 50
"""Training samples per different one from which on equal rows are no duplicates: values are few."""
Codes = npt.NDArray[np.int64]


def leak_lines(dataset: Dataset) -> list[str]:
    """Return one warning for each pair of splits with equal samples, and each lone class."""
    return [*_all_equal(dataset.train), *_duplicates(dataset), *_lone_classes(dataset)]


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
