"""Brings a study's folder on this machine below a URL: its logs, and files written whole."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, unquote

from raybench.results.bucket import Bucket
from raybench.results.files import WINNERS
from raybench.results.lease import LEASE_KEY
from raybench.results.log_parts import FETCHERS, LOGS, LogUpload, log_of
from raybench.results.store import STUDY_FILE

CHECKPOINTS = "checkpoints"
"""The folder of the runs' checkpoints, which `spool_checkpoints` uploads."""
LOCAL = ("study.lock", "optuna.log.lock", "optuna.log.damaged")
"""Beginnings of names that stay on this machine; hidden and partial files do, too."""
Stamp = tuple[int, int]
"""Time and size of a file; both are the same of what did not change."""


class Upload:
    """Uploads the logs, and the files that are written whole; one thread calls it."""

    def __init__(self, folder: Path, bucket: Bucket, may_write: Callable[[], None]) -> None:
        """`may_write` raises where nothing may be written any more."""
        self.folder, self._bucket, self._may_write = folder, bucket, may_write
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
            log.upload(size, self._may_write)
        for name in names_of(self.folder):
            self._file(name)
        is_whole = stamp_of(self.folder / STUDY_FILE) is not None  # else deleted by mistake
        for name in WINNERS if is_whole else ():  # a later verdict may name nobody
            if name in self._files and stamp_of(self.folder / name) is None:
                self._may_write()
                self._bucket.delete(key_of(name))
                del self._files[name]

    def left(self) -> tuple[int, int]:
        """Return how many records and how many files are not uploaded."""
        names = names_of(self.folder)
        num_files = sum(stamp_of(self.folder / name) != self._files.get(name) for name in names)
        return self._logs[0].num_left(), num_files

    def _file(self, name: str) -> None:
        stamp = stamp_of(self.folder / name)
        if stamp is None or self._files.get(name) == stamp:
            return
        self._may_write()
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
