"""Sets that torchvision has downloaded: `set: CIFAR10`, read from its files, without torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset
from raybench.data.sources.arrays import RawSet, RawSplit
from raybench.data.sources.library_set import LibrarySet, load_library_set
from raybench.data.sources.set_files import cifar_files, find_idx, read_cifar, read_idx_set

FOLDERS = ("data", "datasets", "~/data", "~/datasets")
"""torchvision has no folder of its own: these are what its examples and users take as `root`."""


def load_torchvision(spec: DatasetSpec) -> Dataset:
    """Return a set of torchvision, which was downloaded before; `path` is its `root`."""
    folders = [Path(folder).expanduser() for folder in FOLDERS]
    fetch = f"torchvision.datasets.{spec.set}(ROOT, download=True)"
    return load_library_set(spec, SETS, folders, fetch=fetch)


def _idx(name: str) -> LibrarySet:
    return LibrarySet(
        lambda folder: find_idx(folder / name / "raw"), lambda files, spec: read_idx_set(files)
    )


def _cifar(folder_name: str, *, fine: bool) -> LibrarySet:
    return LibrarySet(
        lambda folder: cifar_files(folder / folder_name, fine=fine),
        lambda files, spec: read_cifar(files, fine=fine),
    )


def _read_svhn(files: Sequence[Path], spec: DatasetSpec) -> RawSet:
    from scipy.io import loadmat  # takes a quarter of a second

    splits = {}
    for part, file in zip(("train", "test"), files, strict=True):
        try:
            content = loadmat(file)
            images, labels = content["X"], content["y"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{file} is no whole file of SVHN ({error}); fetch it again."
            ) from error
        # (32, 32, 3, N) in the file; a zero is written as class 10.
        splits[part] = RawSplit(images.transpose(3, 0, 1, 2), labels.ravel().astype(np.int64) % 10)
    return RawSet(splits)


SETS = {
    "MNIST": _idx("MNIST"),
    "FashionMNIST": _idx("FashionMNIST"),
    "KMNIST": _idx("KMNIST"),
    "CIFAR10": _cifar("cifar-10-batches-py", fine=False),
    "CIFAR100": _cifar("cifar-100-python", fine=True),
    "SVHN": LibrarySet(
        lambda folder: [folder / "train_32x32.mat", folder / "test_32x32.mat"], _read_svhn
    ),
}
