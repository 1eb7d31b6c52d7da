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


class Mirror:
    """Mirrors a study's folder to a URL (object store). Not thread-safe."""

    def __init__(self, folder: Path, bucket: Bucket, keys: Sequence[str] = ()) -> None:
        """Prepare the mirror; `keys` are the objects that an earlier driver left below the URL."""
        self.folder, self._bucket = folder, bucket
        self._copied: dict[str, Stamp | None] = dict.fromkeys(filter(is_copied, keys))
        """Stamps of the files that are copied below the URL, by relative path; None if unknown."""
        self._may_shrink = False

    def forget(self) -> None:
        """Allow the records to become fewer, since they are about to be deleted."""
        self._may_shrink = True

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
            self._bucket.put(name, whole_lines(self.folder / name))
            self._may_shrink = False
        elif name == JOURNAL:
            self._bucket.put(name, journal)
        else:
            with suppress(FileNotFoundError):  # deleted just now: the next call sees it
                self._bucket.put(name, self.folder / name)

    def _check_records_there(self) -> None:
        """Raise StudyError if the remote records are not a prefix of the local ones."""
        there = b"" if self._may_shrink else self._bucket.get(RECORDS_FILE) or b""
        if not whole_lines(self.folder / RECORDS_FILE).startswith(there):
            raise StudyError(
                f"{self._bucket.url}: the study was taken over by another driver, whose records "
                f"stay there; what this driver measured and did not upload is in {self.folder}."
            )


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
    for top, _, files in os.walk(folder):
        for path in (Path(top) / file for file in files):
            name = path.relative_to(folder).as_posix()
            if is_copied(name):
                with suppress(FileNotFoundError):  # deleted just now
                    now = path.stat()
                    found[name] = now.st_mtime_ns, now.st_size
    return found


def is_copied(name: str) -> bool:
    """Return whether the file with a relative path is copied.

    Other keys are not fetched either, since a path such as `../x` would lie outside the folder.
    """
    is_odd = any(not part or part.startswith(".") for part in name.split("/"))
    return not is_odd and "\0" not in name and not name.startswith(LOCAL_NAMES)


def whole_lines(path: Path) -> bytes:
    """Return the complete lines of a log; empty if there are none, or if there is no file."""
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def _order(name: str) -> int:
    """Return the sort key for the order of copying: `study.yaml` is first, since without it there
    is no study; the weights of a checkpoint precede its state."""
    if name in (STUDY_FILE, RECORDS_FILE, JOURNAL):
        return (STUDY_FILE, RECORDS_FILE, JOURNAL).index(name)
    return 4 if name.endswith(STATE_FILE) else 3
