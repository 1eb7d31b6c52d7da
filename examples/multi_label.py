"""Several labels per sample: binary cross-entropy over the labels, and F1 of each sample's labels.

raybench train --workload multi_label:Topics --set dataset.name=workload --set objective.target=0.7
"""

from typing import Any

import numpy as np
from sklearn.datasets import make_multilabel_classification

from raybench import Dataset, Metric, Split, Workload

NUM_WORDS, NUM_TOPICS = 40, 6


class Topics(Workload):
    """Documents as word counts, each with any number of topics: labels of zeros and ones."""

    name = "topics"
    task = "regression"  # labels are vectors of numbers; the loss below makes them classes
    input_shape = (NUM_WORDS,)
    metric = Metric(name="sample_f1", direction="max", is_share=True)

    def load_dataset(self, spec: Any) -> Dataset:
        words, topics = make_multilabel_classification(
            2000,
            n_features=NUM_WORDS,
            n_classes=NUM_TOPICS,
            allow_unlabeled=False,
            random_state=spec.split_seed,
        )
        inputs = (words / words.sum(axis=1, keepdims=True) * NUM_WORDS).astype(np.float32)
        labels = topics.astype(np.float32)
        parts = np.split(np.arange(len(labels)), [1400, 1700])
        splits = (Split(inputs[rows], labels[rows]) for rows in parts)
        return Dataset(self.name, None, *splits, task="regression")

    def build_torch(self) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(NUM_WORDS, 64), nn.ReLU(), nn.Linear(64, NUM_TOPICS))

    def build_keras(self) -> Any:
        import keras

        hidden = keras.layers.Dense(64, activation="relu")
        return keras.Sequential([keras.Input((NUM_WORDS,)), hidden, keras.layers.Dense(NUM_TOPICS)])

    def torch_loss(self, outputs: Any, labels: Any) -> Any:
        from torch.nn import functional

        each = functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        return each.mean(dim=1)

    def keras_loss(self, outputs: Any, labels: Any) -> Any:
        import keras

        return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)

    def torch_metric(self, outputs: Any, labels: Any) -> Any:
        is_predicted = (outputs > 0).to(labels.dtype)
        hits = (is_predicted * labels).sum(dim=1)
        return 2 * hits / (is_predicted.sum(dim=1) + labels.sum(dim=1)).clamp(min=1)

    def keras_metric(self, outputs: Any, labels: Any) -> Any:
        from keras import ops

        is_predicted = ops.cast(outputs > 0, labels.dtype)
        hits = ops.sum(is_predicted * labels, axis=1)
        both = ops.sum(is_predicted, axis=1) + ops.sum(labels, axis=1)
        return 2 * hits / ops.maximum(both, 1)
