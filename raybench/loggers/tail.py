"""The new lines of a study's records since the last look, while another process writes them."""

import os
from dataclasses import dataclass
from pathlib import Path

from raybench.spec.errors import UserError

MARK_BYTES = 256
"""Bytes at the end of what was read, compared to tell a rewritten file from one that grew."""


@dataclass(frozen=True)
class News:
    """Lines that are new since the last look."""

    lines: list[bytes]
    """Whole lines, in order, without their ends."""
    is_anew: bool = False
    """Whether the file was replaced or rewritten: lines read before no longer count."""


class Tail:
    """Reads the whole lines that another process appends to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin(None)

    def _begin(self, inode: int | None) -> None:
        self._inode, self._offset, self._torn, self._mark = inode, 0, b"", b""

    def news(self) -> News:
        """Return the lines that were added since the last call; none while there is no file.

        Raises UserError where the file cannot be read.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return News([])
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be read ({error.strerror}); give yourself the right to."
            ) from None
        with file:
            inode = os.fstat(file.fileno()).st_ino
            # A file that was cut and has grown again differs in what was read last.
            file.seek(self._offset - len(self._mark))
            is_same = file.read(len(self._mark)) == self._mark
            is_anew = self._inode not in (None, inode) or not is_same
            if is_anew or self._inode is None:
                self._begin(inode)
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        self._mark = (self._mark + content)[-MARK_BYTES:]
        *lines, self._torn = (self._torn + content).split(b"\n")
        return News(lines, is_anew)
