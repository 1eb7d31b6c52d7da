"""Storage of a study: a folder, or a URL with a local folder in front of it.

All reading and writing is done in `StudyStorage.folder`. For a local path or `file://`, that is the
place that the user named. For an object store it is a folder in the user's cache, which is copied
below the URL every `COPY_S` seconds and at the end (`mirror.py`), and copied back when another
machine resumes the study. Only one driver (the process that runs a study) may write there at a
time: a driver that finds records of another driver below the URL stops.

Readers of a URL use a separate copy in the user's cache.
"""

import hashlib
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from raybench.results.bucket import Bucket, BucketError, check_url
from raybench.results.lock import StudyLock
from raybench.results.mirror import Mirror, whole_lines
from raybench.results.mirror import fetch as fetch_all
from raybench.results.place import is_url, local_path
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.spec.errors import ErrorCode, StudyError, UserError


def study_file(place: str) -> Path | None:
    """Return the path of the `study.yaml` at a place, for a URL that of a local copy; None if there
    is none."""
    folder = _read_copy(place, [STUDY_FILE]) if is_url(place) else local_path(place)
    return folder / STUDY_FILE if (folder / STUDY_FILE).is_file() else None


def fetch(url: str, files: Sequence[str] = ()) -> Path:
    """Copy a study from a URL into a folder that only readers use; return the folder.

    Args:
        url: URL of the study.
        files: Further files to copy if they exist, in addition to the study and its records.

    Raises:
        UserError: The URL holds no study, or cannot be read.
    """
    folder = _read_copy(url, [STUDY_FILE, RECORDS_FILE, *files])
    if not all((folder / name).is_file() for name in (STUDY_FILE, RECORDS_FILE)):
        raise UserError(f"{url}: holds no study; name the URL of one.", ErrorCode.NOT_FOUND)
    return folder


def _read_copy(url: str, names: Sequence[str]) -> Path:
    """Return the readers' folder of a URL, with new copies of the files that exist there."""
    check_url(url)
    bucket, folder = Bucket(url), cache_folder("read", url)
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
            bucket.get_file(name, folder / name)
    except BucketError as error:
        raise UserError(str(error), ErrorCode.UNREACHABLE) from None
    return folder


def cache_folder(kind: str, url: str) -> Path:
    """Return the folder in the user's cache for a URL; `kind` is its use, `read` or `spool`."""
    import pooch  # late import: slow, and not needed for local folders

    words = re.sub(r"[^\w.-]+", "-", check_url(url), flags=re.ASCII).strip("-.")[-60:]
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:10]
    folder = Path(pooch.os_cache("raybench")) / kind / f"{words}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be made ({error.strerror}); set XDG_CACHE_HOME to another.",
            ErrorCode.NOT_WRITABLE,
        ) from None
    return folder


def unused_url(url: str) -> str:
    """Return a URL without objects below it: the given URL, or that URL with a number appended."""
    path, mark, query = url.partition("?")
    path, number, found = path.rstrip("/"), 2, url
    try:
        while Bucket(found).list_keys():
            found = f"{path}-{number}{mark}{query}"
            number += 1
    except BucketError as error:
        raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None
    return found


COPY_S = 30.0
"""Seconds between two copies below the URL."""
PROBE = ".raybench"
"""Object that is written and deleted at the start, so that a missing bucket or refused credentials
are found before anything trains."""


Warn = Callable[[str], None]


class StudyStorage:
    """Context manager of a study's folder, which this process has locked."""

    def __init__(self, place: str, folder: Path, lock: StudyLock) -> None:
        self.place = place
        """Folder or URL that the user named."""
        self.folder = folder
        """Folder in which everything is read and written."""
        self._lock = lock

    def check(self) -> None:
        """Raise StudyError if another process that runs the study has taken it over."""

    def forget(self) -> None:
        """Allow records to disappear, since they are about to be deleted."""

    def close(self) -> None:
        """Release the folder; for a URL, first upload what is left.

        Raises:
            StudyError: Files could not be uploaded; the message names the folder that has them.
        """
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
                warn_on_screen(str(problem))  # the command prints only the first error


class CopiedStorage(StudyStorage):
    """Storage below a URL: until it is closed, a thread copies the local folder there."""

    def __init__(
        self, url: str, folder: Path, lock: StudyLock, *, mirror: Mirror, warn: Warn
    ) -> None:
        super().__init__(url, folder, lock)
        self._mirror, self._warn = mirror, warn
        self._end = threading.Event()
        self._is_failing = False
        """Whether the last attempt to copy failed, which has been reported."""
        self._fault: BaseException | None = None
        """Error that ended the thread."""
        self._thread = threading.Thread(target=self._copy_until_end, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if any: StudyError if another process that runs
        the study has taken it over."""
        if self._fault is not None:
            raise self._fault

    def forget(self) -> None:
        """Allow records below the URL to disappear."""
        self._mirror.forget()

    def close(self) -> None:
        """Upload what is left and release the folder."""
        self._end.set()
        self._thread.join()
        try:
            self.check()
            self._mirror.run()
        except BucketError as error:
            raise StudyError(
                f"{error} Nothing is lost: what is not uploaded is in {self.folder}, and the same "
                "command on this machine uploads it."
            ) from None
        finally:
            super().close()

    def _copy_until_end(self) -> None:
        try:
            while not self._end.wait(COPY_S):
                try:
                    self._mirror.run()
                except BucketError as error:
                    if not self._is_failing:
                        self._warn(f"{error} It is tried again; results are kept in {self.folder}.")
                    self._is_failing = True
                else:
                    if self._is_failing:
                        self._warn(f"{self.place}: takes results again.")
                    self._is_failing = False
        except BaseException as error:  # noqa: BLE001 (in a thread; `check` raises it)
            self._fault = error
            reason = f"{error!r} ended the upload"
            if isinstance(error, StudyError):
                reason = str(error).rstrip(".")
            self._warn(f"{reason}; results are kept only in {self.folder}.")


def warn_on_screen(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


def open_storage(place: str | Path, *, warn: Warn = warn_on_screen) -> StudyStorage:
    """Open a place for writing, and for a URL, fetch the results that are already there.

    Args:
        place: Folder or URL.
        warn: Called with each warning (a sentence), possibly from another thread.

    Raises:
        UserError: The place cannot be used: credentials are refused, the bucket is missing, or
            another process is writing there.
    """
    if not is_url(place):
        folder = local_path(place)
        return StudyStorage(str(folder), folder, StudyLock(folder).__enter__())
    url = str(place)
    check_url(url)
    try:
        return _open_url(url, warn)
    except BucketError as error:
        raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None


def _open_url(url: str, warn: Warn) -> StudyStorage:
    home = cache_folder("spool", url)
    with ExitStack() as undo:
        lock = undo.enter_context(StudyLock(home))
        bucket, folder = Bucket(url), home / "study"
        bucket.put(PROBE, b"")
        bucket.delete(PROBE)
        folder.mkdir(exist_ok=True)
        keys = bucket.list_keys()
        bring(bucket, keys, folder)
        undo.pop_all()
    return CopiedStorage(url, folder, lock, mirror=Mirror(folder, bucket, keys), warn=warn)


def bring(bucket: Bucket, keys: Sequence[str], folder: Path) -> None:
    """Copy a URL's objects into a folder, unless the folder has more records of the same study.

    Raises:
        UserError: The folder has records that the URL lacks, because another driver (process that
            runs a study) resumed the study.
    """
    there = (bucket.get(RECORDS_FILE) or b"") if RECORDS_FILE in keys else b""
    here = whole_lines(folder / RECORDS_FILE)
    if len(here) > len(there) and here.startswith(there):
        return
    if not there.startswith(here):
        raise UserError(
            f"--out {bucket.url}: another driver went on where this machine's last one had records "
            f"that were not uploaded; move {folder} away to go on with what is at the URL.",
            ErrorCode.CONFLICT,
        )
    fetch_all(bucket, keys, folder)
