"""Your own data, task and metric, in both frameworks: a regression on scikit-learn's diabetes.

raybench train --workload own_data:Diabetes --set dataset.name=workload --set objective.target=60
"""

from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

from raybench import Dataset, Metric, Split, Workload


class Diabetes(Workload):
    name = "diabetes"
    task = "regression"
    input_shape = (10,)
    metric = Metric(name="absolute_error", direction="min")

    def load_dataset(self, spec: Any) -> Dataset:
        table = load_diabetes()
        inputs = (20 * table.data).astype(np.float32)
        labels = table.target.astype(np.float32)
        rows = np.random.default_rng(spec.split_seed).permutation(len(labels))
        splits = (Split(inputs[part], labels[part]) for part in np.split(rows, [300, 370]))
        return Dataset(self.name, None, *splits, task="regression")

    def build_torch(self) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))

    def build_keras(self) -> Any:
        import keras

        hidden = keras.layers.Dense(64, activation="relu")
        last = [keras.layers.Dense(1), keras.layers.Reshape(())]
        return keras.Sequential([keras.Input((10,)), hidden, *last])

    def torch_metric(self, outputs: Any, labels: Any) -> Any:
        return (outputs - labels).abs()

    def keras_metric(self, outputs: Any, labels: Any) -> Any:
        import keras

        return keras.ops.abs(outputs - labels)
