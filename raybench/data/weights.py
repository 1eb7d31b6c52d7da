"""Weights of training samples: their own, and those of their classes."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Literal

import numpy as np

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Array, Dataset

ClassWeights = Literal["balanced"] | Mapping[str, float]


def weighted(dataset: Dataset, spec: DatasetSpec) -> Dataset:
    """Return the dataset with the weights of its training samples, times `spec.class_weights`.

    Scaled to mean 1 over the training samples, so that a learning rate means what it does
    without. UserError for a class that there is not, for data without classes, and for weights
    that are all 0.
    """
    train = dataset.train
    if spec.class_weights is None and train.weights is None:
        return dataset
    weights = np.ones(len(train)) if train.weights is None else train.weights.astype(np.float64)
    if spec.class_weights is not None:
        weights *= _of_classes(dataset, spec.class_weights)[train.labels]
    mean = weights.mean()
    if mean == 0:
        raise UserError(
            f"dataset.weight: the weights of all {len(train):,} training samples of {dataset.name} "
            "are 0; at least one must be above it."
        )
    scaled = (weights / mean).astype(np.float32)
    return dataclasses.replace(dataset, train=dataclasses.replace(train, weights=scaled))


def _of_classes(dataset: Dataset, asked: ClassWeights) -> Array:
    """Return the weight of each class, by its number; 1 of those that are not named."""
    if dataset.task != "classification":
        raise UserError(
            f"dataset.class_weights are of classes, and {dataset.name} is of task {dataset.task}; "
            "leave them out."
        )
    assert dataset.num_classes is not None
    if asked == "balanced":
        counts = np.bincount(dataset.train.labels, minlength=dataset.num_classes)
        return 1.0 / np.maximum(counts, 1)
    assert not isinstance(asked, str)
    names = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
    found = np.ones(dataset.num_classes)
    for name, weight in asked.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {_list(names)}."
            raise UserError(f"dataset.class_weights: {dataset.name} has no class '{name}'; {hint}")
        found[names.index(name)] = weight
    return found


def _list(names: tuple[str, ...], most: int = 20) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
