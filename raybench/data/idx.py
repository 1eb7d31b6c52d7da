"""Reading IDX files, the format MNIST is published in."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError

_UINT8 = 8  # the format's code for unsigned bytes


def read_idx(file: Path, *, num_dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in .gz.

    A file that is truncated, too long or of another format is a UserError naming it.
    """
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file} cannot be read ({error}); copy it again.") from error
    # Two zero bytes, type, number of dimensions; each dimension as 4 bytes; the values.
    start = 4 + 4 * num_dimensions
    if content[:4] != bytes([0, 0, _UINT8, num_dimensions]) or len(content) < start:
        raise UserError(
            f"{file} is not an IDX file of bytes with {num_dimensions} dimension(s); copy it again."
        )
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    if len(content) - start != math.prod(shape):
        raise UserError(
            f"{file} is damaged: its header promises {math.prod(shape)} bytes, it holds "
            f"{len(content) - start}; copy it again."
        )
    # A copy, because an array on top of bytes is read-only and torch warns about those.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
