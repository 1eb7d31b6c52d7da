"""Metrics of a whole split, and baselines.

Some metrics, such as F1 and ROC AUC, are computed from all predictions for a split
(`Metric.is_mean` is False). scikit-learn computes their values. Their standard errors are computed
from the influence of each sample on the value or, for average precision, by a jackknife. The
metrics are macro averages: means over all classes that have samples (for F1, also over classes that
are only predicted). If there are only two classes, `roc_auc` and `average_precision` are the values
of class 1.

A baseline is the metric of the best constant prediction, which ignores the inputs. The prediction
is computed from the training labels, and evaluated on the labels of another split. For accuracy,
the prediction is the most frequent class (for top-5 accuracy, the five most frequent classes), or
random guessing if that is no worse. For loss and perplexity, it consists of the frequencies of the
classes or tokens. For squared errors, it is the mean; for absolute errors, the median. The baseline
of R² is 0 by definition.

`objective.Baseline` also bounds by how much a model can beat the baseline by chance on n rows.
Suppose that labels do not depend on inputs. Predictions that differ from the best constant by d
lose in proportion to d**2 on average, but with z standard errors of luck they gain
z sd(d) / sqrt(n). The largest net gain is

- for squared errors, z**2 / n times the mean squared error,
- for absolute errors, at most z**2 / n times the mean absolute error,
- for a loss, z**2 / (2 n) nats,
- for accuracy, z**2 (p + q) / (4 (p - q) n), where p is the frequency of the predicted class (for
  top-5 accuracy, of the least frequent predicted class) and q that of the next most frequent class.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Array, Dataset, Split
from raybench.spec.metric import Metric
from raybench.spec.objective import MARGIN_WITHOUT_TEST_SPLIT, Baseline, Objective, share_error

GROUPS = 20
"""Number of groups into which the jackknife divides the samples. The jackknife is used for metrics
without a formula for the influence of a sample."""


def predictions_of(metric: Metric, outputs: Array) -> Array:
    """Convert the outputs of a model to the predictions from which a metric is computed.

    Args:
        metric: The metric.
        outputs: Logits, shape [n, classes].

    Returns:
        The predicted class of each sample, shape [n], or the probabilities of the classes, shape
        [n, classes]; `metric.per_sample` decides which.
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
        Value of the metric, and its standard error. The value is NaN if it is undefined, for
        example because there is only one class; the standard error is None if it is unknown.
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

    ROC AUC compares the samples of a class with all other samples. The influence of a sample of the
    class depends on the fraction of the other samples that have lower scores. The influence of
    another sample depends on the fraction of the class's samples that have higher scores.
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
            # The rank among all samples minus the rank within `is_class` is the number of samples
            # outside it that have a lower score; equal scores count half.
            below = rankdata(scores)[is_class] - rankdata(scores[is_class])
            share = below / (len(labels) - is_class.sum())
            above[is_class] = (share if is_class is is_one else 1 - share) - values[-1]
            above[is_class] /= is_class.sum()
        influence += above / len(chosen)
    return float(np.mean(values)), math.sqrt(float(influence @ influence))


def _average_precision(labels: Array, predictions: Array) -> tuple[float, float]:
    """Return average precision and its standard error, computed by a delete-a-group jackknife."""
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


ROWS_AT_ONCE = 2**16  # samples whose labels are read together; a text has a label for each token


def label_baseline(metric: Metric, dataset: Dataset) -> float | None:
    """Return the metric of the best constant prediction on the validation split.

    Returns:
        Value of the metric. None if it cannot be computed, for example because the workload defines
        the metric itself, or because the labels of a classification are not class numbers.
    """
    baseline = _split_baseline(metric, dataset, dataset.validation)
    return None if baseline is None else baseline.value


def baselines(objective: Objective, dataset: Dataset) -> dict[str, Baseline | None]:
    """Return the baselines of an objective on the splits `validation` and `test`.

    A baseline value that the user has set, and that differs from the computed one, is used for both
    splits. Then only its binomial error is known, and only if the metric is a proportion.

    Args:
        objective: Objective whose metric and baseline value are set (see `objective.resolved`).
        dataset: The dataset.

    Returns:
        Baselines, keyed by name of the split. A baseline is None if it is unknown or if the split
        is empty.
    """
    metric, baseline_value = objective.judged_by, objective.baseline_value
    splits = {"validation": dataset.validation, "test": dataset.test}
    baseline = _split_baseline(metric, dataset, dataset.validation)
    if baseline is not None and baseline.value == baseline_value:
        test = _split_baseline(metric, dataset, dataset.test) if len(dataset.test) else None
        return {"validation": baseline, "test": test}

    def given(rows: int) -> Baseline | None:
        if baseline_value is None or not rows:
            return None
        return Baseline(
            baseline_value, rows, share_error(baseline_value, rows) if metric.is_share else None
        )

    return {part: given(len(split)) for part, split in splits.items()}


class _ConstantPrediction(NamedTuple):
    """Metric of the best constant prediction on a split."""

    mean: float
    """Mean over the samples; a sample of several tokens contributes the mean over its tokens."""
    number: int
    """Number of samples; for a language model, number of tokens that are not ignored."""
    chance_gain: float | None
    """Largest improvement of `mean` that one standard error of luck (z = 1) allows; None if
    unknown."""
    level: float | None
    """Accuracy of the prediction on the training labels, if the most frequent classes may be
    equally frequent, otherwise None; see `Baseline.level`."""


def _split_baseline(metric: Metric, dataset: Dataset, split: Split) -> Baseline | None:
    """Return the baseline of a metric on a split; None if it cannot be computed."""
    labels = dataset.train.labels
    if (
        not len(labels)
        or metric.per_sample == "own"
        or (dataset.task != "regression" and labels.dtype.kind != "i")
    ):
        return None
    if not metric.is_mean:
        counts = np.bincount(labels, minlength=int(dataset.num_classes or 0))
        value, _ = measure(
            metric, np.asarray(split.labels), constant_predictions(metric, counts, len(split))
        )
        return Baseline(_rounded(value), len(split)) if math.isfinite(value) else None
    predict = _constant_number if dataset.task == "regression" else _constant_class
    mean, number, chance_gain, level = predict(metric, dataset, split)
    value = metric.finish(mean, mean)
    if not math.isfinite(value):
        return None

    chance_gain = (
        None if chance_gain is None else abs(metric.finish(mean - chance_gain, mean) - value)
    )
    value = _rounded(value)
    error = share_error(value if level is None else level, number) if metric.is_share else None
    return Baseline(value, len(split), error, chance_gain, level)


def _rounded(value: float) -> float:
    """Return a value with six significant digits, since the last digits of sums differ between
    machines."""
    return float(f"{value:.6g}")


def _constant_number(metric: Metric, dataset: Dataset, split: Split) -> _ConstantPrediction:
    """Return the metric of the best constant prediction for a regression."""
    is_absolute = metric.per_sample == "absolute_error"
    train = np.asarray(dataset.train.labels, np.float64)
    constant = np.median(train, axis=0) if is_absolute else train.mean(axis=0)
    errors = split.labels - constant
    if metric.per_sample != "loss" and dataset.label_scale is not None:
        errors = errors * dataset.label_scale  # only the loss refers to standardized labels
    mean = float(np.mean(np.abs(errors) if is_absolute else errors**2))
    return _ConstantPrediction(mean, len(errors), mean / len(errors), None)


def _constant_class(metric: Metric, dataset: Dataset, split: Split) -> _ConstantPrediction:
    """Return the metric of the best constant prediction for classes or tokens."""
    assert dataset.num_classes is not None
    counts = np.zeros(dataset.num_classes, np.int64)
    for labels in _label_chunks(dataset.train.labels):
        counts += np.bincount(labels[labels >= 0], minlength=dataset.num_classes)
    scores = _score_by_class(metric, counts)
    total, rows, number = 0.0, 0, 0
    for labels in _label_chunks(split.labels):
        is_counted = labels >= 0
        tokens = is_counted.sum(axis=1)
        sums = np.where(is_counted, scores[np.where(is_counted, labels, 0)], 0.0).sum(axis=1)
        total += float(np.sum(sums[tokens > 0] / tokens[tokens > 0]))
        rows, number = rows + int(np.sum(tokens > 0)), number + int(np.sum(tokens))
    if not rows:
        return _ConstantPrediction(math.nan, 0, None, None)
    mean = total / rows
    if metric.per_sample == "loss":
        return _ConstantPrediction(mean, number, 0.5 / number, None)
    least, chance_gain = min(_num_predicted(metric) / dataset.num_classes, 1.0), None
    if least < 1.0:
        chance_gain = _gain_of_next_class(_num_predicted(metric), counts, number)
    level = (
        max(float(counts @ scores) / float(np.sum(counts)), least) if chance_gain is None else None
    )
    return _ConstantPrediction(max(mean, least), number, chance_gain, level)


def _gain_of_next_class(
    num_predicted: int, counts: npt.NDArray[np.int64], number: int
) -> float | None:
    """Return the largest net gain in accuracy by chance from predicting another class in some rows.

    It is the gain with one standard error of luck (z = 1).

    Args:
        num_predicted: Number of classes that are predicted for a sample (1, or 5 for top-5).
        counts: Number of training samples of each class, (classes,).
        number: Number of labels in the split.

    Returns:
        The gain. None if the least frequent predicted class and the next most frequent class may be
        equally frequent, since predicting the other class then costs nothing.
    """
    ordered = np.sort(counts)[::-1].astype(float)
    last, following = ordered[num_predicted - 1], ordered[num_predicted]
    total = last + following
    difference = last - following - MARGIN_WITHOUT_TEST_SPLIT * math.sqrt(total)
    return float(total / (4.0 * difference * number)) if difference > 0 else None


def _num_predicted(metric: Metric) -> int:
    """Return the number of classes that are predicted for a sample (1, or 5 for top-5)."""
    return 1 if metric.per_sample == "correct" else 5


def _score_by_class(metric: Metric, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the loss or accuracy of the best constant prediction for each class, (classes,)."""
    if metric.per_sample == "loss":
        # One is added to each count, so that no class has an infinite loss.
        return -np.log((counts + 1) / float(np.sum(counts + 1)))
    most_frequent = np.argsort(-counts, kind="stable")
    scores = np.zeros(len(counts))
    scores[most_frequent[: _num_predicted(metric)]] = 1.0
    return scores


def _label_chunks(labels: Array) -> Iterator[npt.NDArray[np.int64]]:
    """Yield labels in chunks of shape (samples, labels per sample)."""
    for start in range(0, len(labels), ROWS_AT_ONCE):
        part = labels[start : start + ROWS_AT_ONCE]
        yield part.reshape(len(part), -1)
