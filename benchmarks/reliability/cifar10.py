"""A user's own workload: 10,000 images of CIFAR-10, a small network (modest_budgets.py).

`RAYBENCH_DATA/cifar10` holds the two Parquet files as Hugging Face writes them: rows of
`image {bytes, path}` (a JPEG or PNG file each) and `label`.
"""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raybench.data.dataset import Dataset, Split, hold_out
from raybench.models.base import Workload
from raybench.spec.run import DatasetSpec

if TYPE_CHECKING:
    import torch

NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 10_000, 1_000, 2_000


def folder() -> Path:
    """Return where the files should be."""
    return Path(os.environ.get("RAYBENCH_DATA", "data")) / "cifar10"


def read(part: str, number: int) -> Split:
    """Decode the first images of a file."""
    import pyarrow.parquet
    from PIL import Image

    table = pyarrow.parquet.read_table(folder() / f"{part}-00000-of-00001.parquet")
    rows = table.slice(0, number).to_pylist()
    images = [np.asarray(Image.open(io.BytesIO(row["image"]["bytes"]))) for row in rows]
    return Split(np.stack(images), np.array([row["label"] for row in rows], np.int64))


class Cifar10(Workload):
    """Three convolutions and two dense layers."""

    name = "cifar10"
    input_shape = (32, 32, 3)
    num_classes = 10

    def build_torch(self) -> "torch.nn.Module":
        """Return the model."""
        from torch import nn

        def block(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

        return nn.Sequential(
            *block(3, 32),
            *block(32, 64),
            *block(64, 128),
            nn.Flatten(),
            nn.Linear(128 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, self.num_classes),
        )

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Read, and hold out the validation split."""
        samples = read("train", NUM_TRAIN + NUM_VALIDATION)
        size = spec.validation_size or NUM_VALIDATION
        validation, train = hold_out(samples, size, seed=spec.split_seed, source="CIFAR-10")
        return Dataset("cifar10", self.num_classes, train, validation, read("test", NUM_TEST))
