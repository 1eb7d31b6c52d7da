"""Files of well-known sets, as their libraries keep them; read without the libraries."""

import io
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.data.idx import read_idx
from raybench.data.sources.arrays import RawSet, RawSplit

Array = npt.NDArray[Any]
IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_ARRAYS_ONLY = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class ArraysOnly(pickle.Unpickler):
    """Reads arrays, texts and numbers; whatever else a file would have run is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what makes an array."""
        if (module, name) not in _ARRAYS_ONLY:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no set needs")
        return super().find_class(module, name)


def find_idx(folder: Path) -> list[Path] | None:
    """Return the four files of a set like MNIST, gzipped or not; None where one is missing."""
    found = [
        next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
        for name in IDX
    ]
    files = [path for path in found if path is not None]
    return files if len(files) == len(IDX) else None


def read_idx_set(files: Sequence[Path]) -> RawSet:
    """Read the files that `find_idx` found."""
    arrays = [
        read_idx(file, num_dimensions=dimensions)
        for file, dimensions in zip(files, (3, 1, 3, 1), strict=True)
    ]
    splits = {"train": RawSplit(arrays[0], arrays[1]), "test": RawSplit(arrays[2], arrays[3])}
    return RawSet(splits)


def cifar_files(folder: Path, *, fine: bool) -> list[Path]:
    """Return the files of CIFAR-100 (`fine`) or CIFAR-10 in their folder; the last is of names."""
    if fine:
        return [folder / name for name in ("train", "test", "meta")]
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return [folder / name for name in (*batches, "test_batch", "batches.meta")]


def read_cifar(files: Sequence[Path], *, fine: bool) -> RawSet:
    """Read the files of CIFAR, whose last but one is the test split."""
    label, names = ("fine_labels", "fine_label_names") if fine else ("labels", "label_names")
    *batches, test, about = [_read_pickle(file) for file in files]
    class_names = tuple(
        one.decode() if isinstance(one, bytes) else str(one)
        for one in _item(about, names, files[-1])
    )

    def split(parts: Sequence[dict[Any, Any]], found: Sequence[Path]) -> RawSplit:
        pixels = [_item(one, "data", file) for one, file in zip(parts, found, strict=True)]
        labels = [
            np.asarray(_item(one, label, file)) for one, file in zip(parts, found, strict=True)
        ]
        images = np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return RawSplit(images, np.concatenate(labels).astype(np.int64))

    splits = {"train": split(batches, files[:-2]), "test": split([test], files[-2:-1])}
    return RawSet(splits, class_names)


def read_object_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a library's npz, lists of several lengths among them."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                content = io.BytesIO(archive.read(member))
                arrays[member.removesuffix(".npy")] = _read_array(content)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise UserError(f"{path} is no whole set ({error}); fetch it again.") from error
    return arrays


def _read_array(content: io.BytesIO) -> Array:
    version = np.lib.format.read_magic(content)
    read_head = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    _, _, dtype = read_head(content)
    if not dtype.hasobject:
        content.seek(0)
        array: Array = np.lib.format.read_array(content, allow_pickle=False)
        return array
    found: Array = ArraysOnly(content).load()
    return found


def _read_pickle(file: Path) -> dict[Any, Any]:
    try:
        with file.open("rb") as opened:
            found = ArraysOnly(opened, encoding="bytes").load()
    except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise UserError(f"{file} cannot be read ({error}); fetch it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is no file of CIFAR; fetch it again.")
    return found


def _item(content: dict[Any, Any], name: str, file: Path) -> Any:
    for key in (name, name.encode()):
        if key in content:
            return content[key]
    raise UserError(f"{file} has no {name}, so it is no file of CIFAR; fetch it again.")
