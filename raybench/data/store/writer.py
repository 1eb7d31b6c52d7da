"""Arrays of a dataset that is being stored, written to a folder beside its place."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.store.place import NO_ROOM, no_room, require_room
from raybench.data.store.progress import Progress

Array = npt.NDArray[Any]
_ZEROS = 2**24  # bytes written at once where a file system reserves nothing


class Writer:
    """What a loader gets to write its arrays with. What it writes is kept as a whole or not."""

    def __init__(self, folder: Path, what: str) -> None:
        """`folder`: for what is not finished yet; `what` begins sentences: 'dataset csv'."""
        self._folder, self.what = folder, what

    def array(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> "np.memmap[Any, Any]":
        """Return a new array of zeros that is a file: write to it, in any order.

        Its room on the disk is taken at once (UserError where there is none), so that no write
        can fail later. Pages written to can be given back to the disk: it may be larger than
        memory.
        """
        shape = tuple(int(size) for size in shape)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        require_room(num_bytes, self.what)
        file = self.file(name)
        made = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        self._reserve(file, made.offset)
        return made

    def save(self, name: str, array: Array) -> None:
        """Write an array that is in memory; one that `array` has made is there already."""
        if isinstance(array, np.memmap) and Path(str(array.filename)) == self.file(name).resolve():
            return
        require_room(array.nbytes, self.what)
        try:
            np.save(self.file(name), np.ascontiguousarray(array), allow_pickle=False)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise no_room(self.what, array.nbytes) from error

    def file(self, name: str) -> Path:
        """Return the file of an array."""
        return self._folder / f"{name}.npy"

    def progress(self, doing: str, total: int, *, seconds: float | None = None) -> Progress:
        """Return what shows how far `doing` ("decoding 50,000 images") is: a context manager whose
        `advance(count)` is called, from any thread. `seconds`: what it is expected to take."""
        return Progress(
            f"{self.what}: {doing} once", total, place=self._folder.parent, seconds=seconds
        )

    def _reserve(self, file: Path, begin: int) -> None:
        """Take the room of a file on the disk; its bytes from `begin` are zeros."""
        size = file.stat().st_size
        try:
            with file.open("r+b") as opened:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(opened.fileno(), 0, size)
                    return
                opened.seek(begin)  # macOS has none: what is written is there
                for start in range(begin, size, _ZEROS):
                    opened.write(bytes(min(_ZEROS, size - start)))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise no_room(self.what, size) from error
