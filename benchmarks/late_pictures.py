"""`mnist_small` on digits that take READ_S each to be read; for diagnose_cases.py."""

import time
from typing import ClassVar

import numpy as np

from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset, Split
from raybench.data.load import load_dataset
from raybench.workloads.base import LayerWorkload
from raybench.workloads.shipped import mnist_small

READ_S = 0.002


class Late:
    """Samples of an array, each READ_S later than they are asked for."""

    dtype = np.uint8

    def __init__(self, pixels: np.ndarray) -> None:
        self.shape, self._pixels = pixels.shape, pixels

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        """Read one after the other, as from a slow disk."""
        time.sleep(READ_S * len(rows))
        return np.asarray(self._pixels[rows])


class LatePictures(LayerWorkload):
    """The shipped small model."""

    name = "late_pictures"
    input_shape = (28, 28, 1)
    num_classes = 10
    layers: ClassVar = mnist_small().layers

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return digits whose training split is late, and a small validation split."""
        digits = load_dataset(DatasetSpec(image_size=28, split_seed=spec.split_seed))
        train = Split(Late(digits.train.array), digits.train.labels)
        few = digits.validation.take(slice(64))
        return Dataset("late_pictures", 10, train=train, validation=few, test=digits.test)
