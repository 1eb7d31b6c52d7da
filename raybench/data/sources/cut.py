"""Shuffled order of the samples of a dataset, and the splits that are cut from it.

Samples are written to the store in this order, so every split is a slice of a stored array. Cutting
a split does not copy samples, and splits of other sizes use the same files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import SPLITS, Array, Dataset, Split, num_of, split_of_arrays
from raybench.data.store import Source, Writer, stored
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import DatasetSpec

Floats = npt.NDArray[np.float32]


def standardized(labels: Sequence[Array]) -> tuple[list[Array], Floats, Floats]:
    """Standardize labels to mean 0 and standard deviation 1 over the training split.

    Args:
        labels: Labels of each split, the training split first.

    Returns:
        The standardized labels of each split; the divisor (standard deviation) and the offset
        (mean) of the original labels, each of shape () or (outputs,).
    """
    train = labels[0].astype(np.float64)
    offset, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)  # if all labels are equal, a search does not start
    scaled = [((values - offset) / scale).astype(np.float32) for values in labels]
    return scaled, np.asarray(scale, np.float32), np.asarray(offset, np.float32)


def stored_and_cut(
    source: Source, build: Callable[[Writer], Mapping[str, Any]], spec: DatasetSpec
) -> Dataset:
    """Return a dataset of the store, cut into splits, and with standardized regression labels.

    Args:
        source: Files and options of the dataset.
        build: Function that writes the samples in a shuffled order if the dataset is not stored
            yet.
        spec: The dataset spec, which sets the sizes of the splits.
    """
    entry, path = stored(source, build), str(source.path)
    splits = {
        split: split_of_arrays(entry.arrays, split)
        for split in SPLITS
        if f"{split}-labels" in entry.arrays
    }
    keys = entry.arrays.get(KEYS)
    parts, known = cut(splits, spec, source=path, keys=keys), dict(entry.about)
    known["class_names"] = tuple(known["class_names"])
    if known["task"] == "regression":
        labels = [part.labels for part in parts]
        labels, known["label_scale"], known["label_offset"] = standardized(labels)
        parts = [replace(part, labels=scaled) for part, scaled in zip(parts, labels, strict=True)]
    num_classes = known.pop("num_classes", None) or len(known["class_names"]) or None
    train, validation, test = parts
    return Dataset(spec.name, num_classes, train, validation, test, **known)


KEYS = "train-keys"
"""Name of the array of keys for `split_by`, (N,) int64. Keys of neighboring samples are equal if
the samples must be in the same split."""
TYPICAL_SHARE = 0.1  # default fraction of the samples in the validation, and in the test split


def mixed_order(
    labels: npt.NDArray[np.int64] | None, number: int, *, seed: int
) -> npt.NDArray[np.int64]:
    """Return a random permutation of samples that depends only on the arguments.

    Args:
        labels: Class numbers of the samples, (N,), to stratify the permutation: every contiguous
            part of it then contains each class in proportion, to within one sample. None for a
            permutation that is not stratified.
        number: Number of samples N.
        seed: Seed of the permutation.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(number)
    if labels is None:
        return order
    shuffled = labels[order]
    by_class = np.argsort(shuffled, kind="stable")
    counts = np.bincount(shuffled)
    starts = np.cumsum(counts) - counts
    rank = np.arange(number) - starts[shuffled[by_class]]
    position = np.empty(number)
    position[by_class] = (rank + 0.5) / counts[shuffled[by_class]]
    # A stable sort keeps samples with equal positions in the random order.
    return order[np.argsort(position, kind="stable")]


def group_order(codes: npt.NDArray[np.int64], *, seed: int) -> npt.NDArray[np.int64]:
    """Return an order of samples in which all samples of a group are neighbors.

    Groups are in random order, but large groups come last, so that they are in the training split.
    They would not fit into the smaller validation and test splits.

    Args:
        codes: Number of the group of each sample, (N,).
        seed: Seed of the random order.
    """
    counts = np.bincount(codes)
    large = np.where(counts > TYPICAL_SHARE / 2 * len(codes), counts, 0)
    chance = np.random.default_rng(seed).permutation(len(counts))
    rank = np.empty(len(counts), np.int64)
    rank[np.lexsort((chance, large))] = np.arange(len(counts))
    return np.argsort(rank[codes], kind="stable")


def _whole_groups(sizes: Mapping[str, int], keys: Array, source: str) -> dict[str, int]:
    """Adjust the sizes of the test and validation splits so that no group of samples is divided.

    Args:
        sizes: Requested numbers of samples of the splits `test` and `validation`.
        keys: Keys of the samples in order, (N,); neighboring samples with equal keys are a group.
        source: Name of the data in error messages.

    Returns:
        The possible sizes that are closest to the requested sizes.
    """
    ends = np.flatnonzero(np.diff(keys)) + 1
    wanted = [part for part in ("test", "validation") if sizes[part]]
    if not wanted:
        raise UserError(
            f"dataset.split_by: {source} already has all splits; remove the key.",
            ErrorCode.CONFLICT,
        )
    if len(ends) < len(wanted):
        raise UserError(
            f"dataset.split_by: {len(wanted) + 1} splits need at least as many distinct values in "
            f"the column, but {source} has {len(ends) + 1}.",
            ErrorCode.TOO_FEW,
        )
    rounded, begin = dict.fromkeys(sizes, 0), 0
    for left, part in zip(range(len(wanted) - 1, -1, -1), wanted, strict=True):
        free = ends[ends > begin]
        free = free[: len(free) - left]  # leave one end for each of the splits that follow
        end = int(free[np.abs(free - (begin + sizes[part])).argmin()])
        rounded[part], begin = end - begin, end
    return rounded


def cut(
    splits: Mapping[str, Split], spec: DatasetSpec, *, source: str, keys: Array | None = None
) -> list[Split]:
    """Return the splits train, validation and test; cut missing splits from the start of train.

    Args:
        splits: Splits that the data already have, always including `train`.
        spec: The dataset spec, which sets the sizes of the splits as numbers of samples or as
            fractions of the training samples.
        source: Name of the data in error messages.
        keys: Keys of the training samples, (N,). Neighboring samples with equal keys are put into
            the same split, so the sizes of the splits are only approximate. None if samples may be
            separated.

    Raises:
        UserError: No samples remain to train on, or the spec sets the size of a split that the data
            already have.
    """
    train, total = splits["train"], len(splits["train"])
    typical = max(1, round(TYPICAL_SHARE * total))
    sizes = {"validation": 0, "test": 0}
    # By default, the test split gets the same size as the validation split.
    for part, size in (("validation", spec.validation_size), ("test", spec.test_size)):
        if part not in splits:
            sizes[part] = num_of(size, total, typical=sizes["validation"] or typical)
        elif size is not None:
            raise UserError(
                f"dataset.{part}_size {size}: {source} already has this split; remove the key.",
                ErrorCode.CONFLICT,
            )
    held_out = sum(sizes.values())
    if held_out >= total:
        raise UserError(
            f"dataset: {source} has {total:,} samples; {sizes['validation']:,} for validation and "
            f"{sizes['test']:,} for the test leave none to train on; choose smaller sizes.",
            ErrorCode.TOO_FEW,
        )
    if keys is not None:
        sizes = _whole_groups(sizes, keys, source)
        held_out = sum(sizes.values())
    parts = {
        "train": train.take(slice(held_out, None)),
        "validation": train.take(slice(sizes["test"], held_out)),
        "test": train.take(slice(sizes["test"])),
    }
    return list((parts | dict(splits) | {"train": parts["train"]}).values())
