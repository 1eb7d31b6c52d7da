"""What can be wrong with the labels of a split, for each task."""

import numpy as np

from raybench.core.errors import UserError
from raybench.data.dataset import IGNORED, Array, Dataset, Split

WANTED = {
    "classification": "int64 classes of shape (N,)",
    "regression": "float32 numbers of shape (N,) or (N, outputs)",
    "language_modelling": "int64 tokens of shape (N, tokens)",
}
_DIMENSIONS = {"classification": (1,), "regression": (1, 2), "language_modelling": (2,)}


def check_labels(dataset: Dataset, split: Split, where: str) -> None:
    """Raise UserError for labels that a task cannot have; `where` begins the sentence."""
    labels, task = split.labels, dataset.task
    is_number = labels.dtype == np.float32 and task != "regression"
    if is_number or labels.ndim not in _DIMENSIONS[task]:
        raise UserError(
            f"{where} has labels of {labels.dtype} {labels.shape}; of task {task} they are "
            f"{WANTED[task]}."
        )
    if task == "regression":
        _check_numbers(labels, where)
        return
    assert dataset.num_classes is not None
    wrong = (labels < 0) | (labels >= dataset.num_classes)
    if task == "language_modelling":
        wrong &= labels != IGNORED
    _refuse(wrong, labels, dataset.num_classes, where)
    if (labels == IGNORED).all():
        raise UserError(f"{where} has no token that counts: all its labels are {IGNORED}.")
    if task == "language_modelling":
        _refuse_uncounted(labels, where)


def _refuse_uncounted(labels: Array, where: str) -> None:
    """Raise UserError for samples without a loss: they would count as ones without a mistake."""
    is_uncounted = (labels == IGNORED).all(axis=1)
    if is_uncounted.any():
        raise UserError(
            f"{where} has no token that counts in sample {int(np.argmax(is_uncounted))} "
            f"({int(is_uncounted.sum()):,} such samples), all its labels are {IGNORED}; leave such "
            "samples out."
        )


def check_something_to_learn(dataset: Dataset, source: str) -> None:
    """Raise UserError where all training samples have one label."""
    labels = dataset.train.labels
    counted = labels[labels != IGNORED] if dataset.task == "language_modelling" else labels
    first = counted[0]
    if not (counted == first).all() or dataset.num_classes == 1:
        return
    if dataset.task == "regression":
        raise UserError(
            f"{source}: all {len(labels):,} training labels are {first}; there is nothing to learn."
        )
    names = dataset.class_names
    shown = f"{names[first]} ({first})" if names else f"{first}"
    what = "tokens" if dataset.task == "language_modelling" else "samples"
    raise UserError(
        f"{source}: all training {what} are of one class, {shown}; there is nothing to tell apart."
    )


def _check_numbers(labels: Array, where: str) -> None:
    wrong = ~np.isfinite(labels).reshape(len(labels), -1).all(axis=1)
    if wrong.any():
        raise UserError(
            f"{where} has NaN or infinite labels, first at sample {int(np.argmax(wrong))} "
            f"({int(wrong.sum()):,} such samples); remove or replace them."
        )


def _refuse(wrong: Array, labels: Array, num_classes: int, where: str) -> None:
    if not wrong.any():
        return
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    raise UserError(
        f"{where} has the label {labels[first]} at sample {first[0]} ({int(wrong.sum()):,} such "
        f"labels); with num_classes {num_classes} they go from 0 to {num_classes - 1}."
    )
