"""The baseline value: what an answer that never looks at the inputs reaches, by the labels alone.

The answer is learnt from the training labels and judged on those of the validation split: the most
frequent class for accuracy (the five most frequent for top-5; any one where that is no better),
the frequencies of the classes or tokens for loss and perplexity, the mean of the numbers for
squared errors and their median for absolute ones. R² is 0 by its definition.

How far luck gets above it, on so many rows (`objective.Baseline`): where labels do not depend on
inputs, answers that differ from the best constant one by d gain z sd(d) / sqrt(n) with z standard
errors of luck and lose in proportion to d**2 on average. At best that is z**2 / n of a mean squared
error (and of an absolute one, or less), z**2 / 2n nats of a loss, and z**2 (p + q) / (4 (p - q) n)
of an accuracy, p and q the frequencies of the last class that is named and the next one.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset, Split
from raybench.data.inputs import Array
from raybench.spec.metric import Metric
from raybench.spec.objective import BEST_OF_ALL, Baseline, Objective, share_error

Floats = npt.NDArray[np.float64]
ROWS = 2**16  # samples whose labels are looked at together: a text set's are as large as its inputs
DIGITS = 6  # digits kept, the same on every machine: sums differ in the last ones


def label_baseline(metric: Metric, dataset: Dataset) -> float | None:
    """Return the baseline value of a metric on the validation split, in the metric's own unit.

    None where labels do not say it: for a metric that a workload measures itself, and where the
    labels of a classification are no classes.
    """
    found = _of_split(metric, dataset, dataset.validation)
    return None if found is None else found.value


def baselines(objective: Objective, dataset: Dataset) -> dict[str, Baseline | None]:
    """Return the baseline on the rows of `validation` and `test`, for a `resolved` objective.

    None where it is not known, and without rows. Of a value that the user gave no more than a
    binomial error is known.
    """
    metric, baseline_value = objective.judged_by, objective.baseline_value
    splits = {"validation": dataset.validation, "test": dataset.test}
    found = _of_split(metric, dataset, dataset.validation)
    if found is not None and found.value == baseline_value:
        test = _of_split(metric, dataset, dataset.test) if len(dataset.test) else None
        return {"validation": found, "test": test}

    def given(rows: int) -> Baseline | None:
        if baseline_value is None or not rows:
            return None
        return Baseline(
            baseline_value, rows, share_error(baseline_value, rows) if metric.is_share else None
        )

    return {part: given(len(split)) for part, split in splits.items()}


def _of_split(metric: Metric, dataset: Dataset, split: Split) -> Baseline | None:
    labels = dataset.train.labels
    if (
        not len(labels)
        or metric.per_sample == "own"
        or (dataset.task != "regression" and labels.dtype.kind != "i")
    ):
        return None
    of_task = _of_numbers if dataset.task == "regression" else _of_classes
    mean, number, square, level = of_task(metric, dataset, split)
    value = metric.finish(mean, mean)
    if not math.isfinite(value):
        return None

    square = None if square is None else abs(metric.finish(mean - square, mean) - value)
    value = float(f"{value:.{DIGITS}g}")
    error = share_error(value if level is None else level, number) if metric.is_share else None
    return Baseline(value, len(split), error, square, level)


def _of_numbers(
    metric: Metric, dataset: Dataset, split: Split
) -> tuple[float, int, float | None, float | None]:
    """Return the mean over samples and outputs of the error of one answer for all samples, of how
    many labels, what luck of one standard error gains at best, and None."""
    is_absolute = metric.per_sample == "absolute_error"
    train = np.asarray(dataset.train.labels, np.float64)
    answer = np.median(train, axis=0) if is_absolute else train.mean(axis=0)
    errors = split.labels - answer
    if metric.per_sample != "loss" and dataset.label_scale is not None:
        errors = errors * dataset.label_scale  # the loss alone is in the scale of training
    mean = float(np.mean(np.abs(errors) if is_absolute else errors**2))
    return mean, len(errors), mean / len(errors), None


def _of_classes(
    metric: Metric, dataset: Dataset, split: Split
) -> tuple[float, int, float | None, float | None]:
    """Return the same of what one answer for all is worth (of a text, of its tokens' means), and
    last the same by the training labels, where classes may be as frequent."""
    assert dataset.num_classes is not None
    counts = np.zeros(dataset.num_classes, np.int64)
    for labels in _in_parts(dataset.train.labels):
        counts += np.bincount(labels[labels >= 0], minlength=dataset.num_classes)
    worth = _worth(metric, counts)
    total, rows, number = 0.0, 0, 0
    for labels in _in_parts(split.labels):
        is_informative = labels >= 0
        tokens = is_informative.sum(axis=1)
        sums = np.where(is_informative, worth[np.where(is_informative, labels, 0)], 0.0).sum(axis=1)
        total += float(np.sum(sums[tokens > 0] / tokens[tokens > 0]))
        rows, number = rows + int(np.sum(tokens > 0)), number + int(np.sum(tokens))
    if not rows:
        return math.nan, 0, None, None
    mean = total / rows
    if metric.per_sample == "loss":
        return mean, number, 0.5 / number, None
    least, square = min(_answers(metric) / dataset.num_classes, 1.0), None
    if least < 1.0:
        square = _of_rarer_class(_answers(metric), counts, number)
    level = max(float(counts @ worth) / float(np.sum(counts)), least) if square is None else None
    return max(mean, least), number, square, level


def _of_rarer_class(answers: int, counts: npt.NDArray[np.int64], number: int) -> float | None:
    """Return what luck gains at best by naming the next class for some rows; None where the two
    classes may be as frequent: that costs nothing then."""
    ordered = np.sort(counts)[::-1].astype(float)
    both, apart = ordered[answers - 1] + ordered[answers], ordered[answers - 1] - ordered[answers]
    apart -= BEST_OF_ALL * math.sqrt(both)
    return float(both / (4.0 * apart * number)) if apart > 0 else None


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
