"""The records of a study, appended and flushed as they happen."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TextIO

from raybench.core.errors import UserError
from raybench.core.secrets import redact_text
from raybench.core.text import clean
from raybench.results.files import StudyFiles

STUDY_FILE = "study.yaml"
RECORDS_FILE = "records.jsonl"
SCALING = "scaling_study"
"""Key of `study.yaml` that holds a scaling study."""


class Store(StudyFiles):
    """Writes one study's records; one process writes, any number may read."""

    def __init__(
        self,
        folder: Path,
        may_write: Callable[[], None] = lambda: None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_write` raises StudyError where the folder is this process's no more.

        `forget` is called before records are forgotten.
        """
        super().__init__(folder)
        self._may_write, self._forget = may_write, forget
        try:
            folder.mkdir(parents=True, exist_ok=True)
            mend_last_line(folder / RECORDS_FILE)
            self._records: TextIO = (folder / RECORDS_FILE).open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"--out {folder}: cannot be written ({error.strerror}); name another folder."
            ) from None

    def append(self, line: dict[str, Any]) -> None:
        """Write one record; it is on its way to the disk when this returns.

        Its strings are cleaned (`core.text.clean`), its message tells no secrets. Raises
        StudyError where the file was deleted or replaced, so that nothing is written to nowhere.
        """
        self.check()
        for key in ("message", "restart_reason"):
            if line.get(key):
                line = line | {key: redact_text(line[key], os.environ)}
        self._records.write(json.dumps(plain(line)) + "\n")
        self._records.flush()

    def check(self) -> None:
        """Raise StudyError if the folder or its records were deleted, moved or replaced.

        Or if another process has taken them over.
        """
        self._may_write()
        try:
            there = (self.folder / RECORDS_FILE).stat()
        except OSError:
            raise self.gone() from None
        if not os.path.samestat(there, os.fstat(self._records.fileno())):
            raise self.gone()

    def clear(self) -> None:
        """Forget all records, to write the folder anew."""
        if os.fstat(self._records.fileno()).st_size:
            self._forget()
            self._records.truncate(0)

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self._records.flush()
            os.fsync(self._records.fileno())
        finally:
            self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def mend_last_line(path: Path) -> bool:
    """Let the next JSON line start on a line of its own; return whether the file was changed.

    A whole last line without its line end gets it; a torn one (its writer was killed, or the
    disk was full) is cut off. For `records.jsonl` and Optuna's journal; nothing else may be
    writing.
    """
    if not path.is_file():
        return False
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return False
    start = content.rfind(b"\n") + 1
    with path.open("r+b") as file:
        try:
            json.loads(content[start:])
        except (ValueError, RecursionError):  # torn, in the middle of a character perhaps
            file.truncate(start)
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
    return True


def plain(value: Any) -> Any:
    """Clean strings, and replace what JSON does not know: NaN and infinity become null."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
