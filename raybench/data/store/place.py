"""Where stored datasets lie, and whether there is room for another."""

import errno
import os
import shutil
from pathlib import Path

import pooch

from raybench.core.errors import UserError

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
