"""Handwritten digits: MNIST (from disk, or downloaded once) and the 1,797 of scikit-learn."""

import contextlib
import gzip
import importlib.util
import logging
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pooch

from raybench.data.dataset import Array, Dataset, Split, hold_out, num_of
from raybench.data.memory import require_memory
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import DatasetSpec

PIXELS_AT_ONCE = 2**22  # pixels scaled at a time: bounds the float32 copies to some 16 MB
NPZ = "mnist.npz"
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# The file and checksum of keras.datasets.mnist (Keras 3.15).
URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
EXPECTED = f"{NPZ}, or the four files {', '.join(IDX_FILES)} (each may end in .gz)"
NUM_TEST = 180  # of scikit-learn's digits; MNIST's test split is the official one
NUM_VALIDATION = {"mnist": 5000, "digits": 360}


def resize(images: npt.NDArray[np.uint8], size: int | None) -> npt.NDArray[np.uint8]:
    """Scale (N, H, W) images to (N, size, size); None keeps their size.

    Bilinear with aligned pixel centers; shrinking averages over all pixels. The same bytes on any
    platform.
    """
    num_images, height, width = images.shape
    if size is None or (height, width) == (size, size):
        return images
    rows, columns = _weights(height, size), _weights(width, size)
    scaled = np.empty((num_images, size, size), np.uint8)
    count = max(1, PIXELS_AT_ONCE // (max(size, height) * max(size, width)))
    for start in range(0, num_images, count):
        chunk = images[start : start + count].astype(np.float32)
        scaled[start : start + count] = np.rint(rows @ chunk @ columns.T)
    return scaled


def _weights(size_in: int, size_out: int) -> npt.NDArray[np.float32]:
    """Return weights (size_out, size_in) of input pixels in output pixels; rows sum to 1."""
    scale = size_in / size_out
    centers = (np.arange(size_out) + 0.5) * scale - 0.5
    # The border pixel goes on outside the image, so a center there is moved to the border.
    centers = np.clip(centers, 0, size_in - 1)
    distances = np.abs(centers[:, None] - np.arange(size_in)[None, :])
    weights = np.maximum(0, 1 - distances / max(1.0, scale))
    weights /= weights.sum(axis=1, keepdims=True)
    # In whole 1/256 every product and sum fits float32's 24 bits exactly, so the pixels are
    # the same regardless of the order in which a platform's matrix product adds them.
    weights = np.rint(weights * 256) / 256
    weights[np.arange(size_out), weights.argmax(axis=1)] += 1 - weights.sum(axis=1)
    return np.asarray(weights, np.float32)


def _cut_and_scale(rest: Split, test: Split, spec: DatasetSpec) -> Dataset:
    """Return the dataset of images (N, H, W), with a validation split that the seed holds out."""
    if spec.image_size is not None:
        num_bytes = (len(rest) + len(test)) * spec.image_size**2
        require_memory(num_bytes, f"dataset.image_size {spec.image_size}")
    size = num_of(spec.validation_size, len(rest), typical=NUM_VALIDATION[spec.name])
    validation, train = hold_out(rest, size, seed=spec.split_seed, source=spec.name)
    # Scaled last, so that no two copies of the large images are held.
    train, validation, test = (
        Split(resize(split.array, spec.image_size)[..., None], split.labels)
        for split in (train, validation, test)
    )
    return Dataset(spec.name, 10, train, validation, test)


def load_digits(spec: DatasetSpec) -> Dataset:
    """Return 1,257 training, 360 validation and 180 test images of (size, size, 1), uint8."""
    # Read from scikit-learn's file: importing scikit-learn takes a second in every worker.
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    file = Path(str(package.origin)).with_name("datasets") / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    pixels, digits = table[:, :-1], table[:, -1]
    # Grey levels are whole numbers from 0 to 16; 8 is half of 16, for rounding.
    images = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 8, 8)
    samples = Split(images, digits.astype(np.int64))
    # The test split is cut first, so it does not depend on the validation size.
    test, rest = hold_out(samples, NUM_TEST, seed=spec.split_seed, source="digits")
    return _cut_and_scale(rest, test, spec)


def load_mnist(spec: DatasetSpec) -> Dataset:
    """Return 55,000 training, 5,000 validation and the 10,000 official test images, uint8.

    Images are (size, size, 1).

    Raises:
        UserError: Files are missing or damaged, or the download fails.
    """
    images, labels, others, theirs = _read_mnist()
    rest, test = Split(images, labels.astype(np.int64)), Split(others, theirs.astype(np.int64))
    return _cut_and_scale(rest, test, spec)


def _read_mnist() -> list[Array]:
    """Return images and labels of the official training split, then of the official test split."""
    given, cache = os.environ.get("RAYBENCH_DATA"), Path(pooch.os_cache("raybench"))
    folder = Path(given) if given else cache
    for place in (folder, folder / "mnist"):
        if (place / NPZ).is_file():
            return read_mnist_npz(place / NPZ)
        files = find_files(place, [f"{name}*" for name in IDX_FILES])
        if files is not None:
            return read_idx_files(files)
    if given:
        raise UserError(
            f"RAYBENCH_DATA={given} holds no MNIST: put {EXPECTED} there or in its folder mnist, "
            "or unset it to download them.",
            ErrorCode.NOT_FOUND,
        )
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        downloader = pooch.HTTPDownloader(timeout=30)
        file = pooch.retrieve(URL, SHA256, fname=NPZ, path=cache, downloader=downloader)
    except (OSError, ValueError) as error:
        raise UserError(
            f"MNIST could not be downloaded ({type(error).__name__}); set RAYBENCH_DATA to a "
            f"folder that holds {EXPECTED}.",
            ErrorCode.NOT_FOUND,
        ) from error
    return read_mnist_npz(Path(file))


@contextlib.contextmanager
def whole_file(file: Path, advice: str) -> Iterator[None]:
    """Raise a UserError, which ends in `advice`, for what libraries raise for a damaged file."""
    try:
        yield
    except UserError:
        raise
    except (
        *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError),
        *(BadZipFile, zlib.error, UnpicklingError),
    ) as error:
        raise UserError(
            f"{file} cannot be read whole ({error}); {advice}.", ErrorCode.INVALID_FILE
        ) from error


def read_mnist_npz(file: Path, advice: str = "copy it again") -> list[Array]:
    """Return images and labels of the training split, then of the test split."""
    with whole_file(file, advice), np.load(file, allow_pickle=False) as arrays:
        return [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]


def find_files(folder: Path, names: Sequence[str]) -> list[Path] | None:
    """Return the files of a folder, or None if one is missing; names that end in * may be .gz."""
    found = []
    for name in names:
        ends = ("", ".gz") if name.endswith("*") else ("",)
        files = (folder / f"{name.rstrip('*')}{end}" for end in ends)
        found += [file for file in files if file.is_file()][:1]
    return found if len(found) == len(names) else None


def read_idx_files(files: Sequence[Path]) -> list[Array]:
    """Return images and labels of the training split, then of the test split.

    Raises:
        UserError: A file is truncated, too long or of another format.
    """
    arrays: list[Array] = []
    for images, labels in (files[:2], files[2:]):
        pair = [_read_idx(images, num_dimensions=3), _read_idx(labels, num_dimensions=1)]
        if len(pair[0]) != len(pair[1]):
            raise UserError(
                f"{images} holds {len(pair[0])} images, but {labels} {len(pair[1])} labels; copy "
                "both again.",
                ErrorCode.INVALID_DATA,
            )
        arrays += pair
    return arrays


def _read_idx(file: Path, *, num_dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, the format of MNIST, gzipped if its name ends in .gz."""
    with whole_file(file, "copy it again"):
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    # Two zero bytes, type (8: bytes), number of dimensions; each dimension in 4 bytes; the values.
    start = 4 + 4 * num_dimensions
    shape = tuple(int(size) for size in np.frombuffer(content[4:start].ljust(start - 4), ">u4"))
    if content[:4] != bytes([0, 0, 8, num_dimensions]) or len(content) - start != math.prod(shape):
        raise UserError(
            f"{file} is no whole IDX file of bytes with {num_dimensions} dimension(s); copy it "
            "again.",
            ErrorCode.INVALID_FILE,
        )
    # A copy, because an array on top of bytes is read-only and torch warns about those.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
