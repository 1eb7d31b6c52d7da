"""Weights that torch wrote, read without torch and without running anything that they hold.

A `.pth` file is a pickle that names its tensors' bytes: in a zip file since torch 1.6, before that
one after the other in one file. Only what such a pickle needs is let through.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.spec.errors import UserError

Arrays = dict[str, npt.NDArray[Any]]

_TYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "BoolStorage": "?",
    "ByteStorage": "u1",
}
"""torch's kinds of storage as numpy's types."""
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""What a file of before torch 1.6 begins with, as a pickle."""


def read_tensors(path: Path) -> Arrays:
    """Return the tensors of a `.safetensors` or `.pth` file by their names.

    UserError for a file that holds something else.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        content = _read_zip(path) if zipfile.is_zipfile(path) else _read_legacy(path)
    except (pickle.UnpicklingError, KeyError, EOFError, ValueError, AttributeError) as error:
        raise not_weights(path, error) from None
    tensors: Arrays = named_tensors(content, path)
    return {name: array.copy() for name, array in tensors.items()}


def named_tensors(content: Any, path: Path) -> Any:
    """Return the state dict in what a file holds: itself, or under a key that many use."""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if isinstance(content, dict):
        tensors = {name: one for name, one in content.items() if hasattr(one, "shape")}
        if tensors:
            return tensors
    raise not_weights(path, ValueError("no tensors by name"))


def not_weights(path: Path, error: Exception) -> UserError:
    """Return the error of a file that holds no weights."""
    kind = type(error).__name__
    return UserError(
        f"weights {path}: is no file of weights (a state dict that torch.save wrote as .pth or "
        f".pt, or .safetensors), and nothing of it was run ({kind}).",
        details=str(error),
    )


def _read_safetensors(path: Path) -> Arrays:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError:
        raise UserError(
            f"weights {path}: safetensors is not installed; run: pip install safetensors."
        ) from None
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise not_weights(path, error) from None


class _Unpickler(pickle.Unpickler):
    """Builds numpy arrays where torch would build tensors; refuses every other name."""

    def __init__(self, file: Any, storage_of: Callable[[Any], npt.NDArray[Any]]) -> None:
        super().__init__(file)
        self._storage_of = storage_of

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if module in ("torch", "torch.storage") and name in _TYPES:
            return np.dtype(_TYPES[name])
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> npt.NDArray[Any]:
        return self._storage_of(pid)


def _rebuild(
    storage: npt.NDArray[Any], offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> npt.NDArray[Any]:
    """Return the part of a storage that a tensor is of, a view: it may be filled later."""
    last = offset + sum((number - 1) * step for number, step in zip(size, stride, strict=True))
    if min(size, default=1) and not 0 <= last < len(storage):
        raise ValueError("a tensor beyond its bytes")
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps)


def _read_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (pickled,) = [name for name in names if name.endswith("/data.pkl")]
        folder = pickled.removesuffix("data.pkl")

        def storage_of(pid: Any) -> npt.NDArray[Any]:
            _, kind, key, _, _ = pid
            return np.frombuffer(archive.read(f"{folder}data/{key}"), kind)

        return _Unpickler(io.BytesIO(archive.read(pickled)), storage_of).load()


def _read_legacy(path: Path) -> Any:
    """Read magic number, version, machine, content, keys; then each storage: its length, bytes."""
    storages: dict[str, npt.NDArray[Any]] = {}

    def storage_of(pid: Any) -> npt.NDArray[Any]:
        _, kind, key, _, number, *_ = pid
        return storages.setdefault(key, np.empty(number, kind))

    with path.open("rb") as file:
        parts = [_Unpickler(file, storage_of).load() for _ in range(5)]
        if parts[0] != LEGACY_MAGIC:
            raise ValueError("no file of torch's")
        for key in parts[4]:
            number = int(np.fromfile(file, "<i8", 1)[0])
            found = np.fromfile(file, storages[key].dtype, number)
            storages[key][:] = found
    return parts[3]
