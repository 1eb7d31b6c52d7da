"""Arrays that are files mapped into memory: their pages are the file's, read when they are used."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.memory import available_bytes

Array = npt.NDArray[Any]

SHARE = 0.5
"""Of the memory at hand: what is larger is read by rows. Such arrays are mapped so that they cannot
be written to, since the system may refuse to promise so much memory to what could be."""


def map_array(file: Path) -> Array:
    """Return the array of an `.npy` file, mapped.

    It can be written to, and what is written stays in this process, so torch takes it without a
    copy and without a warning; a large one can not (`SHARE`).
    """
    is_large = file.stat().st_size > SHARE * available_bytes()
    array: Array = np.load(file, mmap_mode="r" if is_large else "c")
    return array.view(np.ndarray)


def is_mapped(array: Array) -> bool:
    """Whether the array, or what it is a view of, is a mapped file."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            return True
        owner = owner.base
    return isinstance(owner, mmap.mmap)


def is_beyond_memory(array: Array, num_rows: int) -> bool:
    """Whether so many rows of a mapped file had better stay there than be copied into memory."""
    num_bytes = array.nbytes / max(1, len(array)) * num_rows
    return is_mapped(array) and num_bytes > SHARE * available_bytes()
