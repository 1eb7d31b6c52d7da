"""What a dataset is: three splits of samples and labels, the same for both frameworks."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from raybench.core.errors import UserError
from raybench.data.on_demand import Array as Array
from raybench.data.on_demand import Inputs, Rows, check_inputs, read_rows, select


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    `uint8` inputs are pixels: the backends scale them by 1/255 inside the training step, so
    that they travel and stay in memory as bytes. `float32` inputs are used as they are.

    Inputs may also be on demand: any object with `shape`, `dtype` and `[rows]` that reads or
    computes samples when a batch asks for them (`on_demand.OnDemand`). Labels are an array always.
    """

    inputs: Inputs
    """(N, H, W, C), or (N, features); uint8 or float32."""
    labels: Array
    """(N,) int64, from 0 to `num_classes - 1`."""

    def __post_init__(self) -> None:
        check_inputs(self.inputs)
        if self.inputs.shape[0] != len(self.labels):
            raise UserError(
                f"A split needs one label per input, found {self.inputs.shape[0]} inputs and "
                f"{len(self.labels)} labels."
            )
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise UserError(
                "The labels of a split must be int64 of shape (N,), found "
                f"{self.labels.dtype} of shape {self.labels.shape}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_on_demand(self) -> bool:
        """Whether inputs are read when they are asked for; else they are an array."""
        return not isinstance(self.inputs, np.ndarray)

    @property
    def array(self) -> Array:
        """The inputs of a split that is not on demand."""
        assert isinstance(self.inputs, np.ndarray)
        return self.inputs

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the inputs: uint8 or float32."""
        return np.dtype(self.inputs.dtype)

    def read(self, rows: Rows) -> Array:
        """Return the inputs at `rows`, in that order, as an array; see `read_rows`."""
        return read_rows(self.inputs, rows)

    def take(self, indices: Rows | slice) -> "Split":
        """Return the samples at `indices`, in that order; of inputs on demand none is read."""
        return Split(select(self.inputs, indices), self.labels[indices])


@dataclass(frozen=True)
class Dataset:
    """Three splits; the test split is for confirmed winners only."""

    name: str
    num_classes: int
    train: Split
    validation: Split
    test: Split
    repeat: int = 1
    """How often the training split stands in one epoch. The arrays are not copied: sample `i`
    of an epoch is `train[i % len(train)]`."""

    @property
    def num_train_samples(self) -> int:
        """Samples in one epoch, repeats included."""
        return len(self.train) * self.repeat

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (H, W, C), or (features,)."""
        return tuple(self.train.inputs.shape[1:])


def hold_out(samples: Split, size: int, *, seed: int, source: str) -> tuple[Split, Split]:
    """Shuffle by `seed` and cut: (the first `size` samples, all others).

    Depends on nothing else, so every process of a study holds out the same samples. A size
    that leaves nothing to train on is a UserError naming `source`.
    """
    if size >= len(samples):
        raise UserError(
            f"dataset.validation_size {size} leaves nothing of the {len(samples)} samples of "
            f"{source} to train on; choose a smaller one."
        )
    order = np.random.default_rng(seed).permutation(len(samples))
    return samples.take(order[:size]), samples.take(order[size:])
