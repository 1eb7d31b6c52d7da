"""Where a study is written: a folder, or a URL with a folder of this machine in front of it.

All writing and reading is done in `StudyStorage.folder`. Of a local path or `file://` (a shared
folder, too: it can append) that is the place itself. Of an object store it is a spool in the
user's cache, which `sync.Sync` brings below the URL in the background.
"""

import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from raybench.core.errors import StudyError, UserError
from raybench.results.bucket import Bucket, BucketError, check_url
from raybench.results.files import StudyFiles
from raybench.results.lease import Lease, LeaseLostError
from raybench.results.lock import StudyLock
from raybench.results.log_parts import LOGS, cleared_mark, fetch_logs
from raybench.results.place import is_url, local_path
from raybench.results.remote import cache_folder
from raybench.results.spool import fetch_files
from raybench.results.spool_checkpoints import fetch_checkpoints
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.results.sync import Sync

Warn = Callable[[str], None]


class StudyStorage:
    """A study's place, held by this process; `with` it, so that all is uploaded in the end."""

    def __init__(self, place: str, folder: Path, lock: StudyLock, sync: Sync | None = None) -> None:
        self.place = place
        """What the user named: a folder or a URL."""
        self.folder = folder
        """Where everything is written and read."""
        self._lock, self._sync = lock, sync

    @property
    def is_local(self) -> bool:
        """Whether the folder is the place itself."""
        return self._sync is None

    def check(self) -> None:
        """Raise StudyError if another driver has taken the place over."""
        self._lock.check()
        if self._sync is not None:
            self._sync.check()

    def forget(self) -> None:
        """Let the records below a URL be deleted: the folder's are about to be (`Store.clear`)."""
        if self._sync is not None:
            cleared_mark(self.folder).touch()

    def close(self) -> None:
        """Upload what is left; StudyError names the folder that keeps what could not be."""
        try:
            if self._sync is not None:
                self._sync.close()
        finally:
            self._lock.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StudyError as problem:
            if error is None:
                raise
            if str(problem) != str(error):
                warn_on_screen(str(problem))  # the command prints the first error alone


def warn_on_screen(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


def open_storage(place: str | Path, *, warn: Warn = warn_on_screen) -> StudyStorage:
    """Take a place for writing, with what an earlier driver left there, on whatever machine.

    `warn` gets sentences, from other threads, too. UserError says why the place cannot be used:
    refused credentials, no bucket, another driver.
    """
    if not is_url(place):
        folder = local_path(place)
        return StudyStorage(str(folder), folder, StudyLock(folder, warn=warn).__enter__())
    url = str(place)
    check_url(url)
    try:
        return _open_url(url, warn)
    except BucketError as error:
        raise UserError(f"--out {error}") from None


def _open_url(url: str, warn: Warn) -> StudyStorage:
    home = cache_folder("spool", url)
    lock = StudyLock(home, warn).__enter__()
    try:
        bucket, lease = Bucket(url), Lease(Bucket(url), _identity(home), say=warn)
        last = lease.take()
        try:
            folder = home / "study"
            folder.mkdir(exist_ok=True)
            sync = Sync(folder, bucket, lease, warn)
            keys = list(bucket.entries())
            bring(bucket, keys, folder, last=last, own=_identity(home), warn=warn)
            lease.settle()
            sync.start(keys)
        except LeaseLostError as lost:
            raise UserError(f"{lost}; wait for it, or name another place with --out.") from None
        except BaseException:
            # The lease still says who wrote last. If it cannot be given back, it ages.
            with suppress(BucketError):
                lease.release()
            raise
    except BaseException:
        lock.__exit__()
        raise
    return StudyStorage(url, folder, lock, sync)


def bring(
    bucket: Bucket, keys: list[str], folder: Path, *, last: str | None, own: str, warn: Warn
) -> None:
    """Bring what is below a URL into a folder, where the folder does not know better.

    Where `last`, who wrote there last, is the folder's `own` driver, the folder is ahead, unless
    its records say otherwise. Else what an earlier driver here did not upload stays if it follows
    on what is there; if not, because another driver went on meanwhile or the URL was emptied, it is
    put aside and its place is said.
    """
    there, cleared = fetch_logs(bucket, keys), cleared_mark(folder)
    follows = _whole_lines(folder / RECORDS_FILE).startswith(there.get(RECORDS_FILE, b""))
    is_ahead = last == own and (follows or cleared.exists())
    if last is None and not there and any(_whole_lines(folder / name) for name in LOGS):
        _put_aside(
            folder,
            f"{bucket.url}: holds no study any more; records of one are on this machine",
            warn,
        )
    elif not is_ahead and not all(_fits(folder / name, there.get(name, b"")) for name in LOGS):
        what = "another driver went on where this machine's last one had records that were not"
        _put_aside(folder, f"{bucket.url}: {what} uploaded", warn)
    if not is_ahead or not (folder / STUDY_FILE).is_file():
        fetch_checkpoints(bucket, keys, folder)
    for name, content in there.items():
        here = _whole_lines(folder / name)
        if len(content) > len(here) and content.startswith(here):
            StudyFiles(folder).write_bytes(name, content)
    fetch_files(bucket, keys, folder, keep=is_ahead)
    if _fits(folder / RECORDS_FILE, there.get(RECORDS_FILE, b"")):
        cleared.unlink(missing_ok=True)  # nothing there is to be deleted any more


def _put_aside(folder: Path, why: str, warn: Warn) -> None:
    number = 1
    while (aside := folder.with_name(f"{folder.name}-not-uploaded-{number}")).exists():
        number += 1
    folder.replace(aside)
    folder.mkdir()
    warn(f"{why}; they are kept in {aside}.")


def _fits(path: Path, there: bytes) -> bool:
    """Return whether one of the two logs, here and there, is a beginning of the other."""
    here = _whole_lines(path)
    return here.startswith(there) or there.startswith(here)


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def _identity(home: Path) -> str:
    """Return a name of this machine's spool that no other has."""
    path = home / "id"
    if not path.is_file():
        StudyFiles(home).write_text(path.name, uuid.uuid4().hex)
    return path.read_text()
