"""A user's model that is tried on a few samples."""

import importlib

import numpy as np
import pytest

from raybench.models.base import Workload
from raybench.spec.errors import UserError
from raybench.spec.metric import ACCURACY

INPUTS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
LABELS = np.arange(8, dtype=np.int64) % 10


def probe(framework, workload, inputs=INPUTS, labels=LABELS, metric=ACCURACY, several=False):
    module = importlib.import_module(f"raybench.training.{framework}.probe")
    given = {"metric": metric, "gpu": False, "several": several}
    return module.probe_model(workload, inputs, labels, **given).warnings


def refused(framework, workload, *data, **settings):
    with pytest.raises(UserError) as caught:
        probe(framework, workload, *data, **settings)
    assert "orkload own" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


class Own(Workload):
    """Ten classes of four features; the subclasses break one thing each."""

    name, input_shape, num_classes = "own", (4,), 10
    units = 10

    def build_torch(self):
        import torch

        return torch.nn.Sequential(torch.nn.Linear(4, self.units), *self.end("torch"))

    def build_keras(self):
        import keras

        ends = self.end("tensorflow")
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(self.units), *ends])

    def end(self, framework):
        return []
