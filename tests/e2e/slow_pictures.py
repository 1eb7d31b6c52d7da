"""A user's data that are read when they are asked for, slowly; and such that cannot be read."""

import time

import numpy as np

from raybench import Workload
from raybench.data.dataset import Dataset, Split
from raybench.data.load import load_dataset
from raybench.spec.run import DatasetSpec

READ_S = 0.02


class Pictures:
    """Digits, read_s seconds a batch; none with a label of `torn`."""

    def __init__(self, split: Split, torn: int | None = None) -> None:
        self.shape, self.dtype = split.array.shape, np.uint8
        self._split, self._torn = split, torn

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        time.sleep(READ_S)
        if len(rows) > 8 and self._torn in self._split.labels[rows]:
            raise OSError("picture of a seven is torn")
        return self._split.array[rows]


class SlowPictures(Workload):
    """One dense layer."""

    name, input_shape, num_classes = "slow_pictures", (8, 8, 1), 10
    torn: int | None = None

    def build_torch(self):
        import torch

        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def build_keras(self):
        import keras

        layers = [keras.Input(self.input_shape), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers)

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        digits = load_dataset(DatasetSpec(name="digits"))
        train = Split(Pictures(digits.train, self.torn), digits.train.labels)
        return Dataset("pictures", 10, train, digits.validation, digits.test)


class TornPictures(SlowPictures):
    """Fails in the first batch, and not when a few samples are tried."""

    torn = 7
