"""Workloads for scaling studies that decode images one by one, as most users' code does."""

import zlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset, Split
from raybench.data.digits import resize
from raybench.data.load import load_dataset
from raybench.models.base import LayerWorkload
from raybench.models.shipped import cnn7, mnist_large_dense, mnist_small
from raybench.spec.run import DatasetSpec

STORED_PIXELS = 224  # height and width of a compressed picture


class Decoded:
    """Compressed pictures as `OnDemand` inputs, decompressed and scaled for each batch."""

    dtype = np.dtype(np.uint8)

    def __init__(self, stored: list[bytes], image_size: int) -> None:
        self._stored, self._size = stored, image_size
        self.shape = (len(stored), image_size, image_size, 1)

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[np.uint8]:
        """Return the pictures at `rows`, decoded one by one by this thread."""
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows):
            pixels = np.frombuffer(zlib.decompress(self._stored[row]), np.uint8)
            picture = pixels.reshape(1, STORED_PIXELS, STORED_PIXELS)
            found[place, ..., 0] = resize(picture, self._size)[0]
        return found


class Pictures(LayerWorkload):
    """Base class of workloads on digits that are stored as compressed pictures of 224 pixels."""

    num_classes = 10

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the splits of the dataset `digits`, with inputs that are decoded on demand."""
        size = self.input_shape[0]
        train, validation, test = (
            Split(Decoded(stored, size), labels)
            for stored, labels in _compressed(spec.split_seed, spec.validation_size)
        )
        return Dataset(self.name, self.num_classes, train=train, validation=validation, test=test)


class DecodedDigits(Pictures):
    """Network `cnn7` on pictures of 32 pixels."""

    name = "decoded_digits"
    input_shape = (32, 32, 1)
    layers = cnn7(input_shape).layers


class LargeDecodedDigits(Pictures):
    """Network `cnn7` on pictures of 224 pixels, as in the report behind `finetune_lr_schedule`."""

    name = "large_decoded_digits"
    input_shape = (224, 224, 1)
    layers = cnn7(input_shape).layers


class MediumDecodedDigits(Pictures):
    """Network `cnn7` on pictures of 128 pixels."""

    name = "medium_decoded_digits"
    input_shape = (128, 128, 1)
    layers = cnn7(input_shape).layers


class SmallDecodedDigits(Pictures):
    """Network `mnist_small` on pictures of 32 pixels."""

    name = "small_decoded_digits"
    input_shape = (32, 32, 1)
    layers = mnist_small(input_shape).layers


class DenseDecodedDigits(Pictures):
    """Network `mnist_large_dense` on pictures of 28 pixels."""

    name = "dense_decoded_digits"
    input_shape = (28, 28, 1)
    layers = mnist_large_dense(input_shape).layers


Stored = tuple[list[bytes], npt.NDArray[np.int64]]


@lru_cache(maxsize=1)
def _compressed(split_seed: int, validation_size: float | None) -> list[Stored]:
    spec = DatasetSpec(name="digits", split_seed=split_seed, validation_size=validation_size)
    digits = load_dataset(spec)
    splits = (digits.train, digits.validation, digits.test)
    return [([_stored(one) for one in split.array[..., 0]], split.labels) for split in splits]


def _stored(image: npt.NDArray[np.uint8]) -> bytes:
    return zlib.compress(resize(image[None], STORED_PIXELS).tobytes())
