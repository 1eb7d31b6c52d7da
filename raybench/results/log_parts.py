"""Logs that grow on this machine, and the same logs as objects below a URL.

Object stores cannot append. Writing `records.jsonl` whole every two seconds would cost the square
of its length (10,000 trials of 25 evaluations: 58 MB in the end); an object for each two
seconds would be 14,000 in eight hours, a request each to read back. So a log is cut at line ends
into parts of about PART_BYTES, named by where they begin: `records-000000262144.jsonl`. Only the
last part is written again as it grows. A round costs one request for each log that grew, and
PART_BYTES at most for its last part; the 58 MB are 222 objects, fetched FETCHERS at a time.

A crash between two uploads leaves a beginning of the log, in whole lines: each object is written
whole or not at all, in order, a part only after the one before it is full and there. Optuna's
journal is measured before the records and written after them, so it never knows of a run that the
records lack; what it lacks itself is told from them (`optuna_study.restore`). A log that was
rewritten is deleted from its end, so what is left is a beginning again. Records are results: they
are deleted only where `cleared_mark` says that this machine's were forgotten on purpose.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raybench.core.errors import StudyError, UserError
from raybench.results.bucket import Bucket
from raybench.results.store import RECORDS_FILE

LOGS = (RECORDS_FILE, "optuna.log")
"""What is only ever appended to, in the order in which it is uploaded."""
PART_BYTES = 2**18
FETCHERS = 16


class LogUpload:
    """Uploads a log as it grows; remembers its last part alone."""

    def __init__(self, folder: Path, name: str, bucket: Bucket) -> None:
        self._path, self._bucket = folder / name, bucket
        self._start, self._last = 0, b""

    def resume(self, keys: Iterable[str]) -> None:
        """Continue the parts of an earlier driver; the local log begins with them, or is new."""
        mine = sorted(key for key in keys if log_of(key) == self._path.name)
        if mine:
            self._start = start_of(mine[-1])
            self._last = self._bucket.get(mine[-1]) or b""

    def size(self) -> int:
        """Return the length of the log, 0 where there is none."""
        return self._path.stat().st_size if self._path.is_file() else 0

    def num_left(self) -> int:
        """Return how many whole lines are not uploaded."""
        return self._read(self.size())[len(self._last) :].count(b"\n")

    def upload(self, size: int, may_write: Callable[[], None]) -> None:
        """Upload the whole lines of the first `size` bytes; `may_write` raises if it may not.

        StudyError where that would delete records that this machine does not have.
        """
        new = self._read(size)
        if not new.startswith(self._last):
            self._forget(may_write)
            new = self._read(size)
        while new:
            part = new[: _end_of_part(new)]
            if part != self._last:
                may_write()
                self._bucket.put(part_key(self._path.name, self._start), part)
                self._last = part
            new = new[len(part) :]
            if new:
                self._start, self._last = self._start + len(part), b""

    def _read(self, size: int) -> bytes:
        if not self._path.is_file():
            return b""
        with self._path.open("rb") as file:
            file.seek(self._start)
            found = file.read(max(0, size - self._start))
        return found[: found.rfind(b"\n") + 1]

    def _forget(self, may_write: Callable[[], None]) -> None:
        """Delete the parts, the last first: the log was rewritten."""
        mark = cleared_mark(self._path.parent)
        if self._path.name == RECORDS_FILE and not mark.exists():
            raise StudyError(
                f"{self._bucket.url}: holds records that are not in {self._path}, so nothing is "
                "deleted there; run the command again, and what is here is put aside."
            )
        keys = [key for key in self._bucket.entries() if log_of(key) == self._path.name]
        for key in sorted(keys, reverse=True):
            may_write()
            self._bucket.delete(key)
        if self._path.name == RECORDS_FILE:
            mark.unlink(missing_ok=True)
        self._start, self._last = 0, b""


def fetch_logs(bucket: Bucket, keys: Iterable[str]) -> dict[str, bytes]:
    """Return the logs below a URL, as far as they were uploaded."""
    parts = sorted(key for key in keys if log_of(key) is not None)
    with ThreadPoolExecutor(FETCHERS) as pool:
        contents = list(pool.map(bucket.get, parts))
    logs: dict[str, bytearray] = {}
    for key, content in zip(parts, contents, strict=True):
        name = log_of(key) or ""
        log = logs.setdefault(name, bytearray())
        if content is None or start_of(key) != len(log):
            raise UserError(f"{bucket.url}/{key}: does not follow what is before it; restore it.")
        log += content
    return {name: bytes(log) for name, log in logs.items()}


def cleared_mark(folder: Path) -> Path:
    """Return the file that says that a spool's records were forgotten: those uploaded may go."""
    return folder / f".{RECORDS_FILE}.cleared"


def part_key(name: str, start: int) -> str:
    """Return the key of the part of a log that begins at byte `start`."""
    stem, suffix = name.split(".")
    return f"{stem}-{start:012d}.{suffix}"


def log_of(key: str) -> str | None:
    """Return the log that a key is a part of."""
    stem, _, rest = key.partition("-")
    number, _, suffix = rest.partition(".")
    name = f"{stem}.{suffix}"
    return name if name in LOGS and len(number) == 12 and number.isdecimal() else None


def start_of(key: str) -> int:
    """Return where a part begins."""
    return int(key.partition("-")[2].partition(".")[0])


def _end_of_part(content: bytes) -> int:
    """Return where the first part of whole lines ends: the same however much follows it."""
    end = content.find(b"\n", PART_BYTES - 1)
    return len(content) if end < 0 else end + 1
