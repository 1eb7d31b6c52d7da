"""Pictures that are decoded one by one when a batch asks for them, as most users' are."""

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
from raybench.models.shipped import cnn7, mnist_large_dense, mnist_small
from raybench.spec.run import DatasetSpec

STORED_PIXELS = 224  # of a picture as it is stored, height and width


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
            pixels = np.frombuffer(zlib.decompress(self._stored[row]), np.uint8)
            picture = pixels.reshape(1, STORED_PIXELS, STORED_PIXELS)
            found[place, ..., 0] = resize(picture, self._size)[0]
        return found


class Pictures(LayerWorkload):
    """Handwritten digits that are stored as compressed pictures of 224 pixels."""

    num_classes = 10

    def __init_subclass__(
        cls, *, pixels: int = 32, network: Callable[[Shape, int], LayerWorkload] = cnn7
    ) -> None:
        """Give a class the `network` for pictures scaled to so many `pixels`."""
        cls.input_shape = (pixels, pixels, 1)
        cls.layers = network(cls.input_shape, cls.num_classes).layers

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the splits of `digits`, on demand."""
        size = self.input_shape[0]
        train, validation, test = (
            Split(Decoded(stored, size), labels)
            for stored, labels in _compressed(spec.split_seed, spec.validation_size)
        )
        return Dataset(self.name, self.num_classes, train=train, validation=validation, test=test)


class DecodedDigits(Pictures):
    """`cnn7` at 32 pixels."""

    name = "decoded_digits"


class LargeDecodedDigits(Pictures, pixels=224):
    """`cnn7` at the size at which MobileNetV2 was fine-tuned."""

    name = "large_decoded_digits"


class MediumDecodedDigits(Pictures, pixels=128):
    """`cnn7` at 128 pixels."""

    name = "medium_decoded_digits"


class SmallDecodedDigits(Pictures, network=mnist_small):
    """`mnist_small` at 32 pixels."""

    name = "small_decoded_digits"


class DenseDecodedDigits(Pictures, pixels=28, network=mnist_large_dense):
    """`mnist_large_dense` at 28 pixels."""

    name = "dense_decoded_digits"


Stored = tuple[list[bytes], npt.NDArray[np.int64]]


@lru_cache(maxsize=1)
def _compressed(split_seed: int, validation_size: float | None) -> list[Stored]:
    spec = DatasetSpec(name="digits", split_seed=split_seed, validation_size=validation_size)
    digits = load_dataset(spec)
    splits = (digits.train, digits.validation, digits.test)
    return [([_stored(one) for one in split.array[..., 0]], split.labels) for split in splits]


def _stored(image: npt.NDArray[np.uint8]) -> bytes:
    return zlib.compress(resize(image[None], STORED_PIXELS).tobytes())
