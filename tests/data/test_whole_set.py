"""Metrics of a whole split: values, standard errors and baselines."""

import numpy as np
import pytest
from sklearn import metrics

from raybench.data.split_metrics import (
    constant_predictions,
    label_baseline,
    measure,
    predictions_of,
)
from raybench.spec.metric import METRICS
from tests.data.making import dataset_of

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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_classes", [2, 4])
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
