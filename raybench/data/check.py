"""What can be wrong with the numbers of a dataset, found once and before anything trains."""

import numpy as np

from raybench.core.errors import UserError
from raybench.data.dataset import Array, Dataset, Split

TRIED = 8
"""Samples of a split on demand that are read: from its end to its begin, some twice of a short
one. All the others are checked when they are read for training."""
_CHUNK = 2**24  # values looked at together: bounds what the check itself takes to 16 MB
SPLITS = ("train", "validation", "test")


def check_dataset(dataset: Dataset, source: str) -> None:
    """Raise UserError for data that no model could be trained on or judged by.

    An empty split, labels outside 0 .. `num_classes - 1`, NaN or infinite inputs, splits whose
    samples differ in shape or type. Reads all arrays once, and a few samples of what is on
    demand; `source` begins the sentence, as "load_dataset of workload my:Net".
    """
    if not _is_whole(dataset.num_classes) or dataset.num_classes < 1:
        raise UserError(
            f"{source}: num_classes must be a whole number from 1 (found {dataset.num_classes!r})."
        )
    if not _is_whole(dataset.repeat) or dataset.repeat < 1:
        raise UserError(
            f"{source}: repeat must be a whole number from 1 (found {dataset.repeat!r})."
        )
    for name in SPLITS:
        split: Split = getattr(dataset, name)
        where = f"{source}: the {name} split"
        if len(split) == 0:
            raise UserError(f"{where} is empty; give it at least one sample.")
        _check_shape(split, dataset.train, where)
        _check_labels(split.labels, dataset.num_classes, where)
        if split.is_on_demand:
            _try_to_read(split, where)
        else:
            _check_finite(split.array, where)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_shape(split: Split, train: Split, where: str) -> None:
    shape = tuple(split.inputs.shape[1:])
    if not shape or 0 in shape:
        raise UserError(
            f"{where} has inputs of shape {split.inputs.shape}; give (N, height, width, channels) "
            "or (N, features), none of them 0."
        )
    if (shape, split.dtype) != (tuple(train.inputs.shape[1:]), train.dtype):
        raise UserError(
            f"{where} has samples of {split.dtype} {shape}, the train split of "
            f"{train.dtype} {tuple(train.inputs.shape[1:])}; make them the same."
        )


def _check_labels(labels: Array, num_classes: int, where: str) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        first = int(wrong[0])
        raise UserError(
            f"{where} has the label {labels[first]} at sample {first} ({len(wrong):,} such "
            f"labels); with num_classes {num_classes} they go from 0 to {num_classes - 1}."
        )


def _try_to_read(split: Split, where: str) -> None:
    rows = np.linspace(len(split) - 1, 0, TRIED).astype(np.int64)
    try:
        split.read(rows)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _check_finite(inputs: Array, where: str) -> None:
    if inputs.dtype != np.float32:
        return
    rows = max(1, _CHUNK // max(1, int(np.prod(inputs.shape[1:]))))
    for start in range(0, len(inputs), rows):
        chunk = inputs[start : start + rows]
        finite = np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1)
        if not finite.all():
            first = start + int(np.argmin(finite))
            raise UserError(
                f"{where} has NaN or infinite inputs, first in sample {first}; remove or replace "
                "them."
            )
