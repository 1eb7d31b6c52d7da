"""Pictures that are decoded one by one when a batch asks for them, as most users' are."""

import zlib
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset, Split
from raybench.data.digits import resize
from raybench.data.load import load_dataset
from raybench.models.base import LayerWorkload
from raybench.models.layers import Layer, Shape
from raybench.models.shipped import cnn7, mnist_large_dense, mnist_small
from raybench.spec.run import DatasetSpec

STORED_PIXELS = 224
"""Of a picture as it is stored, height and width."""


class Decoded:
    """Compressed pictures as the inputs of a split: decompressed and scaled for each batch."""

    dtype = np.dtype(np.uint8)

    def __init__(self, stored: list[bytes], image_size: int) -> None:
        self._stored, self._size = stored, image_size
        self.shape = (len(stored), image_size, image_size, 1)

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[np.uint8]:
        """Return the pictures at `rows`, decoded in this thread, one after the other."""
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows):
            found[place, ..., 0] = resize(_decompressed(self._stored[row]), self._size)[0]
        return found


class DecodedDigits(LayerWorkload):
    """`cnn7` on handwritten digits that are stored as compressed pictures of 224 pixels."""

    name = "decoded_digits"
    pixels: ClassVar[int] = 32
    input_shape: Shape = (32, 32, 1)
    num_classes = 10
    layers: tuple[Layer, ...] = cnn7((32, 32, 1), 10).layers

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the splits of `digits`, on demand."""
        train, validation, test = _compressed(spec.split_seed, spec.validation_size)
        size = self.pixels
        return Dataset(
            self.name,
            self.num_classes,
            train=Split(Decoded(train[0], size), train[1]),
            validation=Split(Decoded(validation[0], size), validation[1]),
            test=Split(Decoded(test[0], size), test[1]),
        )


class LargeDecodedDigits(DecodedDigits):
    """The same at 224 pixels: the size at which MobileNetV2 was fine-tuned."""

    name = "large_decoded_digits"
    pixels: ClassVar[int] = 224
    input_shape: Shape = (224, 224, 1)
    layers: tuple[Layer, ...] = cnn7((224, 224, 1), 10).layers


class MediumDecodedDigits(DecodedDigits):
    """The same at 128 pixels."""

    name = "medium_decoded_digits"
    pixels: ClassVar[int] = 128
    input_shape: Shape = (128, 128, 1)
    layers: tuple[Layer, ...] = cnn7((128, 128, 1), 10).layers


class SmallDecodedDigits(DecodedDigits):
    """`mnist_small` on the same pictures."""

    name = "small_decoded_digits"
    layers: tuple[Layer, ...] = mnist_small((32, 32, 1), 10).layers


class DenseDecodedDigits(DecodedDigits):
    """`mnist_large_dense` on the same pictures, scaled to 28 pixels."""

    name = "dense_decoded_digits"
    pixels: ClassVar[int] = 28
    input_shape: Shape = (28, 28, 1)
    layers: tuple[Layer, ...] = mnist_large_dense((28, 28, 1), 10).layers


Stored = tuple[list[bytes], npt.NDArray[np.int64]]


@lru_cache(maxsize=1)
def _compressed(split_seed: int, validation_size: int | None) -> tuple[Stored, Stored, Stored]:
    digits = load_dataset(
        DatasetSpec(name="digits", split_seed=split_seed, validation_size=validation_size)
    )
    train, validation, test = (
        ([_stored(image) for image in split.array[..., 0]], split.labels)
        for split in (digits.train, digits.validation, digits.test)
    )
    return train, validation, test


def _stored(image: npt.NDArray[np.uint8]) -> bytes:
    return zlib.compress(resize(image[None], STORED_PIXELS).tobytes())


def _decompressed(content: bytes) -> npt.NDArray[np.uint8]:
    pixels = np.frombuffer(zlib.decompress(content), np.uint8)
    return pixels.reshape(1, STORED_PIXELS, STORED_PIXELS)
