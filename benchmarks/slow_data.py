"""A user's workload whose own `load_dataset` takes SLOW_SECONDS; for setup_share.py.

Each call appends the id of its process to SLOW_LOG. The data are handwritten digits, scaled up
and repeated to SLOW_MEGABYTES of float32, so that copies are seen in memory.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset, Split
from raybench.data.load import load_dataset
from raybench.workloads.base import Workload

if TYPE_CHECKING:
    import keras
    import torch


class SlowDigits(Workload):
    """One dense layer on slow data, in both frameworks."""

    name = "slow_digits"
    input_shape = (28, 28, 1)
    num_classes = 10

    def build_torch(self) -> "torch.nn.Module":
        """Return the model."""
        import torch

        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))

    def build_keras(self) -> "keras.Model":
        """Return the model."""
        import keras

        layers = [keras.Input(self.input_shape), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers)

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Take as long as reading a large set from a slow disk, and as much memory."""
        with Path(os.environ["SLOW_LOG"]).open("a") as log:
            log.write(f"{os.getpid()}\n")
        time.sleep(float(os.environ["SLOW_SECONDS"]))
        digits = load_dataset(DatasetSpec(name="digits", image_size=28))
        train = digits.train
        wanted = int(float(os.environ["SLOW_MEGABYTES"]) * 1e6) // (4 * 28 * 28)
        rows = np.arange(max(wanted, len(train))) % len(train)
        inputs = (train.inputs[rows] / np.float32(255)).astype(np.float32)
        return Dataset(
            name="slow_digits",
            num_classes=10,
            train=Split(inputs, train.labels[rows]),
            validation=_scaled(digits.validation),
            test=_scaled(digits.test),
        )


def _scaled(split: Split) -> Split:
    return Split((split.inputs / np.float32(255)).astype(np.float32), split.labels)
