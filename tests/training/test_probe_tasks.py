"""What a model of another task or metric needs, in both frameworks the same."""

import numpy as np
import pytest
from probed import INPUTS, LABELS, Own, refused

from raybench.spec.metric import METRICS, Metric

PAIRS = np.linspace(0, 1, 16, dtype=np.float32).reshape(8, 2)
TOKENS = np.arange(24, dtype=np.int64).reshape(8, 3) % 10
RMSE, LOSS = METRICS["rmse"], METRICS["loss"]


class Regressed(Own):
    """One number too many: ten in place of two."""

    task = "regression"


class Spoken(Own):
    """No outputs for each token."""

    task = "language_modelling"


class OwnMetric(Own):
    metric = Metric(name="half", direction="max")

    def torch_metric(self, outputs, labels):
        return labels[: len(labels) // 2] * 1.0

    def keras_metric(self, outputs, labels):
        import tensorflow as tf

        return tf.cast(labels[: len(labels) // 2], tf.float32)


class NoHook(Own):
    metric = OwnMetric.metric


class Whole(Own):
    """Answers in place of numbers that have a slope."""

    def build_torch(self):
        import torch

        class Answers(torch.nn.Linear):
            def forward(self, inputs):
                return super().forward(inputs).argmax(dim=1)

        return Answers(4, 10)

    def build_keras(self):
        import keras

        inputs = keras.Input((4,))
        scores = keras.layers.Dense(10)(inputs)
        return keras.Model(inputs, keras.ops.argmax(scores, axis=1))


@pytest.mark.parametrize(
    ("workload", "data", "words"),
    [
        (
            Regressed,
            (INPUTS, PAIRS, RMSE),
            "(8, 10) for 8 samples with labels of shape (8, 2); end",
        ),
        (Regressed, (INPUTS, PAIRS[:, 0], RMSE), "so that they are (8,)."),
        (
            Spoken,
            (INPUTS, TOKENS, LOSS),
            "of 3 tokens out of 10; end it so that they are (8, 3, 10)",
        ),
        (Spoken, ({"a": INPUTS, "b": TOKENS}, TOKENS, LOSS), "on inputs a (8, 4), b (8, 3)"),
        (OwnMetric, (INPUTS, LABELS, OwnMetric.metric), "its half in "),
        (NoHook, (INPUTS, LABELS, OwnMetric.metric), "has the metric half and no "),
        (Whole, (), "must return a tensor of floating point numbers, not "),
    ],
)
def test_what_other_tasks_and_metrics_need(framework, workload, data, words):
    assert words in str(refused(framework, workload(), *data))
