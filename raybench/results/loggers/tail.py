"""The lines of a file that another process writes, as they come."""

import json
from pathlib import Path
from typing import Any

from raybench.core.errors import UserError


class Tail:
    """Reads a file of JSON lines on and on, each whole line once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        """Bytes that were read, whole lines all."""
        self._number = 0

    def new(self) -> list[Any]:
        """Return what was added since the last call: the contents of its whole lines.

        UserError for a line that is no JSON.
        """
        with self._path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        end = content.rfind(b"\n") + 1
        self._read += end
        return [self._content(line) for line in content[:end].split(b"\n")[:-1]]

    def _content(self, line: bytes) -> Any:
        self._number += 1
        try:
            return json.loads(line.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):
            raise UserError(
                f"{self._path}, line {self._number}: is not JSON; restore the file."
            ) from None
