"""Metrics of a whole split with their standard errors, and baselines, which come from the labels of
the training and the validation split."""

import math

import numpy as np
import pytest
from sklearn import metrics

from raybench.data.dataset import Dataset
from raybench.data.split_metrics import (
    baselines,
    constant_predictions,
    label_baseline,
    measure,
    predictions_of,
)
from raybench.spec.metric import METRICS, Metric
from raybench.spec.objective import Objective
from tests.data.making import dataset_of, split_of

OF_SCIKIT_LEARN = {
    "f1": lambda labels, answers: metrics.f1_score(labels, answers, average="macro"),
    "balanced_accuracy": metrics.balanced_accuracy_score,
    "roc_auc": lambda labels, answers: metrics.roc_auc_score(
        labels, answers[:, 1] if answers.shape[1] == 2 else answers, multi_class="ovr"
    ),
    "average_precision": lambda labels, answers: metrics.average_precision_score(
        labels, answers[:, 1] if answers.shape[1] == 2 else answers
    ),
}
NAMES = tuple(OF_SCIKIT_LEARN)


def made_up(num_classes, number=400, seed=0):
    """Return labels of unequal classes, and logits that are correlated with them."""
    chance = np.random.default_rng(seed)
    shares = np.arange(1, num_classes + 1) / sum(range(num_classes + 1))
    labels = chance.choice(num_classes, number, p=shares)
    return labels, chance.normal(size=(number, num_classes)) + 1.5 * np.eye(num_classes)[labels]


@pytest.mark.parametrize(
    ("name", "num_classes"),
    [*((name, 4) for name in NAMES), ("roc_auc", 2), ("average_precision", 2)],
)
def test_values_equal_scikit_learn_and_errors_equal_a_bootstrap(name, num_classes):
    metric, score = METRICS[name], OF_SCIKIT_LEARN[name]
    labels, logits = made_up(num_classes)
    answers = predictions_of(metric, logits)
    value, error = measure(metric, labels, answers)
    chance = np.random.default_rng(1)
    drawn = [chance.integers(len(labels), size=len(labels)) for _ in range(100)]
    values = [score(labels[rows], answers[rows]) for rows in drawn]
    assert value == pytest.approx(score(labels, answers))
    assert value == pytest.approx(np.mean(values), abs=0.02)
    assert error == pytest.approx(np.std(values), rel=0.35 if name == "average_precision" else 0.15)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_without_samples_is_ignored(name):
    metric = METRICS[name]
    labels, logits = made_up(3)
    logits[:, 2] = -9  # never predicted
    is_kept = labels < 2
    value, error = measure(metric, labels[is_kept], predictions_of(metric, logits)[is_kept])
    assert 0.5 < value < 1
    assert error is not None


def test_undefined_values_are_nan():
    metric = METRICS["roc_auc"]
    answers = np.full((4, 2), 0.5)
    assert measure(metric, np.zeros(4, int), answers) == (pytest.approx(np.nan, nan_ok=True), None)
    answers[0, 0] = np.nan
    value, _ = measure(metric, np.array([0, 1, 0, 1]), answers)
    assert np.isnan(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("f1", 0.4), ("balanced_accuracy", 0.5), ("roc_auc", 0.5), ("average_precision", 2 / 3)],
)
def test_the_baseline_is_a_constant_prediction(name, value):
    data = dataset_of(np.zeros((3, 2), np.float32), [0, 1, 1])
    assert label_baseline(METRICS[name], data) == pytest.approx(value)
    assert constant_predictions(METRICS[name], np.array([1, 2]), 3).shape[0] == 3


def classes(train, validation, number, **fields):
    splits = map(split_of, (train, validation, validation))
    return Dataset("made up", number, *splits, **fields)


def baseline_value(name, dataset):
    return label_baseline(METRICS[name], dataset)


def objective(metric, baseline_value, **fields):
    return Objective(kind="best_at_budget", metric=metric, baseline_value=baseline_value, **fields)


def test_the_baseline_predicts_the_most_frequent_training_class():
    dataset = classes([2, 2, 2, 0, 1], [2, 0, 0, 2, 2], 4)
    assert baseline_value("accuracy", dataset) == 0.6
    assert baseline_value("top5_accuracy", dataset) == 1.0
    counts = {0: 2 / 9, 2: 4 / 9}  # add-one smoothing of the training counts
    loss = -(2 * math.log(counts[0]) + 3 * math.log(counts[2])) / 5
    assert baseline_value("loss", dataset) == pytest.approx(loss, rel=1e-5)
    assert baseline_value("perplexity", dataset) == pytest.approx(math.exp(loss), rel=1e-5)


def test_the_baseline_is_at_least_random_guessing():
    dataset = classes([0, 0, *range(20)], [1] * 40, 20)
    assert baseline_value("accuracy", dataset) == 0.05
    assert baseline_value("top5_accuracy", dataset) == 1.0, "1 is among the five most frequent"
    assert baseline_value("top5_accuracy", classes([*range(20)], [9] * 4, 20)) == 0.25


def test_the_token_baseline_ignores_padding_and_weighs_samples_equally():
    splits = [[0, 0, 1], [0, 1, -100]], [[0, 1, -100], [0, -100, -100]]
    dataset = classes(*splits, 2, task="language_modelling")
    assert baseline_value("accuracy", dataset) == 0.75
    worth = [-math.log(4 / 7), -math.log(3 / 7)]
    expected = (sum(worth) / 2 + worth[0]) / 2
    assert baseline_value("loss", dataset) == pytest.approx(expected, rel=1e-5)


def test_regression_baselines_use_original_units_and_the_loss_scaled_ones():
    scale = {"label_scale": np.float32(10.0), "label_offset": np.float32(7.0)}
    dataset = classes([0.0, 1.0, 5.0], [1.0, 3.0], None, task="regression", **scale)
    error = baseline_value("rmse", dataset)
    assert error == pytest.approx(10.0, rel=1e-5), "the mean, 2, is predicted"
    error = baseline_value("mean_absolute_error", dataset)
    assert error == pytest.approx(10.0, rel=1e-5), "the median, 1, is predicted"
    assert baseline_value("loss", dataset) == pytest.approx(1.0, rel=1e-5)
    assert baseline_value("r2", dataset) == 0.0


@pytest.mark.parametrize("name", ["accuracy", "loss", "rmse", "r2", "mean_absolute_error"])
def test_random_predictions_stay_below_the_baseline_plus_luck(name):
    """Predictions of several scales that ignore the inputs, on the same rows."""
    metric, rows = METRICS[name], 100
    rng, label_rng = np.random.default_rng(0), np.random.default_rng(1)
    if metric.per_sample in ("correct", "loss"):
        dataset = classes(label_rng.integers(0, 2, 4000), label_rng.integers(0, 2, rows), 2)
    else:
        splits = label_rng.normal(size=4000), label_rng.normal(size=rows)
        dataset = classes(*splits, None, task="regression")
    baseline = baselines(objective(name, baseline_value(name, dataset)), dataset)["validation"]
    labels, values = dataset.validation.labels, []
    for size in np.repeat([0.02, 0.1, 0.3, 1.0], 250):
        if name == "accuracy":
            values.append(np.mean(labels == (rng.random(rows) < 0.5)))
        elif name == "loss":
            logits = size * rng.normal(size=rows)
            values.append(np.mean(np.log1p(np.exp(np.where(labels == 1, -logits, logits)))))
        else:
            errors = labels - size * rng.normal(size=rows)
            mean = np.mean(np.abs(errors) if metric.per_sample == "absolute_error" else errors**2)
            values.append(metric.finish(mean, np.var(labels)))
    beyond = [metric.reaches(value, baseline.beyond(metric, 1.645)) for value in values]
    assert np.mean(beyond) < 0.08
    assert not any(metric.reaches(value, baseline.beyond(metric, 4.0)) for value in values)


def test_with_a_rare_class_luck_is_small():
    """Predicting the rare class fails on nine rows in ten, so luck is below the binomial error."""
    rng = np.random.default_rng(0)
    dataset = classes((rng.random(4000) < 0.1).astype(int), [*[0] * 900, *[1] * 100], 2)
    known = baselines(objective("accuracy", 0.9), dataset)["validation"]
    assert known.error == pytest.approx(0.0095, rel=0.01)
    assert known.beyond(METRICS["accuracy"], 3.0) == pytest.approx(0.903, abs=5e-4)
    given = baselines(objective("accuracy", 0.8), dataset)["validation"]
    assert given.beyond(METRICS["accuracy"], 3.0) == pytest.approx(0.8 + 3 * 0.01265, abs=1e-4)
    custom = Metric(name="dice", direction="min")  # a metric that only the workload can compute
    assert label_baseline(custom, dataset) is None
    given = baselines(objective("dice", 0.8, direction="min"), dataset)["test"]
    assert given.beyond(custom) is None
