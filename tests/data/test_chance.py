"""The chance level of a metric, from the labels of the training and the validation split."""

import math

import numpy as np
import pytest

from raybench.core.metric import METRICS, Metric
from raybench.data.chance import chance_level
from raybench.data.dataset import Dataset, Split


def split(labels):
    labels = np.asarray(labels)
    labels = labels.astype(np.int64 if labels.dtype.kind == "i" else np.float32)
    return Split(np.zeros((len(labels), 2), np.float32), labels)


def classes(train, validation, number, **more):
    return Dataset("made up", number, split(train), split(validation), split(validation), **more)


def chance(name, dataset):
    return chance_level(METRICS[name], dataset)


def test_the_most_frequent_class_of_training_is_judged_on_validation():
    dataset = classes([2, 2, 2, 0, 1], [2, 0, 0, 2, 2], 4)
    assert chance("accuracy", dataset) == 0.6
    assert chance("top5_accuracy", dataset) == 1.0
    counts = {0: 2 / 9, 2: 4 / 9}  # one more of each class than training has
    loss = -(2 * math.log(counts[0]) + 3 * math.log(counts[2])) / 5
    assert chance("loss", dataset) == pytest.approx(loss, rel=1e-5)
    assert chance("perplexity", dataset) == pytest.approx(math.exp(loss), rel=1e-5)


def test_chance_is_no_less_than_a_class_named_at_random():
    dataset = classes([0, 0, *range(20)], [1] * 40, 20)
    assert chance("accuracy", dataset) == 0.05
    assert chance("top5_accuracy", dataset) == 1.0, "1 is among the five most frequent"
    assert chance("top5_accuracy", classes([*range(20)], [9] * 4, 20)) == 0.25


def test_of_tokens_those_count_that_are_no_padding_and_samples_weigh_the_same():
    dataset = classes(
        [[0, 0, 1], [0, 1, -100]], [[0, 1, -100], [0, -100, -100]], 2, task="language_modelling"
    )
    assert chance("accuracy", dataset) == 0.75
    worth = [-math.log(4 / 7), -math.log(3 / 7)]
    expected = (sum(worth) / 2 + worth[0]) / 2
    assert chance("loss", dataset) == pytest.approx(expected, rel=1e-5)


def test_numbers_are_judged_in_their_own_unit_and_their_loss_in_that_of_training():
    dataset = classes(
        [0.0, 1.0, 5.0],
        [1.0, 3.0],
        None,
        task="regression",
        label_scale=np.float32(10.0),
        label_offset=np.float32(7.0),
    )
    assert chance("rmse", dataset) == pytest.approx(10 * math.sqrt(1.0), rel=1e-5)  # mean 2
    assert chance("mean_absolute_error", dataset) == pytest.approx(10.0, rel=1e-5)  # median 1
    assert chance("loss", dataset) == pytest.approx(1.0, rel=1e-5)
    assert chance("r2", dataset) == 0.0


def test_of_vectors_every_output_has_its_own_answer_and_scale():
    train = np.array([[0.0, 0.0], [2.0, 4.0]], np.float32)
    dataset = classes(
        train, train, None, task="regression", label_scale=np.array([1.0, 10.0], np.float32)
    )
    assert chance("rmse", dataset) == pytest.approx(math.sqrt((1 + 400) / 2), rel=1e-5)


def test_what_a_workload_measures_itself_is_not_known():
    dataset = classes([0, 1], [0, 1], 2)
    assert chance_level(Metric(name="dice", direction="max"), dataset) is None
