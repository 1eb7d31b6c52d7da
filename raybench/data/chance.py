"""Chance: what an answer that never looks at the inputs reaches, told from the labels alone.

The answer is learnt from the training labels and judged on those of the validation split: the most
frequent class for accuracy (the five most frequent for top-5; any one where that is no better),
the frequencies of the classes or tokens for loss and perplexity, the mean of the numbers for
squared errors and their median for absolute ones. R² is 0 by its definition.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raybench.core.metric import Metric
from raybench.data.dataset import Dataset
from raybench.data.on_demand import Array

Floats = npt.NDArray[np.float64]
ROWS = 2**16
"""Samples whose labels are looked at together: a text set's are as large as its inputs."""
DIGITS = 6
"""Digits kept, the same on every machine: sums differ in the last ones."""


def chance_level(metric: Metric, dataset: Dataset) -> float | None:
    """Return the chance level of a metric on the validation split, in the metric's own unit.

    None where labels do not tell it: for a metric that a workload measures itself, and where the
    labels of a classification are no classes.
    """
    labels = dataset.train.labels
    if metric.per_sample == "own" or (dataset.task != "regression" and labels.dtype.kind != "i"):
        return None
    found = (_of_numbers if dataset.task == "regression" else _of_classes)(metric, dataset)
    found = metric.finish(found, found)
    return float(f"{found:.{DIGITS}g}") if math.isfinite(found) else None


def _of_numbers(metric: Metric, dataset: Dataset) -> float:
    """Return the mean over samples and outputs of the error of one answer for all samples."""
    is_absolute = metric.per_sample == "absolute_error"
    train = np.asarray(dataset.train.labels, np.float64)
    answer = np.median(train, axis=0) if is_absolute else train.mean(axis=0)
    errors = dataset.validation.labels - answer
    if metric.per_sample != "loss" and dataset.label_scale is not None:
        errors = errors * dataset.label_scale  # the loss alone is in the scale of training
    return float(np.mean(np.abs(errors) if is_absolute else errors**2))


def _of_classes(metric: Metric, dataset: Dataset) -> float:
    """Return the mean over samples of what one answer for all is worth, tokens' means of a text."""
    assert dataset.num_classes is not None
    counts = np.zeros(dataset.num_classes, np.int64)
    for labels in _in_parts(dataset.train.labels):
        counts += np.bincount(labels[labels >= 0], minlength=dataset.num_classes)
    worth = _worth(metric, counts)
    total, number = 0.0, 0
    for labels in _in_parts(dataset.validation.labels):
        is_told = labels >= 0
        tokens = is_told.sum(axis=1)
        sums = np.where(is_told, worth[np.where(is_told, labels, 0)], 0.0).sum(axis=1)
        total += float(np.sum(sums[tokens > 0] / tokens[tokens > 0]))
        number += int(np.sum(tokens > 0))
    found = total / number if number else math.nan
    if metric.per_sample == "loss":
        return found
    return max(found, min(_answers(metric) / dataset.num_classes, 1.0))


def _answers(metric: Metric) -> int:
    """Return how many classes may be named for a sample."""
    return 1 if metric.per_sample == "correct" else 5


def _worth(metric: Metric, counts: npt.NDArray[np.int64]) -> Floats:
    """Return for each class what the answer is worth where that class is right."""
    if metric.per_sample == "loss":
        # One more of each: a class that training never showed is no infinite loss.
        return -np.log((counts + 1) / float(np.sum(counts + 1)))
    most_frequent = np.argsort(-counts, kind="stable")
    worth = np.zeros(len(counts))
    worth[most_frequent[: _answers(metric)]] = 1.0
    return worth


def _in_parts(labels: Array) -> Iterator[npt.NDArray[np.int64]]:
    """Yield labels as (samples, tokens of a sample), some samples at a time."""
    for start in range(0, len(labels), ROWS):
        part = labels[start : start + ROWS]
        yield part.reshape(len(part), -1)
