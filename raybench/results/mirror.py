"""Copies of a study's folder below a URL, and back: whole files, those that have changed.

Object stores cannot append, so a file that grew is written again. What a reader or another driver
finds there is always usable:

- A log (`records.jsonl`, Optuna's journal) ends with a whole line. The journal is read before the
  records and written after them, so it never knows of a run that the records lack.
- `state.json` of a checkpoint, `checkpoints/RUN/000012/`, is its last object to come and its first
  to go: none is there without its weights. It holds their digest, so checkpoints of equal states
  are equal.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from raybench.results.bucket import Bucket
from raybench.results.lease import LEASE_KEY
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.spec.errors import StudyError
from raybench.stats.checkpoint import STATE_FILE

JOURNAL = "optuna.log"
CHECKPOINTS = "checkpoints"
LOCAL = ("study.lock", "optuna.log.lock", "optuna.log.damaged", LEASE_KEY)
"""Beginnings of names that are not copied; hidden and partial files are not, either."""
FETCHERS = 16
"""Objects that are fetched at the same time."""
Stamp = tuple[int, int]
"""Modification time in ns and size in bytes; an unchanged file keeps both."""
UNKNOWN: Stamp = (0, -1)
"""Stamp of a copy made by an earlier driver; no file has this stamp."""


class Mirror:
    """Makes what is below a URL the same as a folder; one thread calls it.

    Args:
        folder: The study's folder.
        bucket: Objects below the URL.
        check: Called before each write; raises where nothing may be written any more.
    """

    def __init__(
        self, folder: Path, bucket: Bucket, check: Callable[[], None] = lambda: None
    ) -> None:
        self.folder, self._bucket, self._check = folder, bucket, check
        self._copied: dict[str, Stamp] = {}
        """Copies that are there, by the names of the files."""
        self._least = 0
        """Bytes of the records that are there."""

    def resume(self, keys: Sequence[str], *, is_fetched: bool) -> None:
        """Learn which copies are there; `is_fetched`: the folder was fetched from them."""
        files = files_of(self.folder) if is_fetched else {}
        self._copied = {name: files.get(name, UNKNOWN) for name in keys if is_copied(name)}
        self._least = len(self._log(RECORDS_FILE))

    def forget(self) -> None:
        """Let the records become fewer: they are about to be cleared."""
        self._least = 0

    def run(self) -> None:
        """Copy what has changed, and delete what is gone.

        Raises:
            BucketError: The store did not answer; the next call goes on.
            StudyError: The records have become fewer without `forget`.
        """
        if not (self.folder / STUDY_FILE).is_file():
            return  # not begun; or deleted by mistake, and the copy is all there is
        journal = self._log(JOURNAL)
        files = files_of(self.folder)
        changed = [name for name, stamp in files.items() if self._copied.get(name) != stamp]
        gone = [name for name in self._copied if name not in files]
        for name in (*changed, *gone):
            if (state := _state_of(name)) is not None:
                self._delete(state)
        for name in gone:
            self._delete(name)
        for name in sorted(changed, key=_order):
            if name in (RECORDS_FILE, JOURNAL):
                self._check()
                self._bucket.put(name, self._records() if name == RECORDS_FILE else journal)
            elif not self._put(name):
                return  # replaced or deleted just now: the next round sees it
            self._copied[name] = files[name]
        # Unchanged checkpoints whose `state.json` was deleted above get it back last.
        for name in files:
            if name not in self._copied and not self._put(name):
                return
            self._copied.setdefault(name, files[name])

    def _put(self, name: str) -> bool:
        """Copy a file; return whether it was there."""
        self._check()
        try:
            self._bucket.put_file(name, self.folder / name)
        except FileNotFoundError:
            return False
        return True

    def _delete(self, name: str) -> None:
        if name in self._copied:
            self._check()
            self._bucket.delete(name)
            del self._copied[name]

    def _records(self) -> bytes:
        content = self._log(RECORDS_FILE)
        if len(content) < self._least:
            raise StudyError(
                f"{self._bucket.url}: holds records that are not in {self.folder}, so nothing is "
                "deleted there; run the command again, and what is here is put aside."
            )
        self._least = len(content)
        return content

    def _log(self, name: str) -> bytes:
        return whole_lines(self.folder / name)


def fetch(bucket: Bucket, keys: Sequence[str], folder: Path) -> None:
    """Make a folder what is below a URL; of checkpoints those that are whole."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    names = [name for name in keys if is_copied(name) and (_state_of(name) or name) in keys]

    def fetch_one(name: str) -> None:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        bucket.get_file(name, partial / name)

    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(fetch_one, names))
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def files_of(folder: Path) -> dict[str, Stamp]:
    """Return the files of a folder that are copied, by their names there.

    Left out are checkpoints that lack a part: they are just being deleted.
    """
    found: dict[str, Stamp] = {}
    for top, folders, files in os.walk(folder):
        below = Path(top).relative_to(folder)
        folders[:] = [one for one in folders if not one.startswith(".")]
        for file in files:
            name = (below / file).as_posix()
            if is_copied(name) and (stamp := _stamp_of(folder / name)) is not None:
                found[name] = stamp
    parts = Counter(_state_of(name) for name in found)
    return {
        name: stamp
        for name, stamp in found.items()
        if (state := _state_of(name)) is None or (state in found and parts[state] > 1)
    }


def is_copied(name: str) -> bool:
    """Return whether a file is copied by its name; no other key is fetched, as it might lie
    elsewhere."""
    parts = name.split("/")
    is_odd = any(not part or part.startswith(".") or "\0" in part for part in parts)
    return not is_odd and not name.startswith(LOCAL)


def whole_lines(path: Path) -> bytes:
    """Return the whole lines of a log; nothing where there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def _state_of(name: str) -> str | None:
    """Return the state that belongs to a file of a checkpoint; None of other files."""
    path = PurePosixPath(name)
    is_checkpoint = len(path.parts) > 2 and path.parts[0] == CHECKPOINTS
    return str(path.with_name(STATE_FILE)) if is_checkpoint else None


def _order(name: str) -> int:
    """Return when a file is copied: without `study.yaml` there is no study."""
    if name in (STUDY_FILE, RECORDS_FILE, JOURNAL):
        return (STUDY_FILE, RECORDS_FILE, JOURNAL).index(name)
    return 4 if name == _state_of(name) else 3


def _stamp_of(path: Path) -> Stamp | None:
    """Return what changes with a file; None where there is none."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return None
    return now.st_mtime_ns, now.st_size
