"""A study's folder on this machine, and the same study as objects below a URL.

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
rewritten is deleted from its end, so what is left is a beginning again.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, unquote

from raybench.core.errors import UserError
from raybench.results.bucket import Bucket
from raybench.results.files import StudyFiles
from raybench.results.lease import LEASE_KEY
from raybench.results.store import RECORDS_FILE, STUDY_FILE

LOGS = (RECORDS_FILE, "optuna.log")
"""What is only ever appended to, in the order in which it is uploaded."""
PART_BYTES = 2**18
FETCHERS = 16
LOCAL = ("study.lock", "optuna.log.lock", "optuna.log.damaged")
"""Beginnings of names that stay on this machine; hidden and partial files do, too."""


class LogUpload:
    """Uploads a log as it grows; remembers its last part alone."""

    def __init__(self, folder: Path, name: str, bucket: Bucket) -> None:
        self._path, self._bucket = folder / name, bucket
        self._start, self._last = 0, b""

    def resume(self, keys: list[str]) -> None:
        """Continue the parts of an earlier driver; the local log begins with them, or is new."""
        mine = sorted(key for key in keys if log_of(key) == self._path.name)
        if mine:
            self._start = start_of(mine[-1])
            self._last = self._bucket.get(mine[-1]) or b""

    def size(self) -> int:
        """Return the length of the log, 0 where there is none."""
        return self._path.stat().st_size if self._path.is_file() else 0

    def upload(self, size: int, may_write: Callable[[], None]) -> None:
        """Upload the whole lines of the first `size` bytes; `may_write` raises if it may not."""
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
        keys = [key for key in self._bucket.entries() if log_of(key) == self._path.name]
        for key in sorted(keys, reverse=True):
            may_write()
            self._bucket.delete(key)
        self._start, self._last = 0, b""


class Upload:
    """Brings what has changed in a folder below a URL; one thread calls it."""

    def __init__(self, folder: Path, bucket: Bucket, may_write: Callable[[], None]) -> None:
        self.folder, self._bucket, self._may_write = folder, bucket, may_write
        self._logs = [LogUpload(folder, name, bucket) for name in LOGS]
        self._files: dict[str, tuple[int, int]] = {}

    def resume(self, keys: list[str]) -> None:
        """Continue where an earlier driver ended."""
        for log in self._logs:
            log.resume(keys)

    def run(self) -> None:
        """Upload what has changed. Raises BucketError, LeaseLostError; the next call goes on."""
        sizes = [log.size() for log in reversed(self._logs)]
        # First, for a study without it is none.
        self._file(STUDY_FILE)
        for log, size in zip(self._logs, reversed(sizes), strict=True):
            log.upload(size, self._may_write)
        for name in names_of(self.folder):
            self._file(name)
        # Checkpoints come and go; what lies at the top is never deleted.
        for name in [name for name in self._files if "/" in name]:
            if self.folder.is_dir() and not (self.folder / name).exists():
                self._may_write()
                self._bucket.delete(key_of(name))
                del self._files[name]

    def _file(self, name: str) -> None:
        try:
            now = (self.folder / name).stat()
            stamp = now.st_mtime_ns, now.st_size
            if self._files.get(name) == stamp:
                return
            self._may_write()
            self._bucket.put_file(key_of(name), self.folder / name)
        except FileNotFoundError:
            return  # replaced or deleted just now: the next round sees it
        self._files[name] = stamp


def names_of(folder: Path) -> list[str]:
    """Return the files of a folder that are written whole."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        if path.is_file() and not hidden and name not in LOGS and not name.startswith(LOCAL):
            found.append(name)
    return found


def fetch_logs(bucket: Bucket, keys: list[str]) -> dict[str, bytes]:
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


def fetch_files(bucket: Bucket, keys: list[str], folder: Path, *, keep: bool) -> None:
    """Write the objects that are whole files to a folder; `keep` leaves what is there."""
    wanted = {
        name: key
        for key in keys
        if log_of(key) is None
        and not key.startswith(LEASE_KEY)
        and (name := name_of(key)) is not None
        and not (keep and (folder / name).exists())
    }
    with ThreadPoolExecutor(FETCHERS) as pool:
        for name, content in zip(wanted, pool.map(bucket.get, wanted.values()), strict=True):
            if content is not None:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                StudyFiles(path.parent).write_bytes(path.name, content)


def key_of(name: str) -> str:
    """Return the key of a file; no '=' stands in it (ray#29845), nor anything odd."""
    return "/".join(quote(part, safe="") for part in name.split("/"))


def name_of(key: str) -> str | None:
    """Return the file of a key; None where it would lie elsewhere, or is none of ours."""
    parts = [unquote(part) for part in key.split("/")]
    odd = any(not part or part.startswith(".") or "/" in part or "\0" in part for part in parts)
    return None if odd or parts[0].startswith(LOCAL) else "/".join(parts)


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
