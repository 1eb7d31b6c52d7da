"""Where stored datasets lie, and whether there is room for another.

How far a build is: a bar where someone watches, one line where nobody does.

Arrays of a dataset that is being stored, written to a folder beside its place.
"""

import errno
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

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
    return Path(given).expanduser().absolute() if given else _usual()


def _usual() -> Path:
    return Path(pooch.os_cache("raybench")) / "datasets"


def make_store_folder() -> Path:
    """Return the folder, made where it was not there; UserError where it cannot be written to."""
    folder = store_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}, where decoded datasets are kept, cannot be made ({error.strerror}); set "
            f"{VARIABLE} to a folder that can be written to."
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder}, where decoded datasets are kept, cannot be written to; set {VARIABLE} to "
            "another folder."
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


if TYPE_CHECKING:
    from rich.progress import Progress as Bar

MANY_SECONDS = 90


def tell(sentence: str) -> None:
    """Say something of the store, beside a command's own output."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


class Progress:
    """Says what is built, and on a terminal how far it is and how long it will still take."""

    def __init__(self, what: str, total: int, *, place: Path, seconds: float | None = None) -> None:
        """`place`: where it is kept; `seconds`: what it is expected to take."""
        about = "" if seconds is None else f" (about {_in_words(seconds)})"
        self._sentence = f"{what}{about}, kept in {place}."
        self._total = total
        self._lock = threading.Lock()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        """Say what begins."""
        tell(self._sentence)
        if sys.stderr.isatty():
            self._bar = _make_bar()
            self._bar.start()
            self._bar.add_task("", total=self._total)
        return self

    def advance(self, count: int) -> None:
        """Count what is done; from any thread."""
        if self._bar is not None:
            with self._lock:
                self._bar.advance(self._bar.task_ids[0], count)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()


def _make_bar() -> "Bar":
    # Imported here: most processes build nothing, and rich takes a tenth of a second.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)


def _in_words(seconds: float) -> str:
    if seconds < MANY_SECONDS:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"


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
