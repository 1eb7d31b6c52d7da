"""A study's folder: `study.yaml` and the records, appended and flushed as they happen."""

import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from raybench.core.documents import to_yaml
from raybench.core.errors import UserError

STUDY_FILE = "study.yaml"
RECORDS_FILE = "records.jsonl"


class Store:
    """Writes one study's records; one process writes, any number may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _mend_last_line(folder / RECORDS_FILE)
            self._records: TextIO = (folder / RECORDS_FILE).open("a")
        except OSError as error:
            raise UserError(
                f"--out {folder}: cannot be written ({error.strerror}); name another folder."
            ) from None

    def append(self, line: dict[str, Any]) -> None:
        """Write one record; it is on its way to the disk when this returns."""
        self._records.write(json.dumps(_plain(line)) + "\n")
        self._records.flush()

    def clear(self) -> None:
        """Forget all records, to write the folder anew."""
        self._records.truncate(0)

    def write_yaml(self, name: str, content: dict[str, Any], *, comment: str = "") -> None:
        """Write a YAML file, whole or not at all; `comment` lines stand above it."""
        head = "".join(f"# {line}\n" for line in comment.splitlines())
        self.write_text(name, head + to_yaml(content))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, whole or not at all."""
        partial = self.folder / f".{name}.partial"
        partial.write_text(text)
        partial.replace(self.folder / name)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a binary file, whole or not at all."""
        partial = self.folder / f".{name}.partial"
        partial.write_bytes(content)
        partial.replace(self.folder / name)

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self._records.flush()
            os.fsync(self._records.fileno())
        finally:
            self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return all whole records of a folder, in order; a torn last line is left out.

    A line that is broken elsewhere raises UserError: somebody edited the file.
    """
    path = folder / RECORDS_FILE
    if not path.is_file():
        raise UserError(f"{folder}: holds no {RECORDS_FILE}, so it is not a results folder.")
    lines = path.read_text(errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            if number == len(lines):  # no newline behind it: the writer was interrupted
                continue
            raise UserError(f"{path}, line {number}: is not JSON; restore the file.") from None
    return records


def _mend_last_line(path: Path) -> None:
    """Let the next record start on a line of its own: end a whole last line, cut a torn one."""
    if not path.is_file():
        return
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return
    start = content.rfind(b"\n") + 1
    with path.open("r+b") as file:
        try:
            json.loads(content[start:])
        except ValueError:  # torn, in the middle of a character perhaps
            file.truncate(start)
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")


def _plain(value: Any) -> Any:
    """Replace what JSON does not know: NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
