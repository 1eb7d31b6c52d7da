"""Where stored datasets lie, whether there is room for another, and arrays written there."""

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pooch

from raybench.data.dataset import Array
from raybench.spec.errors import UserError

VARIABLE = "RAYBENCH_CACHE"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LEFT_FREE = 64 * 2**20
"""Bytes of the disk that are left to others."""


def store_folder() -> Path:
    """Return the folder of all stored datasets: `$RAYBENCH_CACHE`, else in the user's cache."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return Path(pooch.os_cache("raybench")) / "datasets"


def make_store_folder() -> Path:
    """Return the folder, made where it was not there; UserError where it cannot be written to."""
    folder, why = store_folder(), "it cannot be written to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder}, where decoded datasets are kept, cannot be used ({why}); set {VARIABLE} "
            "to a folder that can be written to."
        )
    return folder


def require_room(num_bytes: int, what: str) -> None:
    """Raise UserError if the store's disk has no room for `num_bytes`, before they are written."""
    make_store_folder()
    free = free_bytes()
    if num_bytes + LEFT_FREE > free:
        raise no_room(what, num_bytes)


def free_bytes() -> int:
    """Return what the store's disk has left."""
    return shutil.disk_usage(store_folder()).free


def no_room(what: str, num_bytes: int | None = None) -> UserError:
    """Return the error that says how much is needed, how much there is, and what to do."""
    folder = store_folder()
    needed = "more room" if num_bytes is None else size_in_words(num_bytes)
    free = size_in_words(free_bytes())
    return UserError(
        f"{what} needs {needed} in {folder}, and its disk has {free} left; remove stored datasets "
        f"(`raybench data` lists them), or set {VARIABLE} to a folder on another disk."
    )


def size_in_words(num_bytes: float) -> str:
    """Return a number of bytes with the unit it is read best in: 1.5 GB."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def tell(sentence: str) -> None:
    """Say something of the store, beside a command's own output."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


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
        if hasattr(os, "posix_fallocate"):  # not on macOS
            try:
                with file.open("r+b") as opened:
                    os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise no_room(self.what, num_bytes) from error
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

    @contextlib.contextmanager
    def progress(
        self, doing: str, total: int, *, seconds: float | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Say what is done ("decoding 50,000 images"), and on a terminal how far it is.

        Yields what counts what is done, from any thread; `seconds`: what it is expected to take.
        """
        # Imported here: most processes build nothing, and rich takes a tenth of a second.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        about = "" if seconds is None else f" (about {_in_words(seconds)})"
        tell(f"{self.what}: {doing} once{about}, kept in {self._folder.parent}.")
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        ) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)


def _in_words(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"
