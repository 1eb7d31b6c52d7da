"""Brings a study's folder on this machine below a URL: its logs, and files written whole.

Object stores cannot append. Writing `records.jsonl` whole every two seconds would cost the square
of its length (10,000 trials of 25 evaluations: 58 MB in the end); an object for each two
seconds would be 14,000 in eight hours, a request each to read back. So a log is cut at line ends
into parts of about PART_BYTES, named by where they begin: `records-000000262144.jsonl`. Only the
last part is written again as it grows. A round costs one request for each log that grew, and
PART_BYTES at most for its last part; the 58 MB are 222 objects, fetched FETCHERS at a time.

A crash between two uploads leaves a beginning of the log, in whole lines: each object is written
whole or not at all, in order, a part only after the one before it is full and there. Optuna's
journal is measured before the records and written after them, so it never knows of a run that the
records lack; what it lacks itself is restored from them (`optuna_study.restore`). A log that was
rewritten is deleted from its end, so what is left is a beginning again. Records are results: they
are deleted only where `cleared_mark` says that this machine's were forgotten on purpose.

Checkpoints below a URL: uploaded, deleted, brought to another machine.

A checkpoint is a folder, `checkpoints/RUN/000012`, with weights and a `state.json`. Below the URL
the state is the last object to come and the first to go, so a reader never sees one without its
weights. It holds the weights' digest: checkpoints of equal states are equal, and stay as they are.
"""

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from raybench.results.bucket import Bucket
from raybench.results.lock import LEASE_KEY
from raybench.results.store import RECORDS_FILE, STUDY_FILE, WINNERS
from raybench.spec.errors import StudyError, UserError
from raybench.stats.checkpoint import STATE_FILE

LOGS = (RECORDS_FILE, "optuna.log")
"""Files that are only appended to, in the order in which it is uploaded."""
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

    def upload(self, size: int) -> None:
        """Upload the whole lines of the first `size` bytes.

        StudyError where that would delete records that this machine does not have.
        """
        new = self._read(size)
        if not new.startswith(self._last):
            self._forget()
            new = self._read(size)
        while new:
            part = new[: _end_of_part(new)]
            if part != self._last:
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

    def _forget(self) -> None:
        """Delete the parts, the last first: the log was rewritten."""
        mark = cleared_mark(self._path.parent)
        if self._path.name == RECORDS_FILE and not mark.exists():
            raise StudyError(
                f"{self._bucket.url}: holds records that are not in {self._path}, so nothing is "
                "deleted there; run the command again, and what is here is put aside."
            )
        keys = [key for key in self._bucket.entries() if log_of(key) == self._path.name]
        for key in sorted(keys, reverse=True):
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


CHECKPOINTS = "checkpoints"
"""The folder of the runs' checkpoints, which `spool_checkpoints` uploads."""
LOCAL = ("study.lock", "optuna.log.lock", "optuna.log.damaged")
"""Beginnings of names that stay on this machine; hidden and partial files do, too."""
Stamp = tuple[int, int]
"""Time and size of a file; both are the same of what did not change."""


class Upload:
    """Uploads the logs, and the files that are written whole; one thread calls it."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self.folder, self._bucket = folder, bucket
        self._logs = [LogUpload(folder, name, bucket) for name in LOGS]
        self._files: dict[str, Stamp] = {}

    def resume(self, keys: Iterable[str]) -> None:
        """Continue where an earlier driver ended."""
        for log in self._logs:
            log.resume(keys)

    def run(self) -> None:
        """Upload what has changed. Raises BucketError, LeaseLostError; the next call goes on."""
        sizes = [log.size() for log in reversed(self._logs)]
        # First, for a study without it is none.
        self._file(STUDY_FILE)
        for log, size in zip(self._logs, reversed(sizes), strict=True):
            log.upload(size)
        for name in names_of(self.folder):
            self._file(name)
        is_whole = stamp_of(self.folder / STUDY_FILE) is not None  # else deleted by mistake
        for name in WINNERS if is_whole else ():  # a later verdict may name nobody
            if name in self._files and stamp_of(self.folder / name) is None:
                self._bucket.delete(key_of(name))
                del self._files[name]

    def _file(self, name: str) -> None:
        stamp = stamp_of(self.folder / name)
        if stamp is None or self._files.get(name) == stamp:
            return
        try:
            self._bucket.put_file(key_of(name), self.folder / name)
        except FileNotFoundError:
            return  # replaced or deleted just now: the next round sees it
        self._files[name] = stamp


def names_of(folder: Path) -> list[str]:
    """Return the files of a folder that are written whole, without its checkpoints."""
    return [
        name
        for name in files_below(folder, skip=CHECKPOINTS)
        if name not in LOGS and not name.startswith(LOCAL)
    ]


def files_below(folder: Path, *, skip: str = "") -> list[str]:
    """Return the files below a folder by their names there; what is hidden is left out."""
    found = []
    for top, folders, files in os.walk(folder):
        parts = Path(top).relative_to(folder).parts
        folders[:] = [one for one in folders if not one.startswith(".") and (parts or one != skip)]
        found += ["/".join([*parts, one]) for one in files if not one.startswith(".")]
    return sorted(found)


def stamp_of(path: Path) -> Stamp | None:
    """Return what changes with a file; None where there is none."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return None
    return now.st_mtime_ns, now.st_size


def fetch_files(bucket: Bucket, keys: Iterable[str], folder: Path, *, keep: bool) -> None:
    """Write the objects that are whole files to a folder; `keep` leaves what is there."""
    wanted = {
        name: key
        for key in keys
        if log_of(key) is None
        and not key.startswith(LEASE_KEY)
        and (name := name_of(key)) is not None
        and not name.startswith(f"{CHECKPOINTS}/")
        and not (keep and (folder / name).exists())
    }

    def fetch(name: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        bucket.get_file(wanted[name], folder / name)

    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(fetch, wanted))


def key_of(name: str) -> str:
    """Return the key of a file; no '=' stands in it (ray#29845), nor anything odd."""
    return "/".join(quote(part, safe="") for part in name.split("/"))


def name_of(key: str) -> str | None:
    """Return the file of a key; None where it would lie elsewhere, or is none of ours."""
    parts = [unquote(part) for part in key.split("/")]
    odd = any(not part or part.startswith(".") or "/" in part or "\0" in part for part in parts)
    return None if odd or parts[0].startswith(LOCAL) else "/".join(parts)


Files = dict[str, Stamp]
"""The files of a checkpoint by their names in its folder."""
UNKNOWN: Stamp = (0, -1)
"""Stamp of a file that an earlier driver uploaded, where this machine has another: no file has
it."""


class CheckpointUpload:
    """Makes the checkpoints below a URL those of the folder; one thread calls it.

    A thread of its own, because weights may take minutes and records wait for nothing.
    """

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self.folder, self._bucket = folder, bucket
        self._there: dict[str, Files] = {}
        """Objects below the URL, by the checkpoints' folders."""

    def resume(self, keys: Iterable[str]) -> None:
        """Learn what an earlier driver uploaded."""
        here, there = _found(self.folder), _keys(keys)
        equal = _equal(self._bucket, self.folder, there)
        for name, files in there.items():
            known = here.get(name, {}) if name in equal else {}
            self._there[name] = {file: known.get(file, UNKNOWN) for file in files}

    def run(self) -> None:
        """Upload and delete what has changed. Raises BucketError, LeaseLostError."""
        if not self.folder.is_dir():
            return  # deleted by mistake: what is below the URL is all there is
        here = _found(self.folder)
        for name in sorted({*here, *self._there}):
            if here.get(name) != self._there.get(name):
                self._change(name, here.get(name, {}))

    def _change(self, name: str, wanted: Files) -> None:
        there = self._there.setdefault(name, {})
        # The state goes first and comes last.
        for file in sorted(there, key=_is_state, reverse=True):
            if _is_state(file) or file not in wanted:
                self._bucket.delete(key_of(f"{name}/{file}"))
                del there[file]
        for file in sorted(wanted, key=_is_state):
            if there.get(file) != wanted[file]:
                try:
                    self._bucket.put_file(key_of(f"{name}/{file}"), self.folder / name / file)
                except FileNotFoundError:
                    return  # deleted just now: the next round sees it
                there[file] = wanted[file]
        if not there:
            del self._there[name]


def fetch_checkpoints(bucket: Bucket, keys: Iterable[str], folder: Path) -> None:
    """Make the checkpoints of a folder those below a URL; each comes whole or not at all."""
    there = _keys(keys)
    for name in set(_found(folder)) - set(there):
        shutil.rmtree(folder / name)
    equal = _equal(bucket, folder, there)

    def fetch(name: str) -> None:
        target = folder / name
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file, key in there[name].items():
            bucket.get_file(key, partial / file)
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)

    whole = [name for name, files in there.items() if STATE_FILE in files and name not in equal]
    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(fetch, whole))


def _found(folder: Path) -> dict[str, Files]:
    """Return the checkpoints of a study's folder."""
    found: dict[str, Files] = {}
    for name in files_below(folder / CHECKPOINTS):
        path = PurePosixPath(CHECKPOINTS, name)
        stamp = stamp_of(folder / path)
        if stamp is not None:
            found.setdefault(str(path.parent), {})[path.name] = stamp
    # One that is just being deleted may have no weights any more.
    return {name: files for name, files in found.items() if set(files) != {STATE_FILE}}


def _keys(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the keys of the checkpoints' files, by their folders and names."""
    found: dict[str, dict[str, str]] = {}
    for key in keys:
        path = PurePosixPath(name_of(key) or "")
        if len(path.parts) > 2 and path.parts[0] == CHECKPOINTS:
            found.setdefault(str(path.parent), {})[path.name] = key
    return found


def _equal(bucket: Bucket, folder: Path, there: dict[str, dict[str, str]]) -> set[str]:
    """Return the checkpoints that are the same here and there."""

    def is_equal(name: str) -> bool:
        here, key = folder / name / STATE_FILE, there[name].get(STATE_FILE)
        return key is not None and here.is_file() and here.read_bytes() == bucket.get(key)

    with ThreadPoolExecutor(FETCHERS) as pool:
        return {name for name, same in zip(there, pool.map(is_equal, there), strict=True) if same}


def _is_state(file: str) -> bool:
    return file == STATE_FILE
