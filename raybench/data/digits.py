"""Datasets of handwritten digits: MNIST (from disk, or downloaded once) and the 1,797 digits of
scikit-learn."""

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

from raybench.data.dataset import Array, Dataset, Split, num_of
from raybench.data.memory import require_memory
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import DatasetSpec

PIXELS_AT_ONCE = 2**22  # pixels scaled at a time, to limit the float32 copies to about 16 MB
NPZ = "mnist.npz"
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# URL and checksum are those of keras.datasets.mnist (Keras 3.15).
URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
EXPECTED = f"{NPZ}, or the four files {', '.join(IDX_FILES)} (each may end in .gz)"
NUM_TEST = 180  # test samples of scikit-learn's digits; MNIST has an official test split
NUM_VALIDATION = {"mnist": 5000, "digits": 360}  # default numbers of validation samples


def resize(images: npt.NDArray[np.uint8], size: int | None) -> npt.NDArray[np.uint8]:
    """Scale images (N, H, W) to (N, size, size); return them unchanged if `size` is None.

    Interpolation is bilinear, with pixel centers at half-integers, and with antialiasing if images
    are scaled down. The result is byte-identical on all platforms.
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
    """Return a matrix (size_out, size_in) of weights that scales pixels along one axis."""
    scale = size_in / size_out
    centers = (np.arange(size_out) + 0.5) * scale - 0.5
    # Beyond its border, the image repeats the border pixels, so centers are clipped to the border.
    centers = np.clip(centers, 0, size_in - 1)
    distances = np.abs(centers[:, None] - np.arange(size_in)[None, :])
    weights = np.maximum(0, 1 - distances / max(1.0, scale))
    weights /= weights.sum(axis=1, keepdims=True)
    # With weights that are multiples of 1/256, every product and sum is exact in float32 (24 bits),
    # so the pixels do not depend on the order in which a matrix product adds them.
    weights = np.rint(weights * 256) / 256
    weights[np.arange(size_out), weights.argmax(axis=1)] += 1 - weights.sum(axis=1)
    return np.asarray(weights, np.float32)


def _hold_out(samples: Split, size: int, *, seed: int, source: str) -> tuple[Split, Split]:
    """Split samples at random into `size` held-out samples and the remaining samples.

    Raises:
        UserError: No samples remain to train on; `source` names the data in the message.
    """
    if size >= len(samples):
        raise UserError(
            f"dataset.validation_size {size} leaves no sample of {source} to train on; choose a "
            "smaller size.",
            ErrorCode.TOO_FEW,
        )
    order = np.random.default_rng(seed).permutation(len(samples))
    return samples.take(order[:size]), samples.take(order[size:])


def _cut_and_scale(rest: Split, test: Split, spec: DatasetSpec) -> Dataset:
    """Cut the validation split from `rest` at random, and scale all images (N, H, W)."""
    if spec.image_size is not None:
        num_bytes = (len(rest) + len(test)) * spec.image_size**2
        require_memory(num_bytes, f"dataset.image_size {spec.image_size}")
    size = num_of(spec.validation_size, len(rest), typical=NUM_VALIDATION[spec.name])
    validation, train = _hold_out(rest, size, seed=spec.split_seed, source=spec.name)
    # Images are scaled last, so that there are never two copies of the large images in memory.
    train, validation, test = (
        Split(resize(split.array, spec.image_size)[..., None], split.labels)
        for split in (train, validation, test)
    )
    return Dataset(spec.name, 10, train, validation, test)


def load_digits(spec: DatasetSpec) -> Dataset:
    """Return the 1,797 digits of scikit-learn as uint8 images (size, size, 1).

    The size is `image_size` or, by default, 8. By default, the training split has 1,257 images, the
    validation split 360 and the test split 180.
    """
    # The file is read directly, because importing scikit-learn takes a second in every worker.
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    file = Path(str(package.origin)).with_name("datasets") / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    pixels, digits = table[:, :-1], table[:, -1]
    # Gray levels are integers from 0 to 16; adding 8, half of 16, rounds the quotient.
    images = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 8, 8)
    samples = Split(images, digits.astype(np.int64))
    # The test split is cut first, so it does not depend on the validation size.
    test, rest = _hold_out(samples, NUM_TEST, seed=spec.split_seed, source="digits")
    return _cut_and_scale(rest, test, spec)


def load_mnist(spec: DatasetSpec) -> Dataset:
    """Return MNIST as uint8 images (size, size, 1).

    The size is `image_size` or, by default, 28. The test split has the 10,000 official test images.
    By default, the training split has 55,000 images and the validation split 5,000.

    Raises:
        UserError: Files are missing or damaged, or the download fails.
    """
    images, labels, test_images, test_labels = _read_mnist()
    rest = Split(images, labels.astype(np.int64))
    test = Split(test_images, test_labels.astype(np.int64))
    return _cut_and_scale(rest, test, spec)


def _read_mnist() -> list[Array]:
    """Read MNIST from this machine, or download it.

    Returns:
        Four arrays: the official training images, training labels, test images and test labels.
    """
    given, cache = os.environ.get("RAYBENCH_DATA"), Path(pooch.os_cache("raybench"))
    folder = Path(given) if given else cache
    for place in (folder, folder / "mnist"):
        if (place / NPZ).is_file():
            return read_mnist_npz(place / NPZ)
        files = find_complete_set(place, [f"{name}*" for name in IDX_FILES])
        if files is not None:
            return read_idx_files(files)
    if given:
        raise UserError(
            f"RAYBENCH_DATA={given} does not contain MNIST: put {EXPECTED} there or in its folder "
            "mnist, or unset RAYBENCH_DATA to download MNIST.",
            ErrorCode.NOT_FOUND,
        )
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        downloader = pooch.HTTPDownloader(timeout=30)
        file = pooch.retrieve(URL, SHA256, fname=NPZ, path=cache, downloader=downloader)
    except (OSError, ValueError) as error:
        raise UserError(
            f"MNIST could not be downloaded ({type(error).__name__}); set RAYBENCH_DATA to a "
            f"folder that contains {EXPECTED}.",
            ErrorCode.NOT_FOUND,
        ) from error
    return read_mnist_npz(Path(file))


@contextlib.contextmanager
def damaged_file_errors(file: Path) -> Iterator[None]:
    """Context manager that turns the errors that libraries raise for a damaged file into a
    UserError that names the file."""
    try:
        yield
    except UserError:
        raise
    except (
        *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError),
        *(BadZipFile, zlib.error, UnpicklingError),
    ) as error:
        raise UserError(
            f"{file} is damaged ({error}); copy or save it again.", ErrorCode.INVALID_FILE
        ) from error


def read_mnist_npz(file: Path) -> list[Array]:
    """Read MNIST from an `.npz` file.

    Returns:
        Four arrays: training images, training labels, test images and test labels.
    """
    with damaged_file_errors(file), np.load(file, allow_pickle=False) as arrays:
        return [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]


def find_complete_set(folder: Path, names: Sequence[str]) -> list[Path] | None:
    """Return the paths of the files with the given names in a folder; None if a file is missing.

    If a name ends in `*`, the file may also have the suffix `.gz`.
    """
    paths = []
    for name in names:
        suffixes = ("", ".gz") if name.endswith("*") else ("",)
        candidates = (folder / f"{name.rstrip('*')}{suffix}" for suffix in suffixes)
        paths += [path for path in candidates if path.is_file()][:1]
    return paths if len(paths) == len(names) else None


def read_idx_files(files: Sequence[Path]) -> list[Array]:
    """Read images and labels from IDX files, the format of MNIST.

    Args:
        files: Four files: training images, training labels, test images and test labels.

    Returns:
        Four arrays in the same order.

    Raises:
        UserError: A file is truncated, too long or in another format.
    """
    arrays: list[Array] = []
    for images, labels in (files[:2], files[2:]):
        pair = [_read_idx(images, num_dimensions=3), _read_idx(labels, num_dimensions=1)]
        if len(pair[0]) != len(pair[1]):
            raise UserError(
                f"{images} has {len(pair[0])} images, but {labels} has {len(pair[1])} labels; copy "
                "both again.",
                ErrorCode.INVALID_DATA,
            )
        arrays += pair
    return arrays


def _read_idx(file: Path, *, num_dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an array of unsigned bytes from an IDX file (MNIST's format), which may be gzipped."""
    with damaged_file_errors(file):
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    # Format: two zero bytes, the type (8 is uint8), the number of dimensions, each dimension in 4
    # bytes, then the values.
    start = 4 + 4 * num_dimensions
    shape = tuple(int(size) for size in np.frombuffer(content[4:start].ljust(start - 4), ">u4"))
    if content[:4] != bytes([0, 0, 8, num_dimensions]) or len(content) - start != math.prod(shape):
        raise UserError(
            f"{file} is not a complete IDX file of bytes with {num_dimensions} dimension(s); copy "
            "it again.",
            ErrorCode.INVALID_FILE,
        )
    # Copied, because an array that shares the memory of `bytes` is read-only, and torch would warn.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
