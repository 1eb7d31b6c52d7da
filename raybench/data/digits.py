"""MNIST: from `RAYBENCH_DATA`, the cache folder, or a download.

Reading IDX files, the format MNIST is published in.

Bilinear scaling of square-pixel images, in numpy.

scikit-learn's 1,797 real handwritten digits, 8x8: needs no download.
"""

import gzip
import importlib.util
import logging
import math
import os
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pooch

from raybench.data.dataset import Array, Dataset, Split, hold_out, num_of
from raybench.data.memory import require_memory
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

_CHUNK = 2**22  # pixels scaled at a time: bounds the float32 copies to some 16 MB


def resize(images: npt.NDArray[np.uint8], size: int | None) -> npt.NDArray[np.uint8]:
    """Scale (N, H, W) images to (N, size, size); None keeps them as they are.

    Bilinear with pixel centres aligned; shrinking averages over the pixels it drops.
    """
    num_images, height, width = images.shape
    if size is None or (height, width) == (size, size):
        return images
    rows, columns = _weights(height, size), _weights(width, size)
    scaled = np.empty((num_images, size, size), np.uint8)
    count = max(1, _CHUNK // (max(size, height) * max(size, width)))
    for start in range(0, num_images, count):
        chunk = images[start : start + count].astype(np.float32)
        scaled[start : start + count] = np.rint(rows @ chunk @ columns.T)
    return scaled


def require_room(num_images: int, size: int | None) -> None:
    """Raise UserError if so many images of `size` pixels squared do not fit into memory."""
    if size is not None:
        require_memory(num_images * size * size, f"dataset.image_size {size}")


def _weights(size_in: int, size_out: int) -> npt.NDArray[np.float32]:
    """Weights (size_out, size_in) of each input pixel in each output pixel; rows sum to 1."""
    scale = size_in / size_out
    centers = (np.arange(size_out) + 0.5) * scale - 0.5
    # The border pixel goes on outside the image, so a centre there is moved to the border.
    centers = np.clip(centers, 0, size_in - 1)
    distances = np.abs(centers[:, None] - np.arange(size_in)[None, :])
    weights = np.maximum(0, 1 - distances / max(1.0, scale))
    weights /= weights.sum(axis=1, keepdims=True)
    # In whole 1/256 every product and sum fits float32's 24 bits exactly, so the pixels are
    # the same whatever order a platform's matrix product adds them in.
    weights = np.rint(weights * 256) / 256
    weights[np.arange(size_out), weights.argmax(axis=1)] += 1 - weights.sum(axis=1)
    return np.asarray(weights, np.float32)


_UINT8 = 8  # the format's code for unsigned bytes


def read_idx(file: Path, *, num_dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in .gz.

    A file that is truncated, too long or of another format is a UserError naming it.
    """
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file} cannot be read ({error}); copy it again.") from error
    # Two zero bytes, type, number of dimensions; each dimension as 4 bytes; the values.
    start = 4 + 4 * num_dimensions
    if content[:4] != bytes([0, 0, _UINT8, num_dimensions]) or len(content) < start:
        raise UserError(
            f"{file} is not an IDX file of bytes with {num_dimensions} dimension(s); copy it again."
        )
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    if len(content) - start != math.prod(shape):
        raise UserError(
            f"{file} is damaged: its header promises {math.prod(shape)} bytes, it holds "
            f"{len(content) - start}; copy it again."
        )
    # A copy, because an array on top of bytes is read-only and torch warns about those.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


Pair = tuple[Array, Array]
"""Images (N, 28, 28) uint8 and their labels (N,) uint8."""

VALIDATION_SIZE = 5000
NPZ = "mnist.npz"
IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
# The file and checksum of keras.datasets.mnist (Keras 3.15).
URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
EXPECTED = (
    f"{NPZ}, or the four files {', '.join(name for pair in IDX_FILES for name in pair)} "
    "(each may end in .gz)"
)


def load_mnist(spec: DatasetSpec) -> Dataset:
    """Return 55,000 training, 5,000 validation and the 10,000 official test images, uint8.

    Images are (size, size, 1). Missing or damaged files, and a failing download, are
    UserErrors that name the file or what to provide.
    """
    pairs = _read()
    require_room(sum(len(images) for images, _ in pairs), spec.image_size)
    rest, test = (Split(images, labels.astype(np.int64)) for images, labels in pairs)
    size = num_of(spec.validation_size, len(rest), typical=VALIDATION_SIZE)
    validation, train = hold_out(rest, size, seed=spec.split_seed, source="mnist")
    # Scaled last, so that no two copies of the large images are held.
    train, validation, test = (
        Split(resize(split.array, spec.image_size)[..., None], split.labels)
        for split in (train, validation, test)
    )
    return Dataset("mnist", 10, train=train, validation=validation, test=test)


def _read() -> list[Pair]:
    """Return the official training pair and the official test pair."""
    folder = os.environ.get("RAYBENCH_DATA")
    if folder:
        pairs = _read_folder(Path(folder)) or _read_folder(Path(folder) / "mnist")
        if pairs is None:
            raise UserError(
                f"RAYBENCH_DATA={folder} holds no MNIST: put {EXPECTED} there or in its folder "
                "mnist, or unset it to download them."
            )
        return pairs
    cache = Path(pooch.os_cache("raybench"))
    return _read_folder(cache) or _read_folder(cache / "mnist") or _read_npz(_download(cache))


def _read_folder(folder: Path) -> list[Pair] | None:
    if (folder / NPZ).is_file():
        return _read_npz(folder / NPZ)
    files = [_find(folder, name) for pair in IDX_FILES for name in pair]
    found = [file for file in files if file is not None]
    if len(found) < len(files):
        return None
    return [_read_idx_pair(found[0], found[1]), _read_idx_pair(found[2], found[3])]


def _find(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def _read_idx_pair(images_file: Path, labels_file: Path) -> Pair:
    images = read_idx(images_file, num_dimensions=3)
    labels = read_idx(labels_file, num_dimensions=1)
    if len(images) != len(labels):
        raise UserError(
            f"{images_file} holds {len(images)} images, but {labels_file} {len(labels)} labels; "
            "copy both files again."
        )
    return images, labels


def _read_npz(file: Path) -> list[Pair]:
    # numpy and zipfile raise half a dozen kinds for a damaged archive; all mean the same here.
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise UserError(f"{file} is not a whole mnist.npz ({error}); copy it again.") from error


def _download(cache: Path) -> Path:
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        downloader = pooch.HTTPDownloader(timeout=30)
        return Path(pooch.retrieve(URL, SHA256, fname=NPZ, path=cache, downloader=downloader))
    except (OSError, ValueError) as error:
        raise UserError(
            f"MNIST could not be downloaded ({type(error).__name__}); set RAYBENCH_DATA to a "
            f"folder that holds {EXPECTED}."
        ) from error


NUM_TEST = 180
NUM_VALIDATION = 360


def load_digits(spec: DatasetSpec) -> Dataset:
    """Return 1,257 training, 360 validation and 180 test images of (size, size, 1), uint8."""
    pixels, digits = _read_digits()
    require_room(len(pixels), spec.image_size)
    # Grey levels are whole numbers from 0 to 16; 8 is half of 16, for rounding.
    images = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 8, 8)
    samples = Split(images, digits.astype(np.int64))
    # The test split is cut first, so it is the same whatever the validation size.
    test, rest = hold_out(samples, NUM_TEST, seed=spec.split_seed, source="digits")
    size = num_of(spec.validation_size, len(rest), typical=NUM_VALIDATION)
    validation, train = hold_out(rest, size, seed=spec.split_seed, source="digits")
    # Scaled last, so that no two copies of the large images are held.
    train, validation, test = (
        Split(resize(split.array, spec.image_size)[..., None], split.labels)
        for split in (train, validation, test)
    )
    return Dataset("digits", 10, train=train, validation=validation, test=test)


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (1797, 64) and labels (1797,).

    Read from scikit-learn's file: importing scikit-learn takes a second in every worker.
    """
    package = importlib.util.find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits as load_sklearn_digits

    pixels, digits = load_sklearn_digits(return_X_y=True)
    return pixels, digits
