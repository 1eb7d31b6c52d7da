"""Data on demand for the tests: an array behind a counter and a wait, and workloads that use it."""

import threading
import time
from dataclasses import replace

import numpy as np
from regularised import Regularised

from raybench.data.dataset import Dataset, Split


class Kept:
    """An array that is given away by rows: after `wait_s`, and noting who asked for which."""

    def __init__(self, array: np.ndarray, wait_s: float = 0.0) -> None:
        self._array, self._wait_s = array, wait_s
        self.shape, self.dtype = array.shape, array.dtype
        self.asked: list[np.ndarray] = []
        self.threads: set[str] = set()

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.asked.append(rows.copy())
        self.threads.add(threading.current_thread().name)
        time.sleep(self._wait_s)
        return self._array[rows]


def on_demand(dataset: Dataset, wait_s: float = 0.0) -> Dataset:
    """Return the same samples on demand; those that are not trained on without a wait."""
    return replace(
        dataset,
        train=Split(Kept(dataset.train.array, wait_s), dataset.train.labels),
        validation=Split(Kept(dataset.validation.array), dataset.validation.labels),
        test=Split(Kept(dataset.test.array), dataset.test.labels),
    )


class Napping(Regularised):
    """A step takes NAP_S, however busy the machine is."""

    def build_torch(self):
        import torch

        class Nap(torch.nn.Module):
            def forward(self, inputs):
                if self.training:
                    time.sleep(NAP_S)
                return inputs

        return torch.nn.Sequential(Nap(), torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def build_keras(self):
        import keras
        import tensorflow as tf

        class Nap(keras.layers.Layer):
            def call(self, inputs, training=False):
                if not training:
                    return inputs
                with tf.control_dependencies([tf.py_function(nap, [], tf.int32)]):
                    return tf.identity(inputs)

        layers = [keras.Input((8, 8, 1)), Nap(), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers)


NAP_S = 0.03


def nap() -> int:
    time.sleep(NAP_S)
    return 0
