"""Arrays that are files mapped into memory: their pages are the file's, read when they are used."""

import mmap
from pathlib import Path

import numpy as np

from raybench.data.memory import available_bytes
from raybench.data.on_demand import Array

SHARE = 0.5
"""Of the memory at hand: arrays beyond it are mapped so that they cannot be written to, since the
system may refuse to promise so much memory to what could be."""


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
