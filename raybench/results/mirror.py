"""Copy a study's folder to a URL and back: whole files, if they have changed.

Object stores cannot append, so a file that grew is written again. What a reader or another driver
finds below the URL is always usable:

- A log (`records.jsonl`, or Optuna's journal `optuna.log`) ends with a whole line. The journal is
  read before the records and written after them, so it has no run that the records lack.
- `state.json` of a checkpoint holds the digest of the weights, so a checkpoint of which only a part
  was copied is recognized as damaged, and the previous checkpoint is used.

A driver that finds another driver's records below the URL changes nothing there, because the other
driver has resumed the study.
"""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from raybench.results.bucket import Bucket
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.spec.errors import StudyError
from raybench.stats.checkpoint import STATE_FILE

JOURNAL = "optuna.log"
LOCAL_NAMES = ("study.lock", "optuna.log.lock", "optuna.log.damaged")
"""Prefixes of the names of files that are not copied, in addition to hidden and partial files."""
FETCHERS = 16
"""Number of objects that are fetched at the same time."""
Stamp = tuple[int, int]
"""Modification time in ns and size in bytes; an unchanged file keeps both."""
UNKNOWN_STAMP: Stamp = (0, -1)
"""Stamp of a copy made by an earlier driver; no file has this stamp."""


class Mirror:
    """Mirrors a study's folder to a URL (object store). Not thread-safe."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self.folder, self._bucket = folder, bucket
        self._copied: dict[str, Stamp] = {}
        """Stamps of the files that are copied below the URL, by relative path."""
        self._num_there: int | None = 0
        """Bytes of the records that this driver has uploaded; None after `forget`, when the records
        below the URL are not checked."""

    def resume(self, keys: Sequence[str], *, is_fetched: bool) -> None:
        """Take over the copies below the URL that an earlier driver made.

        `is_fetched`: whether the folder was just fetched from them, so that they are up to date.
        """
        files = files_of(self.folder) if is_fetched else {}
        self._copied = {name: files.get(name, UNKNOWN_STAMP) for name in keys if is_copied(name)}

    def forget(self) -> None:
        """Allow the records to become fewer, since they are about to be deleted."""
        self._num_there = None

    def run(self) -> None:
        """Copy files that have changed, and delete copies of files that are gone.

        Raises:
            BucketError: The store did not answer; the next call continues the copying.
            StudyError: Another driver (process that runs the study) has written below the URL, or
                records have disappeared without a call of `forget`.
        """
        if not (self.folder / STUDY_FILE).is_file():
            return  # not started, or deleted by mistake; then the copy is all that is left
        journal = whole_lines(self.folder / JOURNAL)
        files = files_of(self.folder)
        if files == self._copied:
            return
        self._check_records_there()
        for name in [one for one in self._copied if one not in files]:
            self._bucket.delete(name)
            del self._copied[name]
        for name in sorted(files, key=_order):
            if self._copied.get(name) != files[name]:
                self._put(name, journal)
                self._copied[name] = files[name]

    def _put(self, name: str, journal: bytes) -> None:
        if name == RECORDS_FILE:
            records = whole_lines(self.folder / name)
            self._bucket.put(name, records)
            self._num_there = len(records)
            mark_of_upload(self.folder).touch()
        elif name == JOURNAL:
            self._bucket.put(name, journal)
        else:
            with suppress(FileNotFoundError):  # deleted just now: the next call sees it
                self._bucket.put_file(name, self.folder / name)

    def _check_records_there(self) -> None:
        """Raise StudyError if the remote records are not a prefix of the local ones."""
        here = whole_lines(self.folder / RECORDS_FILE)
        num_there = self._bucket.size(RECORDS_FILE)
        if self._num_there is None or num_there == self._num_there <= len(here):
            return
        there = self._bucket.get(RECORDS_FILE) or b""
        if not here.startswith(there):
            raise StudyError(
                f"{self._bucket.url}: the study was taken over by another driver, whose records "
                f"stay there; what this driver measured and did not upload is in {self.folder}."
            )
        self._num_there = len(there)


def mark_of_upload(folder: Path) -> Path:
    """Return the path of the empty file next to a study's folder that marks that the study's
    records have been uploaded."""
    return folder.with_name(f"{folder.name}.uploaded")


def fetch(bucket: Bucket, keys: Sequence[str], folder: Path) -> None:
    """Replace the content of a folder with the objects below a URL."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    def fetch_one(name: str) -> None:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        bucket.get_file(name, partial / name)

    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(fetch_one, filter(is_copied, keys)))
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def files_of(folder: Path) -> dict[str, Stamp]:
    """Return the stamp (modification time, size) of each file to copy, by relative path."""
    found: dict[str, Stamp] = {}
    for top, folders, files in os.walk(folder):
        below = Path(top).relative_to(folder)
        folders[:] = [one for one in folders if not one.startswith(".")]
        for file in files:
            name = (below / file).as_posix()
            if is_copied(name):
                with suppress(FileNotFoundError):  # deleted just now
                    now = (folder / name).stat()
                    found[name] = now.st_mtime_ns, now.st_size
    return found


def is_copied(name: str) -> bool:
    """Return whether the file with a relative path is copied.

    Other keys are not fetched either, since a path such as `../x` would lie outside the folder.
    """
    parts = name.split("/")
    is_odd = any(not part or part.startswith(".") or "\0" in part for part in parts)
    return not is_odd and not name.startswith(LOCAL_NAMES)


def whole_lines(path: Path) -> bytes:
    """Return the complete lines of a log; empty if there are none, or if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def _order(name: str) -> int:
    """Return the sort key for the order of copying: `study.yaml` is first, since without it there
    is no study; the weights of a checkpoint precede its state."""
    if name in (STUDY_FILE, RECORDS_FILE, JOURNAL):
        return (STUDY_FILE, RECORDS_FILE, JOURNAL).index(name)
    return 4 if name.endswith(STATE_FILE) else 3
