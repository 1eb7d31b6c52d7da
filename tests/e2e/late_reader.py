"""A workload whose data rank 1 reads slowly."""

import time

import numpy as np
import torch
from torch import nn

from raybench.data.dataset import Dataset, Split
from raybench.data.load import load_dataset
from raybench.models.base import Workload
from raybench.spec.run import DatasetSpec

SLEEP_S = 0.02
"""Seconds of sleep per batch that is read."""


class LateReader(Workload):
    """One dense layer, and digits that are read on demand."""

    name, input_shape, num_classes = "late_reader", (28, 28, 1), 10

    def build_torch(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        digits = load_dataset(DatasetSpec(name="digits", image_size=28))
        train = Split(Late(digits.train.array), digits.train.labels)
        return Dataset("late", 10, train, digits.validation, digits.test)


class Late:
    """Images that rank 1 reads slowly."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.shape, self.dtype, self._pixels = pixels.shape, pixels.dtype, pixels

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            time.sleep(SLEEP_S)
        return np.asarray(self._pixels[rows])
