"""Workloads that decode images one by one in Python, as most users' own code does, for scaling
studies."""

import zlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset, Split
from raybench.data.digits import resize
from raybench.data.load import load_dataset
from raybench.models.base import LayerWorkload
from raybench.models.layers import Shape
from raybench.models.shipped import ShippedWorkload, cnn7, mnist_large_dense, mnist_small
from raybench.spec.run import DatasetSpec

STORED_PIXELS = 224  # height and width of a compressed image


class Decoded:
    """`OnDemand` inputs that hold compressed images, and decode and scale the images of a batch."""

    dtype = np.dtype(np.uint8)

    def __init__(self, stored: list[bytes], image_size: int) -> None:
        """Create the inputs from the results of `_stored`, to be scaled to `image_size` pixels."""
        self._stored, self._size = stored, image_size
        self.shape = (len(stored), image_size, image_size, 1)

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[np.uint8]:
        """Return the images at `rows`, (N, size, size, 1) uint8.

        The calling thread decodes them one by one.
        """
        pictures = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for position, row in enumerate(rows):
            pixels = np.frombuffer(zlib.decompress(self._stored[row]), np.uint8)
            picture = pixels.reshape(1, STORED_PIXELS, STORED_PIXELS)
            pictures[position, ..., 0] = resize(picture, self._size)[0]
        return pictures


class Pictures(LayerWorkload):
    """Base class of workloads on the dataset `digits`, stored as compressed images of 224 x 224
    pixels."""

    num_classes = 10

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the dataset `digits`, with inputs that are decoded when a batch needs them."""
        size = self.input_shape[0]
        train, validation, test = (
            Split(Decoded(stored, size), labels)
            for stored, labels in _compressed(spec.split_seed, spec.validation_size)
        )
        return Dataset(self.name, self.num_classes, train=train, validation=validation, test=test)


def _pictures(name: str, network: Callable[[Shape], ShippedWorkload], size: int) -> type[Pictures]:
    """Return a workload class for inputs of `size` x `size` pixels.

    `network` returns the network for an input shape.
    """
    shape = (size, size, 1)
    content = {"name": name, "input_shape": shape, "layers": network(shape).layers}
    return type(name, (Pictures,), content)


DecodedDigits = _pictures("decoded_digits", cnn7, 32)
LargeDecodedDigits = _pictures("large_decoded_digits", cnn7, 224)
"""Workload of the published report that `raybench scale finetune_lr_schedule` repeats."""
MediumDecodedDigits = _pictures("medium_decoded_digits", cnn7, 128)
SmallDecodedDigits = _pictures("small_decoded_digits", mnist_small, 32)
DenseDecodedDigits = _pictures("dense_decoded_digits", mnist_large_dense, 28)


Stored = tuple[list[bytes], npt.NDArray[np.int64]]
"""Compressed images of a split, and their labels (N,)."""


@lru_cache(maxsize=1)
def _compressed(split_seed: int, validation_size: float | None) -> list[Stored]:
    """Return the compressed images and the labels of the splits train, validation and test."""
    spec = DatasetSpec(name="digits", split_seed=split_seed, validation_size=validation_size)
    digits = load_dataset(spec)
    splits = (digits.train, digits.validation, digits.test)
    return [([_stored(image) for image in split.array[..., 0]], split.labels) for split in splits]


def _stored(image: npt.NDArray[np.uint8]) -> bytes:
    """Scale an image (H, W) to STORED_PIXELS and compress it."""
    return zlib.compress(resize(image[None], STORED_PIXELS).tobytes())
