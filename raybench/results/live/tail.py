"""The lines that are new in a study's records, and whether its driver lives: a folder, or a URL."""

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from raybench.core.errors import UserError
from raybench.core.time_of_day import unix_seconds
from raybench.results.bucket import Bucket, BucketError
from raybench.results.lock import LEASE_KEY, OWNER_FILE
from raybench.results.place import is_url, local_path
from raybench.results.spool import log_of, start_of
from raybench.results.store import RECORDS_FILE, STUDY_FILE

MARK_BYTES = 256
"""Of what was read last, by which the same file is known again."""
Driver = Literal["lives", "ended", "died", "unknown"]
"""`ended`: it gave the place back; `died`: it did not, and is gone; `unknown`: it is on a host
whose processes are not seen from here."""


@dataclass(frozen=True)
class News:
    """What a look at the records has found."""

    lines: list[bytes]
    """Whole lines, in order, without their ends."""
    is_anew: bool = False
    """Whether the records were replaced, or begun anew: what was read before counts no more."""


class Source(Protocol):
    """A study that somebody else writes; looks at it cost what is new alone.

    All methods may raise BucketError where it is below a URL, and go on the next time.
    """

    def study_yaml(self) -> bytes | None:
        """Return the content of study.yaml, None while there is none."""

    def news(self) -> News:
        """Return what is new in the records since the last look."""

    def driver(self) -> Driver:
        """Say whether somebody writes the study."""

    def idle_s(self) -> float | None:
        """Return for how many seconds nothing was written, as far as clocks tell it."""


def source_of(place: str) -> Source:
    """Return a study to look at; UserError where there is none."""
    source: Source = UrlSource(place) if is_url(place) else FolderSource(place)
    try:
        is_none = source.study_yaml() is None and source.driver() not in ("lives", "unknown")
    except BucketError as error:
        raise UserError(str(error)) from None
    if is_none:
        raise UserError(f"{place}: holds no study; name the results folder, or the URL, of one.")
    return source


class FolderSource:
    """A study in a folder, of this machine or a shared one."""

    def __init__(self, place: str) -> None:
        self.folder = local_path(place)
        if not self.folder.is_dir():
            raise UserError(f"{place}: is no folder; name the results folder of a study.")
        self._offset, self._torn, self._mark = 0, b"", b""
        self._inode: int | None = None

    def study_yaml(self) -> bytes | None:
        """Return the content of study.yaml, None while there is none."""
        return _read(self.folder / STUDY_FILE)

    def news(self) -> News:
        """Return what is new in the records since the last look."""
        try:
            file = (self.folder / RECORDS_FILE).open("rb")
        except FileNotFoundError:
            return News([])
        except OSError as error:
            raise UserError(
                f"{self.folder / RECORDS_FILE}: cannot be read ({error.strerror}); give yourself "
                "the right to."
            ) from None
        with file:
            found = os.fstat(file.fileno())
            is_anew = self._inode not in (None, found.st_ino) or not self._goes_on(file)
            if is_anew:
                self._offset, self._torn, self._mark = 0, b"", b""
            self._inode = found.st_ino
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        self._mark = (self._mark + content)[-MARK_BYTES:]
        *lines, self._torn = (self._torn + content).split(b"\n")
        return News(lines, is_anew)

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether what was read is still there: a file that was cut and has grown again differs."""
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def driver(self) -> Driver:
        """Say whether somebody writes the study: who does has put a file beside its lock."""
        content = _read(self.folder / OWNER_FILE)
        if content is None:
            return "ended"
        owner = _mapping(content)
        if owner.get("host") != platform.node() or not isinstance(owner.get("pid"), int):
            return "unknown"
        try:
            os.kill(owner["pid"], 0)
        except ProcessLookupError:
            return "died"
        except (PermissionError, OverflowError):  # another user's; no number of a process
            return "unknown"
        return "lives"

    def idle_s(self) -> float | None:
        """Return for how many seconds nothing was written, as far as clocks tell it."""
        try:
            written = (self.folder / RECORDS_FILE).stat().st_mtime
        except OSError:
            return None
        return max(unix_seconds() - written, 0.0)


class UrlSource:
    """A study below a URL: its records are objects, of which the last one alone changes."""

    def __init__(self, url: str) -> None:
        self._bucket = Bucket(url)
        self._length = 0
        """Bytes of the records that were read: whole lines."""
        self._written_s: float | None = None

    def study_yaml(self) -> bytes | None:
        """Return the content of study.yaml, None while there is none."""
        return self._bucket.get(STUDY_FILE)

    def news(self) -> News:
        """Return what is new in the records since the last look; one request where nothing is."""
        entries = self._bucket.entries()
        parts = sorted(key for key in entries if log_of(key) == RECORDS_FILE)
        length = sum(entries[key].size for key in parts)
        self._written_s = max((entries[key].modified for key in parts), default=None)
        is_anew = length < self._length
        length_read, content = 0 if is_anew else self._length, b""
        for key in parts:
            start = start_of(key)
            if start + entries[key].size > length_read:
                part = self._bucket.get(key) or b""
                content += part[max(length_read - start, 0) :]
                length_read = start + len(part)
        self._length = length_read
        return News(content.split(b"\n")[:-1], is_anew)

    def driver(self) -> Driver:
        """Say whether somebody writes the study, by what its lease says."""
        content = self._bucket.get(LEASE_KEY)
        is_released = content is None or _mapping(content).get("released") is True
        return "ended" if is_released else "unknown"

    def idle_s(self) -> float | None:
        """Return for how many seconds nothing was written, as far as clocks tell it."""
        return None if self._written_s is None else max(unix_seconds() - self._written_s, 0.0)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def _mapping(content: bytes) -> dict[str, Any]:
    """Return what a JSON file says; nothing where it is torn."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
