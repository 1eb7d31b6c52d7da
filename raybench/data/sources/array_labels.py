"""Arrays of labels as a split takes them: classes, numbers or tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.dataset_spec import Task
from raybench.core.errors import UserError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LabelKind:
    """What labels are, told from those of training."""

    task: Task
    names: tuple[str, ...]
    """Names of classes by number; empty where they are numbers from 0 already."""
    num_classes: int | None
    values: Array | None
    """Of each class, as it stands in the file, in rising order; None where it is its number."""


def kind_of(labels: Mapping[str, Array], asked: Task | None, place: str) -> LabelKind:
    """Return what the labels of the splits are; whole numbers and texts are classes.

    UserError for one class alone, and for shapes that are no labels.
    """
    train = _flat(labels["train"], asked, place)
    task = asked or ("regression" if train.dtype.kind == "f" else "classification")
    if task == "regression":
        if train.dtype.kind not in "fiub":
            raise UserError(
                f"{place}: labels of type {train.dtype} are no numbers, and the task is "
                "regression; set dataset.task: classification."
            )
        return LabelKind(task, (), None, None)
    if task == "language_modelling":
        return LabelKind(task, (), 1 + max(int(one.max()) for one in labels.values()), None)
    if train.ndim != 1:
        raise UserError(
            f"{place}: labels of shape {train.shape} are not one class for each sample; of rows "
            "with a 1 for the class save y.argmax(axis=1), or set dataset.task: regression."
        )
    values = np.unique(train)
    if len(values) < 2:
        raise UserError(
            f"{place} holds one class only ({values[0]}), so there is nothing to tell apart."
        )
    if train.dtype.kind in "iu" and np.array_equal(values, np.arange(len(values))):
        return LabelKind(task, (), len(values), None)
    return LabelKind(task, tuple(str(value) for value in values), len(values), values)


def as_labels(labels: Array, kind: LabelKind, place: str) -> Array:
    """Return the labels of a split as int64 classes or tokens, or float32 numbers."""
    flat = _flat(labels, kind.task, place)
    if kind.task == "regression":
        if not np.all(np.isfinite(flat)):
            first = int(np.argmin(np.isfinite(flat).reshape(len(flat), -1).all(axis=1)))
            raise UserError(f"{place}: the label of sample {first} is NaN or infinite; mend it.")
        return flat.astype(np.float32)
    if kind.values is None:
        unknown = (flat < 0) | (flat >= kind.num_classes) if kind.names or flat.ndim == 1 else None
        numbers = flat.astype(np.int64)
    else:
        places = np.minimum(np.searchsorted(kind.values, flat), len(kind.values) - 1)
        unknown = kind.values[places] != flat
        numbers = places.astype(np.int64)
    if unknown is not None and unknown.any():
        first = int(np.argmax(unknown))
        raise UserError(
            f"{place}: the label {flat[first]} of sample {first} is no class of the training "
            f"split ({int(unknown.sum()):,} such labels); correct or remove it."
        )
    return numbers


def _flat(labels: Array, task: Task | None, place: str) -> Array:
    """Return the labels without a last axis of 1, as Keras has them."""
    if labels.ndim == 2 and labels.shape[1] == 1 and task != "language_modelling":
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "fiubUS" or len(labels) == 0:
        raise UserError(
            f"{place}: labels of type {labels.dtype} and shape {labels.shape} cannot be used; save "
            "one number or name for each sample."
        )
    if task == "classification" and labels.dtype.kind == "f" and np.all(labels == labels.round()):
        return labels.astype(np.int64)
    return labels
