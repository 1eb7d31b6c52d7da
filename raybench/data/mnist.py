"""MNIST: from `RAYBENCH_DATA`, the cache folder, or a download."""

import logging
import os
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pooch

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Array, Dataset, Split, hold_out, num_of
from raybench.data.idx import read_idx
from raybench.data.resize import require_room, resize

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
    size = num_of(spec.validation_size, len(rest), usual=VALIDATION_SIZE)
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
