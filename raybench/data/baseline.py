"""Baseline: the metric of the best constant prediction, which ignores the inputs.

The constant prediction is computed from the training labels, and evaluated on the validation
labels. For accuracy, it is the most frequent class (for top-5 accuracy, the five most frequent
classes), or random guessing if that is no worse. For loss and perplexity, it is the frequencies of
the classes or tokens; for squared errors, the mean; for absolute errors, the median. The baseline
of R² is 0 by definition.

`objective.Baseline` also bounds how much better than the baseline predictions can be by chance on n
rows. Suppose that labels do not depend on inputs. Predictions that differ from the best constant by
d lose in proportion to d**2 on average, but with z standard errors of luck they gain
z sd(d) / sqrt(n). The largest net gain is

- for squared errors, z**2 / n times the mean squared error,
- for absolute errors, at most z**2 / n times the mean absolute error,
- for a loss, z**2 / (2 n) nats,
- for accuracy, z**2 (p + q) / (4 (p - q) n), where p is the frequency of the predicted class (for
  top-5 accuracy, of the least frequent predicted class) and q that of the next most frequent class.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import Array
from raybench.data.whole_set import constant_predictions, measure
from raybench.spec.metric import Metric
from raybench.spec.objective import MARGIN_WITHOUT_TEST_SPLIT, Baseline, Objective, share_error

Floats = npt.NDArray[np.float64]
ROWS_AT_ONCE = 2**16  # samples whose labels are read together; a text has a label for each token
DIGITS = 6  # significant digits of the value; the last digits of sums differ between machines


def label_baseline(metric: Metric, dataset: Dataset) -> float | None:
    """Return the metric of the best constant prediction on the validation split.

    Returns:
        None if the workload defines the metric itself, or if the labels of a classification are not
        class numbers.
    """
    baseline = _split_baseline(metric, dataset, dataset.validation)
    return None if baseline is None else baseline.value


def baselines(objective: Objective, dataset: Dataset) -> dict[str, Baseline | None]:
    """Return the baselines of an objective on the splits `validation` and `test`.

    If the user has set the baseline value, only the binomial error of a proportion is known.

    Args:
        objective: Objective whose metric and baseline value are set (see `objective.resolved`).
        dataset: The dataset.

    Returns:
        Baseline by name of the split; None if it is unknown or the split is empty.
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
    """Number of labels."""
    chance_gain: float | None
    """Largest gain by chance at one standard error of luck (z = 1); None if unknown."""
    level: float | None
    """Metric on the training labels if classes may be equally frequent; otherwise None."""


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
        return Baseline(float(f"{value:.{DIGITS}g}"), len(split)) if math.isfinite(value) else None
    predict = _constant_number if dataset.task == "regression" else _constant_class
    mean, number, chance_gain, level = predict(metric, dataset, split)
    value = metric.finish(mean, mean)
    if not math.isfinite(value):
        return None

    chance_gain = (
        None if chance_gain is None else abs(metric.finish(mean - chance_gain, mean) - value)
    )
    value = float(f"{value:.{DIGITS}g}")
    error = share_error(value if level is None else level, number) if metric.is_share else None
    return Baseline(value, len(split), error, chance_gain, level)


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
    """Return the largest gain in accuracy by chance (z = 1) from predicting another class in some
    rows.

    Args:
        num_predicted: Number of classes that are predicted for a sample (1, or 5 for top-5).
        counts: Number of training samples of each class, (classes,).
        number: Number of labels in the split.

    Returns:
        None if the last predicted class and the next most frequent class may be equally frequent,
        since predicting the other class then costs nothing.
    """
    ordered = np.sort(counts)[::-1].astype(float)
    last, following = ordered[num_predicted - 1], ordered[num_predicted]
    total = last + following
    difference = last - following - MARGIN_WITHOUT_TEST_SPLIT * math.sqrt(total)
    return float(total / (4.0 * difference * number)) if difference > 0 else None


def _num_predicted(metric: Metric) -> int:
    """Return the number of classes that are predicted for a sample (1, or 5 for top-5)."""
    return 1 if metric.per_sample == "correct" else 5


def _score_by_class(metric: Metric, counts: npt.NDArray[np.int64]) -> Floats:
    """Return the loss or accuracy of the best constant prediction for a sample of each class,
    (classes,)."""
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
