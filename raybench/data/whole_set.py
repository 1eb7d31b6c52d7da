"""Metrics that are computed from a whole split, such as F1 and ROC AUC (`Metric.is_mean` is False).

scikit-learn computes the values. Standard errors are computed from the influence of each sample on
the value. The metrics are macro averages, the mean over all classes that have samples. If there are
only two classes, `roc_auc` and `average_precision` are the values of class 1.
"""

import math
from collections.abc import Callable

import numpy as np

from raybench.data.inputs import Array
from raybench.spec.metric import Metric

GROUPS = 20
"""Number of groups into which the jackknife divides the samples; it is used for metrics without a
formula for the influence of a sample."""


def predictions_of(metric: Metric, outputs: Array) -> Array:
    """Convert the outputs of a model to the predictions from which a metric is computed.

    Args:
        metric: The metric.
        outputs: Logits, shape [n, classes].

    Returns:
        The predicted class of each sample, shape [n], or probabilities, shape [n, classes].
    """
    if metric.per_sample == "prediction":
        predicted: Array = outputs.argmax(axis=1)
        return predicted
    exponents = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares: Array = exponents / exponents.sum(axis=1, keepdims=True)
    return shares


def measure(metric: Metric, labels: Array, predictions: Array) -> tuple[float, float | None]:
    """Compute a metric and its standard error due to the finite number of samples.

    Args:
        metric: The metric.
        labels: Class of each sample, shape [n].
        predictions: Result of `predictions_of`, shape [n] or [n, classes].

    Returns:
        Value of the metric, which is NaN if it is undefined, for example because there is only one
        class; and the standard error, which is None if it is unknown.
    """
    needs_two_classes = metric.per_sample == "probabilities"
    if not np.isfinite(predictions).all() or (needs_two_classes and len(np.unique(labels)) < 2):
        return math.nan, None
    value, error = _METRICS[metric.name](labels, predictions)
    return value, error if math.isfinite(error) else None


def constant_predictions(metric: Metric, counts: Array, number: int) -> Array:
    """Return the best constant prediction for a number of samples, computed from training labels.

    Args:
        metric: The metric.
        counts: Number of training samples of each class, shape [classes].
        number: Number of samples to predict.

    Returns:
        The most frequent class, shape [number], or the class frequencies, shape [number, classes];
        see `predictions_of`.
    """
    if metric.per_sample == "prediction":
        return np.full(number, counts.argmax())
    return np.tile(counts / counts.sum(), (number, 1))


def _f1(labels: Array, predictions: Array) -> tuple[float, float]:
    from sklearn.metrics import f1_score

    value = float(f1_score(labels, predictions, average="macro", zero_division=0.0))
    number = int(max(labels.max(), predictions.max())) + 1
    is_hit = labels == predictions
    hits = np.bincount(labels[is_hit], minlength=number)
    # F1 of a class = 2 hits / (number of labels + number of predictions)
    both = np.bincount(labels, minlength=number) + np.bincount(predictions, minlength=number)
    num_classes = np.count_nonzero(both)
    hit_influence = 2 / np.maximum(both, 1) / num_classes
    count_influence = -2 * hits / np.maximum(both, 1) ** 2 / num_classes
    influence = count_influence[labels] + count_influence[predictions]
    influence = influence + is_hit * hit_influence[labels]
    return value, math.sqrt(float(influence @ influence))


def _balanced_accuracy(labels: Array, predictions: Array) -> tuple[float, float]:
    from sklearn.metrics import balanced_accuracy_score

    is_hit, counts = labels == predictions, np.bincount(labels)
    recall = np.bincount(labels[is_hit], minlength=len(counts)) / np.maximum(counts, 1)
    influence = (is_hit - recall[labels]) / counts[labels] / np.count_nonzero(counts)
    value = float(balanced_accuracy_score(labels, predictions))
    return value, math.sqrt(float(influence @ influence))


def _roc_auc(labels: Array, predictions: Array) -> tuple[float, float]:
    """Return ROC AUC and its standard error (DeLong et al. 1988).

    The influence of a sample is the fraction of the samples of the other class whose scores are
    below its score (for a sample of class 1) or above it.
    """
    from scipy.stats import rankdata
    from sklearn.metrics import roc_auc_score

    chosen = _averaged_classes(labels, predictions)
    values, influence = [], np.zeros(len(labels))
    for number in chosen:
        is_one, scores = labels == number, predictions[:, number]
        values.append(float(roc_auc_score(is_one, scores)))
        above = np.zeros(len(labels))
        for is_class in (is_one, ~is_one):
            # The rank among all samples minus the rank within the class is the number of samples of
            # the other class with a lower score.
            below = rankdata(scores)[is_class] - rankdata(scores[is_class])
            share = below / (len(labels) - is_class.sum())
            above[is_class] = (share if is_class is is_one else 1 - share) - values[-1]
            above[is_class] /= is_class.sum()
        influence += above / len(chosen)
    return float(np.mean(values)), math.sqrt(float(influence @ influence))


def _average_precision(labels: Array, predictions: Array) -> tuple[float, float]:
    """Return the average precision and its standard error, by a delete-a-group jackknife."""
    group = np.arange(len(labels)) % GROUPS
    value = _mean_precision(labels, predictions)
    values_without_group = [
        _mean_precision(labels[group != index], predictions[group != index])
        for index in range(min(GROUPS, len(labels)))
    ]
    deviations = np.array(values_without_group) - np.mean(values_without_group)
    return value, math.sqrt((GROUPS - 1) / GROUPS * float(deviations @ deviations))


def _mean_precision(labels: Array, predictions: Array) -> float:
    from sklearn.metrics import average_precision_score

    chosen = _averaged_classes(labels, predictions)
    values = [
        average_precision_score(labels == number, predictions[:, number]) for number in chosen
    ]
    return float(np.mean(values)) if values else math.nan


def _averaged_classes(labels: Array, predictions: Array) -> Array:
    """Return the classes over which a metric is averaged: all classes that have samples, or only
    class 1 if there are two classes."""
    present = np.unique(labels)
    return present[present == 1] if predictions.shape[1] == 2 else present


_METRICS: dict[str, Callable[[Array, Array], tuple[float, float]]] = {
    "f1": _f1,
    "balanced_accuracy": _balanced_accuracy,
    "roc_auc": _roc_auc,
    "average_precision": _average_precision,
}
